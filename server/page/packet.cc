// SPDX-License-Identifier: Apache-2.0
#include "server/page/packet.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "server/page/page_json.h"

namespace intrawarp::server {
namespace {

constexpr size_t kPrefixBytes = 16;
constexpr size_t kAlignment = 8;

size_t Padded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Reads pieces of a text that is never whole in memory.
class Window {
 public:
  Window(size_t offset, char* to, size_t most) : offset_(offset), to_(to), left_(most) {}
  // The next piece of the text, which is followed by zeros up to `padded` bytes.
  void Add(const char* from, size_t bytes, size_t padded) {
    const size_t begin = std::max(offset_, at_);
    const size_t end = std::min(offset_ + taken_ + left_, at_ + padded);
    for (size_t i = std::max(begin, offset_ + taken_); i < end;) {
      const size_t place = i - at_;
      const size_t count = place < bytes ? std::min(bytes, end - at_) - place : end - i;
      place < bytes ? void(std::memcpy(to_ + taken_, from + place, count)) : void(std::memset(to_ + taken_, 0, count));
      taken_ += count;
      left_ -= count;
      i += count;
    }
    at_ += padded;
  }
  size_t taken() const { return taken_; }

 private:
  const size_t offset_;
  char* const to_;
  size_t left_;
  size_t taken_ = 0;
  size_t at_ = 0;  // of the text that was added
};

}  // namespace

Packet::Packet(nlohmann::ordered_json head, std::vector<Part> parts) : parts_(std::move(parts)) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Part& part : parts_) list.push_back({part.name, part.bytes->size()});
  head["parts"] = std::move(list);
  head_ = JsonText(head);
  head_bytes_ = head_.size();
  bytes_ = Padded(kPrefixBytes + head_bytes_);
  for (const Part& part : parts_) bytes_ += Padded(part.bytes->size());
}

std::string Packet::Prefix(double now) const {
  std::string prefix(kPrefixBytes, '\0');
  const auto rest = static_cast<uint32_t>(bytes_ - sizeof(uint32_t));
  const auto head = static_cast<uint32_t>(head_bytes_);
  std::memcpy(prefix.data(), &rest, sizeof(rest));
  std::memcpy(prefix.data() + 4, &head, sizeof(head));
  std::memcpy(prefix.data() + 8, &now, sizeof(now));
  return prefix;
}

size_t Packet::Read(double now, size_t offset, char* to, size_t most) const {
  Window window(offset, to, most);
  const std::string prefix = Prefix(now);
  window.Add(prefix.data(), kPrefixBytes, kPrefixBytes);
  window.Add(head_.data(), head_bytes_, Padded(kPrefixBytes + head_bytes_) - kPrefixBytes);
  for (const Part& part : parts_) window.Add(part.bytes->data(), part.bytes->size(), Padded(part.bytes->size()));
  return window.taken();
}

}  // namespace intrawarp::server
