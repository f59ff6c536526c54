// SPDX-License-Identifier: Apache-2.0
#include "io/file/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace intrawarp::io {
namespace {

// Read twice while it is in the nearest cache.
constexpr size_t kCopied = 3 * 4096;

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

// kTables[k][b]: the checksum state of byte b followed by k zero bytes (slicing by eight).
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = state;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

// Polynomials over GF(2) modulo kPolynomial; bit 31 is x^0.
constexpr uint32_t kOne = uint32_t{1} << 31, kByte = kOne >> 8;

constexpr uint32_t Product(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if ((a >> bit & 1) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

#if defined(__x86_64__)
// The instruction takes three cycles and starts every cycle: three independent blocks keep it busy. Their checksums
// make one by "appending" the later blocks' length in zero bytes, which is linear in the state: a table a byte of it
// (the method of Adler's crc32c.c, zlib licence).
constexpr size_t kBlock = 4096;

using ZerosTable = std::array<std::array<uint32_t, 256>, 4>;

// The state after `state` and `bytes` zero bytes.
constexpr uint32_t AppendZeros(uint32_t state, size_t bytes) {
  for (; bytes > 0; --bytes) state = (state >> 8) ^ kTables[0][state & 0xff];
  return state;
}

constexpr ZerosTable MakeZerosTable(size_t bytes) {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < of_bit.size(); ++bit) of_bit[bit] = AppendZeros(uint32_t{1} << bit, bytes);
  ZerosTable table{};
  for (size_t byte = 0; byte < table.size(); ++byte) {
    for (uint32_t value = 0; value < 256; ++value) {
      for (size_t bit = 0; bit < 8; ++bit) table[byte][value] ^= (value >> bit & 1) != 0 ? of_bit[8 * byte + bit] : 0;
    }
  }
  return table;
}

const ZerosTable& BlockOfZeros() {
  static const ZerosTable table = MakeZerosTable(kBlock);
  return table;
}

uint32_t Append(const ZerosTable& zeros, uint32_t state) {
  return zeros[0][state & 0xff] ^ zeros[1][state >> 8 & 0xff] ^ zeros[2][state >> 16 & 0xff] ^ zeros[3][state >> 24];
}

uint64_t Word(const unsigned char* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

// Three blocks.
__attribute__((target("sse4.2"))) uint32_t ThreeBlocks(const ZerosTable& zeros, const unsigned char* data,
                                                       uint32_t state) {
  uint64_t first = state, second = 0, third = 0;
  for (size_t i = 0; i < kBlock; i += sizeof(uint64_t)) {
    first = _mm_crc32_u64(first, Word(data + i));
    second = _mm_crc32_u64(second, Word(data + kBlock + i));
    third = _mm_crc32_u64(third, Word(data + 2 * kBlock + i));
  }
  const uint32_t both = Append(zeros, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  return Append(zeros, both) ^ static_cast<uint32_t>(third);
}

__attribute__((target("sse4.2"))) uint32_t ByInstruction(const unsigned char* data, size_t bytes, uint32_t crc) {
  const ZerosTable& zeros = BlockOfZeros();
  uint32_t state = ~crc;
  for (; bytes >= 3 * kBlock; data += 3 * kBlock, bytes -= 3 * kBlock) state = ThreeBlocks(zeros, data, state);
  uint64_t wide = state;
  for (; bytes >= 8; data += 8, bytes -= 8) wide = _mm_crc32_u64(wide, Word(data));
  state = static_cast<uint32_t>(wide);
  for (; bytes > 0; ++data, --bytes) state = _mm_crc32_u8(state, *data);
  return ~state;
}

bool HasInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#endif

}  // namespace

uint32_t Crc32cByTable(const void* data, size_t bytes, uint32_t crc) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t state = ~crc;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint32_t next = 0;
    for (int i = 0; i < 4; ++i) next ^= kTables[7 - i][at[i] ^ ((state >> (8 * i)) & 0xff)];
    for (int i = 4; i < 8; ++i) next ^= kTables[7 - i][at[i]];
    state = next;
  }
  for (; bytes > 0; ++at, --bytes) state = (state >> 8) ^ kTables[0][(state ^ *at) & 0xff];
  return ~state;
}

uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc) {
#if defined(__x86_64__)
  if (HasInstruction()) return ByInstruction(static_cast<const unsigned char*>(data), bytes, crc);
#endif
  return Crc32cByTable(data, bytes, crc);
}

uint32_t CopyWithCrc32c(void* to, const void* from, size_t bytes, uint32_t crc) {
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  while (bytes > 0) {
    const size_t part = std::min(bytes, kCopied);
    std::memcpy(out, in, part);
    crc = Crc32c(out, part, crc);
    in += part;
    out += part;
    bytes -= part;
  }
  return crc;
}

// A state that `bytes` zero bytes follow is multiplied by x^(8 bytes).
uint32_t JoinCrc32c(uint32_t first, uint32_t second, size_t second_bytes) {
  uint32_t factor = kOne;
  for (uint32_t power = kByte; second_bytes > 0; second_bytes >>= 1, power = Product(power, power)) {
    if ((second_bytes & 1) != 0) factor = Product(factor, power);
  }
  return Product(factor, first) ^ second;
}

}  // namespace intrawarp::io
