// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli, RFC 3720), the checksum of a chunk: by the processor's instruction where it has one, otherwise by
// table. Thread-safe functions.
#ifndef INTRAWARP_IO_FILE_CRC32C_H_
#define INTRAWARP_IO_FILE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace intrawarp::io {

// `crc` is the checksum of the bytes before these, 0 at the front.
uint32_t Crc32c(const void* data, size_t bytes, uint32_t crc = 0);

// Copies the bytes and answers the checksum of the copy, whatever else writes to `from` meanwhile; memory is read once.
uint32_t CopyWithCrc32c(void* to, const void* from, size_t bytes, uint32_t crc = 0);

// The checksum of a first and a second piece together, from those of each. Time: log(second_bytes).
uint32_t JoinCrc32c(uint32_t first, uint32_t second, size_t second_bytes);

// Crc32c without the instruction, for tests.
uint32_t Crc32cByTable(const void* data, size_t bytes, uint32_t crc = 0);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FILE_CRC32C_H_
