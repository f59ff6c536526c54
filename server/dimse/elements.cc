// SPDX-License-Identifier: Apache-2.0
#include "server/dimse/elements.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace intrawarp::dimse {
namespace {

absl::Status Wrong(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat("elements: ", why)); }

uint32_t Get(absl::string_view bytes, int count) {
  uint32_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  return value;
}

void Put(uint32_t value, int count, std::string& to) {
  for (int i = 0; i < count; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

}  // namespace

absl::StatusOr<Elements> Elements::Parse(absl::string_view bytes) {
  Elements elements;
  Tag last = 0;
  bool is_first = true;
  while (!bytes.empty()) {
    if (bytes.size() < 8) return Wrong("an element is cut");
    const Tag tag = Get(bytes, 2) << 16 | Get(bytes.substr(2), 2);
    const size_t size = Get(bytes.substr(4), 4);
    if (size > bytes.size() - 8) return Wrong("an element is longer than what holds it");
    if (!is_first && tag <= last) return Wrong("tags do not ascend");
    elements.values_[tag] = std::string(bytes.substr(8, size));
    bytes.remove_prefix(8 + size);
    last = tag;
    is_first = false;
  }
  return elements;
}

void Elements::SetText(Tag tag, absl::string_view text, char pad) {
  std::string value(text);
  if (value.size() % 2 != 0) value.push_back(pad);
  values_[tag] = std::move(value);
}

void Elements::Set16(Tag tag, uint16_t value) {
  std::string bytes;
  Put(value, 2, bytes);
  values_[tag] = std::move(bytes);
}

std::string Elements::Text(Tag tag) const {
  const auto it = values_.find(tag);
  if (it == values_.end()) return "";
  absl::string_view text = it->second;
  while (!text.empty() && (text.back() == ' ' || text.back() == '\0')) text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return std::string(text);
}

std::optional<uint16_t> Elements::Get16(Tag tag) const {
  const auto it = values_.find(tag);
  if (it == values_.end() || it->second.size() != 2) return std::nullopt;
  return static_cast<uint16_t>(Get(it->second, 2));
}

std::string Elements::Encode() const {
  std::string bytes;
  for (const auto& [tag, value] : values_) {
    Put(tag >> 16, 2, bytes);
    Put(tag & 0xffff, 2, bytes);
    Put(static_cast<uint32_t>(value.size()), 4, bytes);
    bytes += value;
  }
  return bytes;
}

}  // namespace intrawarp::dimse
