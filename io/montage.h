// SPDX-License-Identifier: Apache-2.0
// One picture of a registration, for a person to judge it by.
//
// Rows: the middle slices of the fixed grid, axial, coronal and sagittal (one row for a 2-D image), each shown as the
// patient's axes lie nearest: patient's right on the left, front and head up. Pixels are square in millimetres.
//
// Columns: fixed; warped; a checkerboard of both, the fixed squares tinted orange and the warped ones blue; the
// difference before (the moving image where its header puts it) and after, orange where the fixed image is brighter and
// blue where the other one is; and the fixed image under the lines that T maps to a regular grid, coloured by the
// length of the displacement. A legend below explains the colours (colormap.h), none of which depends on telling red
// from green. A panel stays empty where there is no moving image, and the difference does not count there.
#ifndef INTRAWARP_IO_MONTAGE_H_
#define INTRAWARP_IO_MONTAGE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"
#include "io/nifti.h"
#include "io/png.h"

namespace intrawarp::io {

// Intensities on the host; values that are not finite are shown as background.
struct HostImage {
  Geometry geometry;
  std::vector<float> values;  // geometry.voxels()
};

struct MontageOptions {
  int panel_pixels = 256;  // the longest side of a slice; 64 to 1024
};

// `warped` and `field` lie on the fixed grid. INVALID_ARGUMENT, beginning "fixed: ", "moving: ", "warped: ", "field: "
// or "panel_pixels: ", when something does not fit. Deterministic, thread-safe.
absl::StatusOr<Picture> RenderMontage(const HostImage& fixed, const HostImage& moving, const HostImage& warped,
                                      const HostField& field, const MontageOptions& options = {});

// The intensities shown as black and white: around the median, by the spread of the foreground.
struct IntensityWindow {
  float low = 0, high = 1;
};
IntensityWindow FindWindow(const std::vector<float>& values);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_MONTAGE_H_
