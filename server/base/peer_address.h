// SPDX-License-Identifier: Apache-2.0
// PeerAddress: where the other side of a TCP connection is.
#ifndef INTRAWARP_SERVER_BASE_PEER_ADDRESS_H_
#define INTRAWARP_SERVER_BASE_PEER_ADDRESS_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace intrawarp::server {

struct PeerAddress {
  std::string host;  // numeric, in its canonical form; an IPv4 address that came as IPv6 is an IPv4 address
  int port = 0;

  bool operator==(const PeerAddress&) const = default;
};

// The other side of a connected socket; nullopt when it has gone.
std::optional<PeerAddress> PeerOf(int fd);
// The address in gRPC's words ("ipv4:127.0.0.1:50051", "ipv6:%5B::1%5D:50051"); nullopt when it is none of a TCP
// connection.
std::optional<PeerAddress> ParsePeer(absl::string_view peer);
// What one party can have many addresses of: the first 64 bits of an IPv6 address, else the address.
std::string NetworkOf(const PeerAddress& peer);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_PEER_ADDRESS_H_
