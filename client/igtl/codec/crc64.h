// SPDX-License-Identifier: Apache-2.0
// The checksum of OpenIGTLink: CRC-64 of ECMA-182 (polynomial 0x42F0E1EBA9EA3693, most significant bit first, from 0,
// not inverted). Pure, thread-safe.
#ifndef INTRAWARP_CLIENT_IGTL_CODEC_CRC64_H_
#define INTRAWARP_CLIENT_IGTL_CODEC_CRC64_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace intrawarp::igtl {

// The checksum of the bytes before and these, where `crc` is the checksum of the bytes before; 0 at the beginning.
// Computed by carry-less multiplication where the processor has it.
uint64_t ExtendCrc64(uint64_t crc, absl::string_view bytes);
// The same without that instruction.
uint64_t ExtendCrc64ByTable(uint64_t crc, absl::string_view bytes);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CODEC_CRC64_H_
