// SPDX-License-Identifier: Apache-2.0
// Averaging pyramid for volumes of any size, and the prepared form in which an image takes part in a registration.
#ifndef INTRAWARP_ENGINE_IMAGE_PYRAMID_H_
#define INTRAWARP_ENGINE_IMAGE_PYRAMID_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/pixel_type.h"
#include "engine/device/exec_context.h"
#include "engine/image/statistics.h"
#include "engine/image/volume.h"
#include "engine/image/window.h"

namespace intrawarp {

// The grids of a pyramid, finest first. From one level to the next an axis of n voxels becomes floor(n / 2) voxels over
// the same domain (so an odd axis is divided exactly, none of it dropped), if that leaves 8 or more and the axis is not
// much coarser than the finest halvable one (its spacing is below 1.5 times that one's). Ends when no axis can be
// halved.
std::vector<Geometry> PyramidGeometries(const Geometry& finest);

// out voxel = mean of `in` over the out voxel's box (Tramnitzke 2014, eq. 12; registration/methods/affine.h has the
// title), for any size: both grids share their domain, and an in voxel cut by a box counts by the part inside.
// Stream-ordered.
absl::Status Downsample(const ExecContext& ctx, ConstVolumeView in, VolumeView out);
// As Downsample; an out voxel counts when at least half of its box does. Its byte is 1, or, of weights (`out` has the
// weight_per_unit of `in`), their mean over the part of the box that counts.
absl::Status DownsampleMask(const ExecContext& ctx, ConstMaskView in, MaskView out);

struct PyramidLevel {
  ConstVolumeView volume;
  // Mean gradient magnitude, intensity per mm: the edge parameter of NGF.
  double mean_gradient = 0;
};

// The form of the finest level of an image that has a window (window.h).
enum class FinestLevel {
  // As it came: for an image that is also downloaded or warped.
  kAsItCame,
  // Through the window: for an image that is only registered.
  kThroughWindow,
};

// An image on the device, prepared for registration: float32 voxels, their pyramid, their statistics. Immutable once
// made, and then safe to read from several threads and streams. The coarser levels, the statistics and the gradients
// are those of the image through its window.
class PreparedImage {
 public:
  // Device memory that a prepared image of this grid takes, and the workspace that Prepare needs.
  static int64_t Bytes(const Geometry& geometry);
  static int64_t WorkspaceBytes(const Geometry& geometry, PixelType type);

  // From pixels in host memory (pinned for speed): uploads, converts, checks and builds the pyramid. Memory comes from
  // the device, in the order of ctx.stream(); waits for the stream. INVALID_ARGUMENT ("voxels: ...") when a voxel is
  // NaN or infinite after conversion.
  static absl::StatusOr<PreparedImage> Prepare(const ExecContext& ctx, const void* pixels, PixelType type, double slope,
                                               double intercept, const Geometry& geometry,
                                               FinestLevel finest = FinestLevel::kAsItCame);

  // `image` as a registration sees it: its finest level lies in the arena where the image has a window that this level
  // is not yet seen through, and everything else is the memory of `image`. Valid while both live. Stream-ordered.
  static absl::StatusOr<PreparedImage> ThroughWindow(const ExecContext& ctx, const PreparedImage& image);
  // What ThroughWindow takes from the arena: 0 for most images.
  int64_t WindowWorkspaceBytes() const;

  // This image in other memory, perhaps of another device, which holds or will hold a copy of its Bytes() from
  // volume().data on. In an empty buffer: the image without its voxels, whose data are null.
  PreparedImage In(Buffer memory) const;

  const Geometry& geometry() const { return levels_.front().volume.geometry; }
  ConstVolumeView volume() const { return levels_.front().volume; }
  // Finest first.
  const std::vector<PyramidLevel>& levels() const { return levels_; }
  const VolumeStatistics& statistics() const { return statistics_; }
  // The range of the voxels as they came.
  float minimum() const { return minimum_; }
  float maximum() const { return maximum_; }
  // The window that the finest level is still to be seen through; absent for most images.
  const std::optional<IntensityWindow>& window() const { return window_; }

 private:
  Buffer memory_;
  std::vector<PyramidLevel> levels_;
  VolumeStatistics statistics_;
  float minimum_ = 0;
  float maximum_ = 0;
  std::optional<IntensityWindow> window_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_PYRAMID_H_
