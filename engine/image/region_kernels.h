// SPDX-License-Identifier: Apache-2.0
// The two versions of ClearRegion, and the arithmetic that they share. Internal to this room.
#ifndef INTRAWARP_ENGINE_IMAGE_REGION_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_REGION_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/image/sample.h"

namespace intrawarp {

struct RegionClearing {
  const uint8_t* region = nullptr;
  Int3 region_size;
  // Index of the mask to index of the region.
  AffineMap to_region;
  uint8_t* mask = nullptr;
  Int3 size;

  INTRAWARP_HD int64_t voxels() const { return int64_t{size.x} * size.y * size.z; }
};

INTRAWARP_HD inline void ClearVoxel(const RegionClearing& t, int64_t voxel) {
  const int64_t row = voxel / t.size.x;
  const Vec3d at{static_cast<double>(voxel - row * t.size.x), static_cast<double>(row % t.size.y),
                 static_cast<double>(row / t.size.y)};
  const Vec3d p = t.to_region(at);
  const Vec3f index{static_cast<float>(p.x), static_cast<float>(p.y), static_cast<float>(p.z)};
  if (IsInside(t.region_size, index) && t.region[NearestOffset(t.region_size, index)] != 0) t.mask[voxel] = 0;
}

INTRAWARP_DECLARE_ON_DEVICES(absl::Status ClearRegion(const ExecContext& ctx, const RegionClearing& task);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_REGION_KERNELS_H_
