// SPDX-License-Identifier: Apache-2.0
// Packet: what a browser gets in one piece, little-endian:
//
//   uint32  bytes after this word
//   uint32  bytes of the head
//   float64 the server's steady clock, s, when this packet was begun for this viewer
//   the head, JSON in UTF-8; its member "parts" lists [name, bytes] of what follows
//   each part, and the first one, at a multiple of 8 bytes from the beginning
//
// Immutable, so that all viewers share one. Thread-safe.
#ifndef INTRAWARP_SERVER_PAGE_PACKET_H_
#define INTRAWARP_SERVER_PAGE_PACKET_H_

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace intrawarp::server {

class Packet {
 public:
  // The bytes of a part, shared with whoever else reads them.
  struct Part {
    std::string name;
    std::shared_ptr<const std::string> bytes;
  };
  Packet(nlohmann::ordered_json head, std::vector<Part> parts);

  size_t bytes() const { return bytes_; }
  // Copies at most `most` bytes from `offset` on, for a viewer whose packet was begun at `now`. How many.
  size_t Read(double now, size_t offset, char* to, size_t most) const;

 private:
  std::string Prefix(double now) const;

  std::string head_;         // padded
  size_t head_bytes_ = 0;    // without the padding
  std::vector<Part> parts_;  // padded on the way
  size_t bytes_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PACKET_H_
