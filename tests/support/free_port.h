// SPDX-License-Identifier: Apache-2.0
// Ports for servers that a test starts as programs, and that cannot take port 0.
#ifndef INTRAWARP_TESTS_SUPPORT_FREE_PORT_H_
#define INTRAWARP_TESTS_SUPPORT_FREE_PORT_H_

namespace intrawarp {

// The range that FreePort() gives from. It lies below 32768, where the kernel begins by default to give ports to
// outgoing connections: a port from there could be a stranger's connection before the test's server listens.
inline constexpr int kFirstFreePort = 20000;
inline constexpr int kLastFreePort = 31999;

// A TCP port on which nobody listens at 127.0.0.1, and which no other call gives while this process lives, neither in
// this process nor in another test on this machine. Reports a failure of the test, and gives 0, where there is none.
// Thread-safe.
int FreePort();

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_SUPPORT_FREE_PORT_H_
