// SPDX-License-Identifier: Apache-2.0
// The two versions of the steps of SplitRegions, and the arithmetic that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_IMAGE_TWO_REGIONS_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_TWO_REGIONS_KERNELS_H_

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

struct RegionSplit {
  const float* cost = nullptr;
  float* share = nullptr;
  // The share extrapolated by its last change, and the dual variable: three planes of a value a voxel, by axis.
  float* ahead = nullptr;
  float* dual = nullptr;
  Int3 size;
  // h of each axis; 0 for an axis of one voxel.
  Vec3f per_side;
  float weight = 0;
  // The step of both variables.
  float step = 0;

  INTRAWARP_HD int64_t voxels() const { return int64_t{size.x} * size.y * size.z; }
  INTRAWARP_HD int64_t stride(int axis) const { return axis == 0 ? 1 : axis == 1 ? size.x : int64_t{size.x} * size.y; }
};

INTRAWARP_HD inline Int3 VoxelAt(const RegionSplit& t, int64_t voxel) {
  const int64_t row = voxel / t.size.x;
  return {static_cast<int>(voxel - row * t.size.x), static_cast<int>(row % t.size.y), static_cast<int>(row / t.size.y)};
}

INTRAWARP_HD inline void StartVoxel(const RegionSplit& t, int64_t voxel) {
  t.share[voxel] = t.ahead[voxel] = 0.5f;
  for (int axis = 0; axis < 3; ++axis) t.dual[axis * t.voxels() + voxel] = 0;
}

// The dual variable stays 0 at the last voxel of an axis.
INTRAWARP_HD inline void DualVoxel(const RegionSplit& t, int64_t voxel) {
  const Int3 at = VoxelAt(t, voxel);
  float dual[3], square = 0;
  for (int axis = 0; axis < 3; ++axis) {
    dual[axis] = t.dual[axis * t.voxels() + voxel];
    if (at[axis] + 1 < t.size[axis]) {
      dual[axis] += t.step * t.per_side[axis] * (t.ahead[voxel + t.stride(axis)] - t.ahead[voxel]);
    }
    square += dual[axis] * dual[axis];
  }
  const float scale = square > t.weight * t.weight ? t.weight / sqrtf(square) : 1.0f;
  for (int axis = 0; axis < 3; ++axis) t.dual[axis * t.voxels() + voxel] = scale * dual[axis];
}

INTRAWARP_HD inline void PrimalVoxel(const RegionSplit& t, int64_t voxel) {
  const Int3 at = VoxelAt(t, voxel);
  float divergence = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const float* dual = t.dual + axis * t.voxels() + voxel;
    divergence += t.per_side[axis] * (at[axis] > 0 ? *dual - *(dual - t.stride(axis)) : *dual);
  }
  const float before = t.share[voxel];
  const float after = fminf(fmaxf(before + t.step * (divergence - t.cost[voxel]), 0.0f), 1.0f);
  t.share[voxel] = after;
  t.ahead[voxel] = 2 * after - before;
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status StartSplit(const ExecContext& ctx, const RegionSplit& task);
                             absl::Status StepSplit(const ExecContext& ctx, const RegionSplit& task);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_TWO_REGIONS_KERNELS_H_
