// SPDX-License-Identifier: Apache-2.0
// Siemens mosaics: the slices of a volume as tiles of one image, row by row, described by a private "CSA" header.
// The layout of that header is described in the documentation of nibabel ("Siemens CSA header").
#ifndef INTRAWARP_IO_DICOM_MOSAIC_H_
#define INTRAWARP_IO_DICOM_MOSAIC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/geometry/vec.h"

namespace intrawarp::io::dicom {

struct CsaMosaic {
  int images = 0;  // 0: not a mosaic
  // The direction from each tile to the next one, LPS.
  Vec3d slice_normal;
};

// From the value of CSAImageHeaderInfo. INVALID_ARGUMENT "mosaic: ..." for a header that is not well-formed.
// Thread-safe.
absl::StatusOr<CsaMosaic> ParseCsaMosaic(absl::Span<const uint8_t> header);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_MOSAIC_H_
