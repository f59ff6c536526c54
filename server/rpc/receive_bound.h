// SPDX-License-Identifier: Apache-2.0
// How much a TCP connection has brought, and a bound to what it may bring, which the kernel keeps: gRPC reads whatever
// comes, and holds what belongs to an unfinished header without a limit (1.51).
//
// Thread safety: as the system calls that these are.
#ifndef INTRAWARP_SERVER_RPC_RECEIVE_BOUND_H_
#define INTRAWARP_SERVER_RPC_RECEIVE_BOUND_H_

#include <cstdint>
#include <optional>

namespace intrawarp::server {

// Before a listening socket's first connection, so that FirstSequence knows those that it accepts.
void KeepFirstSegments(int listener);
// The sequence number with which the client began; nullopt where the kernel has not kept it (a SYN cookie). Once for
// an accepted socket.
std::optional<uint32_t> FirstSequence(int fd);

// The kernel drops what comes beyond the first `bytes` of a connection, as a network does that loses it: the client
// sends it again, and it comes when the bound has been raised or lifted by then. What is let in may end one segment
// (64 KiB) beyond. False when the kernel does not take the bound.
bool BoundReceived(int fd, uint32_t first_sequence, int64_t bytes);
void LiftBound(int fd);

struct Traffic {
  int64_t received = 0;  // in order, read or not
  int64_t sent = 0;      // each byte once
  int64_t acked = 0;     // sent, and acknowledged by the client
  uint32_t answers = 0;  // segments with data that were sent
};
// nullopt: the descriptor is not a TCP socket.
std::optional<Traffic> TrafficOf(int fd);

// A number that no other socket of the machine has or had; 0: the descriptor is not a socket.
uint64_t CookieOf(int fd);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_RECEIVE_BOUND_H_
