// SPDX-License-Identifier: Apache-2.0
// JPEG 2000 through OpenJPEG, which DCMTK does not have.
#ifndef INTRAWARP_IO_DICOM_JPEG2000_H_
#define INTRAWARP_IO_DICOM_JPEG2000_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace intrawarp::io::dicom {

struct Jpeg2000Image {
  int precision = 0;
  bool is_signed = false;
  std::vector<int32_t> samples;  // columns * rows
};

// A code stream or JP2 file of one component of exactly this size, which is checked before anything is decoded.
// INVALID_ARGUMENT "size: ..." or "photometric: ..."; DATA_LOSS "data: ..." for a corrupt or truncated stream.
// Thread-safe.
absl::StatusOr<Jpeg2000Image> DecodeJpeg2000(absl::Span<const uint8_t> stream, int columns, int rows);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_JPEG2000_H_
