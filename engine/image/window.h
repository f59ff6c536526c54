// SPDX-License-Identifier: Apache-2.0
// The intensities of an image without its artefacts: values that fill what was not imaged, and a few extreme voxels.
//
// A registration sees an image through its window. Two kinds of values would otherwise decide it although they say
// nothing of tissue:
//   fill      One constant, the image's minimum or maximum, in at least half of its corners: the padding outside a
//             scanner's circle (-2000, -3024 or -32768 around air at -1000), the 1e30 of a resampling tool. A constant
//             is a fill when it is absurd (1000 times the magnitude of the others) or when it is a step next to the
//             image's own background: its neighbours lie at the end of the other values, as a fifth of these do, and
//             the constant lies a quarter of their range beyond. It is replaced by the median of its neighbours.
//   extremes  Values that lie beyond the central 96 % of the others by more than 6 times the range of these: metal,
//             electrodes. They are clamped to half of such a range beyond, if the central values have structure of
//             their own: the same numbers describe a small object in noise, which is all that such an image shows.
//             Where at most one value in 200 lies a whole such range beyond, and the central values have structure over
//             several voxels, the thin objects among those (needles, rods, wires) are painted over with what lies
//             around them (inpaint.h): a bright line would be brought to lie on another, or on a vessel, although
//             instruments move by themselves. The vessels of an angiogram are more than that, or lie in smooth noise.
// An image with neither has no window, and is used as it is, bit for bit.
//
// Plain values and functions of the host; thread-compatible.
#ifndef INTRAWARP_ENGINE_IMAGE_WINDOW_H_
#define INTRAWARP_ENGINE_IMAGE_WINDOW_H_

#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// What a registration sees of an intensity v: `fill_becomes` where v is `fill`, otherwise v clamped to low ... high.
// Voxels of thin objects below paint_below or above paint_above become what lies around them.
struct IntensityWindow {
  float low = 0;
  float high = 0;
  // NaN, which equals no value, where there is no fill.
  float fill = 0;
  float fill_becomes = 0;
  float paint_below = -std::numeric_limits<float>::infinity();
  float paint_above = std::numeric_limits<float>::infinity();

  bool paints() const { return std::isfinite(paint_below) || std::isfinite(paint_above); }
};

// Values of an image at places that depend on its size only.
struct IntensitySamples {
  // At most kIntensitySamples, spread over the volume, and to each its neighbour along x (itself at the end of a row)
  // and the voxel kDistantVoxels along x (the last of the row where that is nearer).
  std::vector<float> values;
  std::vector<float> neighbours;
  std::vector<float> distant;
  // Four for a 2-D image, otherwise eight.
  std::vector<float> corners;
};
inline constexpr int kIntensitySamples = 8192;
inline constexpr int kDistantVoxels = 8;

// The window of an image of finite values between `minimum` and `maximum`; absent where it needs none.
std::optional<IntensityWindow> FindWindow(const IntensitySamples& samples, float minimum, float maximum);

// out = `in` through the window; `out` may be `in`. Stream-ordered.
absl::Status ApplyWindow(const ExecContext& ctx, const IntensityWindow& window, ConstVolumeView in, VolumeView out);
// The bytes that ApplyWindow takes from the arena at most, and with `window`: 0 unless it paints.
size_t ApplyWindowWorkspaceBytes(const Geometry& geometry);
size_t ApplyWindowWorkspaceBytes(const IntensityWindow& window, const Geometry& geometry);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_WINDOW_H_
