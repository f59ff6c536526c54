// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/image/region_kernels.h"

namespace intrawarp::cpu {

absl::Status ClearRegion(const ExecContext&, const RegionClearing& t) {
  const int64_t plane = int64_t{t.size.x} * t.size.y;
  ParallelFor(t.size.z, [&](int64_t z) {
    for (int64_t voxel = z * plane; voxel < (z + 1) * plane; ++voxel) ClearVoxel(t, voxel);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
