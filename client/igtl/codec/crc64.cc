// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/crc64.h"

#include <array>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

#if defined(__x86_64__)
// Folding by carry-less multiplication (Gopal et al., 2009). A block of 128 bits is a polynomial, its first bit the
// highest. A block that lies n bits before another one is added to it as high * (x^(n+64) mod P) + low * (x^n mod P):
// the remainder modulo P stays the same.
constexpr size_t kBlock = 16;
constexpr size_t kLanes = 4;

constexpr uint64_t PowerOfX(int n) {
  uint64_t power = 1;
  for (; n > 0; --n) power = power << 1 ^ ((power >> 63) != 0 ? kPolynomial : 0);
  return power;
}

[[gnu::target("pclmul,ssse3")]] __m128i Factors(uint64_t high, uint64_t low) {
  return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}

[[gnu::target("pclmul,ssse3")]] __m128i LoadBlock(const char* bytes) {
  const __m128i reversed = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)), reversed);
}

[[gnu::target("pclmul,ssse3")]] __m128i Fold(__m128i block, __m128i factors, __m128i onto) {
  const __m128i high = _mm_clmulepi64_si128(block, factors, 0x11);
  const __m128i low = _mm_clmulepi64_si128(block, factors, 0x00);
  return _mm_xor_si128(_mm_xor_si128(high, low), onto);
}

// Whole blocks, kLanes of them at least.
[[gnu::target("pclmul,ssse3")]] uint64_t ByMultiplication(uint64_t crc, absl::string_view bytes) {
  constexpr uint64_t kFarHigh = PowerOfX(128 * kLanes + 64), kFarLow = PowerOfX(128 * kLanes);
  constexpr uint64_t kNearHigh = PowerOfX(128 + 64), kNearLow = PowerOfX(128);
  const char* at = bytes.data();
  size_t left = bytes.size();
  __m128i lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = LoadBlock(at + kBlock * i);
  // The bytes before are as many bits further on as the checksum has.
  lanes[0] = _mm_xor_si128(lanes[0], Factors(crc, 0));
  const __m128i far = Factors(kFarHigh, kFarLow);
  for (at += kLanes * kBlock, left -= kLanes * kBlock; left >= kLanes * kBlock;
       at += kLanes * kBlock, left -= kLanes * kBlock) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = Fold(lanes[i], far, LoadBlock(at + kBlock * i));
  }
  const __m128i near = Factors(kNearHigh, kNearLow);
  __m128i block = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) block = Fold(block, near, lanes[i]);
  for (; left > 0; at += kBlock, left -= kBlock) block = Fold(block, near, LoadBlock(at));
  // The last block is a message of the same remainder.
  char rest[kBlock];
  const __m128i reversed = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest), _mm_shuffle_epi8(block, reversed));
  return ExtendCrc64ByTable(0, absl::string_view(rest, kBlock));
}

bool HasMultiplication() {
  static const bool has = __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("ssse3") != 0;
  return has;
}
#endif

}  // namespace

uint64_t ExtendCrc64ByTable(uint64_t crc, absl::string_view bytes) {
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

uint64_t ExtendCrc64(uint64_t crc, absl::string_view bytes) {
#if defined(__x86_64__)
  if (bytes.size() >= kLanes * kBlock && HasMultiplication()) {
    const size_t whole = bytes.size() / kBlock * kBlock;
    crc = ByMultiplication(crc, bytes.substr(0, whole));
    bytes.remove_prefix(whole);
  }
#endif
  return ExtendCrc64ByTable(crc, bytes);
}

}  // namespace intrawarp::igtl
