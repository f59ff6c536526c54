// SPDX-License-Identifier: Apache-2.0
// ServerSet: which of several servers a key belongs to, and which follow when that one fails. Rendezvous hashing
// (highest random weight, Thaler and Ravishankar 1998): the weight of a server for a key is the first 8 bytes,
// big-endian, of SHA-256(address + "\n" + key), and the order is that of falling weight. All clients that are given the
// same addresses agree without asking each other. A server that comes or goes moves only the keys that it owns, one
// part in as many as there are servers; the order of the others stays.
//
// Immutable, so thread-safe.
#ifndef INTRAWARP_CLIENT_CPP_SERVER_SET_H_
#define INTRAWARP_CLIENT_CPP_SERVER_SET_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace intrawarp::client {

class ServerSet {
 public:
  // An address that is there twice counts once. Addresses are compared as text.
  explicit ServerSet(std::vector<std::string> addresses);

  // Sorted.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // All addresses; the first one owns the key.
  std::vector<std::string> Order(absl::string_view key) const;

 private:
  std::vector<std::string> addresses_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_SERVER_SET_H_
