// SPDX-License-Identifier: Apache-2.0
#include "tests/support/free_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

namespace intrawarp {
namespace {

// Claims `port` for the life of this process, by a name that the kernel frees with the process: a Unix socket in the
// abstract namespace. False: another call has it. Where there are no such names, every claim succeeds.
bool Claim(int port) {
  const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return true;
  const std::string name = "intrawarp-test-port-" + std::to_string(port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const socklen_t size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  // The descriptor stays open: it is the claim.
  if (bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) == 0) return true;
  const bool is_taken = errno == EADDRINUSE;
  close(descriptor);
  return !is_taken;
}

bool IsFree(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const bool is_free = bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(descriptor);
  return is_free;
}

}  // namespace

int FreePort() {
  constexpr int kPorts = kLastFreePort - kFirstFreePort + 1;
  // Processes that start one after the other begin apart, so that most calls end at their first try.
  const int first = static_cast<int>(getpid()) * 17 % kPorts;
  for (int i = 0; i < kPorts; ++i) {
    const int port = kFirstFreePort + (first + i) % kPorts;
    if (Claim(port) && IsFree(port)) return port;
  }
  ADD_FAILURE() << "no port from " << kFirstFreePort << " to " << kLastFreePort << " is free";
  return 0;
}

}  // namespace intrawarp
