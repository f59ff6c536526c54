// SPDX-License-Identifier: Apache-2.0
// A mask as a DICOM Segmentation: binary, one segment, all planes of its grid.
#ifndef INTRAWARP_IO_DICOM_SEGMENTATION_OUT_H_
#define INTRAWARP_IO_DICOM_SEGMENTATION_OUT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/geometry/geometry.h"
#include "io/dicom/reference.h"

namespace intrawarp::io {

// `mask` lies on `grid`, x fastest, and holds 0 and 1. The object has the patient, study and frame of reference of
// `fixed`, and each plane refers to the fixed image at its place. With `source`, a segment of a segmentation, its
// label, codes and colour are copied; without, the segment is a tissue that is called "Mask". Empty planes are written,
// too, so that the mask comes back on the grid of the images.
//
// INVALID_ARGUMENT "mask: ..." for other values or another number than the grid has voxels, "patient: ..." for a source
// of another patient, "grid: ..." as in object.h; otherwise as AtomicFile. Thread-safe.
absl::Status WriteDicomSegmentation(const std::string& path, const Geometry& grid, absl::Span<const float> mask,
                                    const DicomReference& fixed, const DicomReference* source,
                                    const DicomStamp& stamp = {});

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_DICOM_SEGMENTATION_OUT_H_
