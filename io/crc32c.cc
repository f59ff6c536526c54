// SPDX-License-Identifier: Apache-2.0
#include "io/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace intrawarp::io {
namespace {

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

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ByInstruction(const unsigned char* data, size_t bytes, uint32_t crc) {
  uint64_t state = ~crc;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, data, sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  auto rest = static_cast<uint32_t>(state);
  for (; bytes > 0; ++data, --bytes) rest = _mm_crc32_u8(rest, *data);
  return ~rest;
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

}  // namespace intrawarp::io
