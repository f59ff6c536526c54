// SPDX-License-Identifier: Apache-2.0
// From the target of a client to the servers that it names. Thread-safe functions, plain values.
#ifndef INTRAWARP_CLIENT_CPP_SERVER_NAMES_H_
#define INTRAWARP_CLIENT_CPP_SERVER_NAMES_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::client {

// What a target names. Several servers are
//   A:1,B:2               names or addresses with their ports, separated by commas
//   ipv4:A:1,B:2          addresses, also with "ipv4:///", and likewise "ipv6:[A]:1,[B]:2"
//   dns:///NAME:PORT      every address that NAME resolves to, the IPv4 ones where there are any (dns:NAME:PORT, too)
// Everything else is one server, which gRPC looks for by itself.
struct ServerNames {
  // One target of gRPC each, at least one; empty for a name that is to be resolved.
  std::vector<std::string> targets;
  // HOST:PORT of dns:///, which is also what a certificate must name; otherwise empty.
  std::string dns_name;
};

// INVALID_ARGUMENT (target) for a list with an empty place, a port that is missing or none, or more than 256 servers.
absl::StatusOr<ServerNames> ParseServerNames(const std::string& target);

// The targets "ipv4:A:PORT" or "ipv6:[A]:PORT" of HOST:PORT, in no particular order. UNAVAILABLE for a name that has no
// address, DEADLINE_EXCEEDED when the resolver did not answer in time; its thread then ends by itself later.
absl::StatusOr<std::vector<std::string>> Resolve(const std::string& dns_name, std::chrono::milliseconds timeout);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_SERVER_NAMES_H_
