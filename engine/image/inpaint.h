// SPDX-License-Identifier: Apache-2.0
// Thin objects of extreme intensity (needles, rods, wires, blades, clips) painted over with what lies around them.
//
// An extreme is a voxel below or above given limits. Extremes that a box of 2 r + 1 voxels along each axis fits into
// are a thick object, and stay; r is kThinMm / 2 in voxels of the axis, 1 to 3 (0 along an axis of one voxel), so that
// boxes are at least 12 mm wide with voxels of 4 mm and 7 mm wide with voxels of 1 mm. At the faces of the grid a box
// is cut. All other extremes are thin. They and the voxels that share a face with them, which are blends with them,
// become the mean of the voxels around them at most r + 2 voxels away along each axis that are neither thick nor
// painted over themselves, with weights 1 / d^4 for the distance d in mm; where there are none, they stay.
#ifndef INTRAWARP_ENGINE_IMAGE_INPAINT_H_
#define INTRAWARP_ENGINE_IMAGE_INPAINT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

inline constexpr double kThinMm = 8;

// Values below `low` or above `high` are extremes.
struct ExtremeLimits {
  float low = 0;
  float high = 0;
};

// marks[i] = 1 where voxel i is an extreme, otherwise 0; `marks` is device memory of as many bytes as there are voxels.
// Stream-ordered.
absl::Status MarkExtremes(const ExecContext& ctx, const ExtremeLimits& limits, ConstVolumeView volume, uint8_t* marks);

// Paints over the thin ones of the marked voxels, in place; `marks` is overwritten. Stream-ordered.
absl::Status InpaintThin(const ExecContext& ctx, uint8_t* marks, VolumeView volume);
// The bytes that InpaintThin takes from the arena.
size_t InpaintWorkspaceBytes(const Geometry& geometry);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_INPAINT_H_
