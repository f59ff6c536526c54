// SPDX-License-Identifier: Apache-2.0
// One picture of a registration, for a person to judge it by.
//
// Above: the verdict with its reasons, as they are given. Rows: slices of the fixed grid, axial, coronal and sagittal
// (one row for a 2-D image), each shown as the patient's axes lie nearest: patient's right on the left, front and head
// up. Their place, and what a thin stack is stretched by, stands on their left. Pixels are square in millimetres where
// nothing is stretched. The slices go through `at`, or through the place where the largest error above the limit is
// predicted, or through the middle; dotted lines in the fixed image show the other two. An image without an orientation
// has the names of its own axes instead of the patient's.
//
// Columns: the fixed image; the moving image where its header puts it; the moving image through T (warped); a
// checkerboard of fixed and warped, slightly orange and blue; before and after registration, the difference (orange
// where the fixed image is brighter, blue where the other one is) of images of like intensities, or else the contours
// of the fixed image on the other one; the predicted error, block by block; and the fixed image under the lines that T
// maps to a regular grid, coloured by the length of the displacement. A legend explains the colours (colormap.h), none
// of which depends on telling red from green. A panel stays empty where there is no moving image, and no difference
// counts there.
//
// Images of like intensities share one window, so that equal values look alike and have no difference.
#ifndef INTRAWARP_IO_PICTURE_MONTAGE_H_
#define INTRAWARP_IO_PICTURE_MONTAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"
#include "io/format/nifti.h"
#include "io/picture/png.h"

namespace intrawarp::io {

// Intensities on the host; values that are not finite are shown as background.
struct HostImage {
  Geometry geometry;
  std::vector<float> values;  // geometry.voxels()
  // False: the axes are not known to be the patient's.
  bool has_orientation = true;
};

// The predicted error, block by block.
struct ErrorBlocks {
  Geometry geometry;
  std::vector<float> expected_mm;  // geometry.voxels(); NaN where the error was not judged
  double limit_mm = 5;             // an error above it is large
};

// The tissue that only one image shows, node by node.
struct MissingNodes {
  Geometry geometry;
  std::vector<uint8_t> nodes;  // geometry.voxels(); 1 where tissue is missing
};

// How the intensities of two images compare. kSame: the same tissue has the same value. kScaled: but for a gain above 0
// and an offset. kOther: anything else, as of unlike modalities.
enum class IntensityRelation { kSame, kScaled, kOther };

struct MontageOptions {
  int panel_pixels = 256;  // the longest side of a slice; 64 to 1024
  // Unset: decided by the images.
  std::optional<IntensityRelation> relation = {};
  std::optional<ErrorBlocks> error = {};
  // Hatched in the panels of the fixed image and of the error. Unset: nobody looked, or nothing is missing.
  std::optional<MissingNodes> missing = {};
  // Where the slices go through, LPS mm; must be finite, and is brought into the image.
  std::optional<Vec3d> at = {};
  // The heading ("Verdict: review") and what stands below it; empty: nothing. A heading that is not good is orange.
  std::string heading = {};
  bool is_good = true;
  std::vector<std::string> remarks = {};
  // The last line: program, time.
  std::string footer = {};
};

enum class MontageColumn { kFixed, kMoving, kWarped, kCheckerboard, kBefore, kAfter, kError, kGrid };

// Where a panel lies in the picture, pixels.
struct MontagePanel {
  MontageColumn column = MontageColumn::kFixed;
  int row = 0;
  int left = 0, top = 0, width = 0, height = 0;
};

// `warped` and `field` lie on the fixed grid. INVALID_ARGUMENT, beginning "fixed: ", "moving: ", "warped: ", "field: ",
// "error: ", "missing: ", "at: " or "panel_pixels: ", when something does not fit. `panels` (may be null) gets the
// place of each panel. Deterministic, thread-safe.
absl::StatusOr<Picture> RenderMontage(const HostImage& fixed, const HostImage& moving, const HostImage& warped,
                                      const HostField& field, const MontageOptions& options = {},
                                      std::vector<MontagePanel>* panels = nullptr);

// The intensities shown as black and white: around the median, by the spread of the foreground.
struct IntensityWindow {
  float low = 0, high = 1;
};
IntensityWindow FindWindow(const std::vector<float>& values);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_PICTURE_MONTAGE_H_
