// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/crc64.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace intrawarp::igtl {
namespace {

constexpr uint64_t kPolynomial = 0x42F0E1EBA9EA3693u;
constexpr size_t kSlices = 16;

using Table = std::array<uint64_t, 256>;

// tables[k][b]: the checksum of the byte b followed by k zero bytes.
constexpr std::array<Table, kSlices> MakeTables() {
  std::array<Table, kSlices> tables{};
  for (uint64_t b = 0; b < 256; ++b) {
    uint64_t crc = b << 56;
    for (int bit = 0; bit < 8; ++bit) crc = crc << 1 ^ ((crc >> 63) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < kSlices; ++k) {
    for (size_t b = 0; b < 256; ++b) {
      const uint64_t before = tables[k - 1][b];
      tables[k][b] = before << 8 ^ tables[0][before >> 56];
    }
  }
  return tables;
}

constexpr std::array<Table, kSlices> kTables = MakeTables();

uint64_t LoadBigEndian(const char* bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return __builtin_bswap64(value);
}

}  // namespace

uint64_t ExtendCrc64(uint64_t crc, absl::string_view bytes) {
  const char* at = bytes.data();
  size_t left = bytes.size();
  // Slicing by 16 (Kounavis and Berry, 2008): as many table look-ups a byte, but independent of each other.
  for (; left >= kSlices; left -= kSlices, at += kSlices) {
    const uint64_t high = crc ^ LoadBigEndian(at);
    const uint64_t low = LoadBigEndian(at + 8);
    crc = 0;
    for (size_t i = 0; i < 8; ++i) {
      crc ^= kTables[15 - i][high >> (56 - 8 * i) & 0xff] ^ kTables[7 - i][low >> (56 - 8 * i) & 0xff];
    }
  }
  for (; left > 0; --left, ++at) crc = crc << 8 ^ kTables[0][crc >> 56 ^ static_cast<uint8_t>(*at)];
  return crc;
}

}  // namespace intrawarp::igtl
