// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/dicom_text.h"

#include <cstdint>

#include "absl/strings/ascii.h"

namespace intrawarp::server {
namespace {

// The bytes of the character that begins the text, by RFC 3629; 0 when there is none.
size_t WellFormed(absl::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const bool is_overlong = first == 0xe0 && byte(1) < 0xa0;
    const bool is_surrogate = first == 0xed && byte(1) >= 0xa0;
    return follows(1) && follows(2) && !is_overlong && !is_surrogate ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const bool is_overlong = first == 0xf0 && byte(1) < 0x90;
    const bool is_beyond = first == 0xf4 && byte(1) >= 0x90;
    return follows(1) && follows(2) && follows(3) && !is_overlong && !is_beyond ? 4 : 0;
  }
  return 0;
}

// The next character, as UTF-8; takes its bytes off the text.
std::string TakeCharacter(absl::string_view& text, bool is_utf8, bool is_latin1) {
  const auto first = static_cast<uint8_t>(text[0]);
  const size_t size = is_utf8 ? WellFormed(text) : 1;
  std::string character(text.substr(0, size));
  text.remove_prefix(size == 0 ? 1 : size);
  if (first < 0x20 || first == 0x7f) return " ";
  if (first < 0x80) return character;
  // C1 controls, of which two bytes begin with 0xc2 in UTF-8.
  if (is_latin1 && first >= 0xa0) {
    return {static_cast<char>(0xc0 | first >> 6), static_cast<char>(0x80 | (first & 0x3f))};
  }
  const bool is_control = size == 2 && first == 0xc2 && static_cast<uint8_t>(character[1]) < 0xa0;
  return is_utf8 && size > 0 && !is_control ? character : "?";
}

}  // namespace

std::string ShownText(absl::string_view text, absl::string_view character_set) {
  const absl::string_view first_set = absl::StripAsciiWhitespace(character_set.substr(0, character_set.find('\\')));
  const bool is_utf8 = first_set == "ISO_IR 192";
  const bool is_latin1 = first_set == "ISO_IR 100" || first_set == "ISO 2022 IR 100";
  std::string shown;
  while (!text.empty()) {
    const std::string character = TakeCharacter(text, is_utf8, is_latin1);
    if (shown.size() + character.size() > kMaxTextBytes) break;
    shown += character;
  }
  return std::string(absl::StripAsciiWhitespace(shown));
}

}  // namespace intrawarp::server
