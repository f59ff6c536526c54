// SPDX-License-Identifier: Apache-2.0
// RLE frames (PS3.5, annex G). DCMTK's decoder trusts the offsets in a frame's header and reads beyond its bytes.
#ifndef INTRAWARP_IO_DICOM_RLE_H_
#define INTRAWARP_IO_DICOM_RLE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace intrawarp::io::dicom {

// Fills `cells`, whose size is a multiple of `bytes_per_cell`, with the cells of a frame in the host's order of bytes.
// DATA_LOSS "data: ..." for a header that is not that of such a frame, and for too few bytes. Thread-safe.
absl::Status DecodeRle(absl::Span<const uint8_t> stream, int bytes_per_cell, absl::Span<uint8_t> cells);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_RLE_H_
