// SPDX-License-Identifier: Apache-2.0
// Big-endian numbers and fixed-width texts of OpenIGTLink messages, read within bounds and written.
//
// A ByteReader that is asked for more bytes than it has gives zeros and is not ok() from then on: a parser reads a
// whole record and asks once. Thread-compatible; the bytes outlive the reader.
#ifndef INTRAWARP_CLIENT_IGTL_CODEC_BYTES_H_
#define INTRAWARP_CLIENT_IGTL_CODEC_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace intrawarp::igtl {

class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  size_t remaining() const { return rest_.size(); }

  uint8_t Uint8() { return static_cast<uint8_t>(Number(1)); }
  uint16_t Uint16() { return static_cast<uint16_t>(Number(2)); }
  uint32_t Uint32() { return static_cast<uint32_t>(Number(4)); }
  uint64_t Uint64() { return Number(8); }
  float Float() { return std::bit_cast<float>(Uint32()); }

  // Exactly `size` bytes, or none.
  absl::string_view Raw(size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  // A field of `size` bytes that ends at its first NUL, if it has one.
  std::string Text(size_t size) {
    const absl::string_view field = Raw(size);
    return std::string(field.substr(0, field.find('\0')));
  }

 private:
  uint64_t Number(size_t size) {
    uint64_t value = 0;
    for (const char c : Raw(size)) value = value << 8 | static_cast<uint8_t>(c);
    return value;
  }

  absl::string_view rest_;
  bool ok_ = true;
};

class ByteWriter {
 public:
  void Uint8(uint8_t value) { Number(value, 1); }
  void Uint16(uint16_t value) { Number(value, 2); }
  void Uint32(uint32_t value) { Number(value, 4); }
  void Uint64(uint64_t value) { Number(value, 8); }
  void Float(float value) { Uint32(std::bit_cast<uint32_t>(value)); }
  void Raw(absl::string_view bytes) { bytes_.append(bytes.data(), bytes.size()); }
  // Cut to `size` bytes, or padded with NULs.
  void Text(absl::string_view text, size_t size) {
    text = text.substr(0, size);
    Raw(text);
    bytes_.append(size - text.size(), '\0');
  }

  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  void Number(uint64_t value, int size) {
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) bytes_.push_back(static_cast<char>(value >> shift));
  }

  std::string bytes_;
};

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CODEC_BYTES_H_
