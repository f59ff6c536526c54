// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/image/two_regions_kernels.h"

namespace intrawarp::cpu {
namespace {

template <typename Body>
void ForEachVoxel(const RegionSplit& t, const Body& body) {
  const int64_t row = t.size.x;
  ParallelFor(int64_t{t.size.y} * t.size.z, [&](int64_t r) {
    for (int64_t voxel = r * row; voxel < (r + 1) * row; ++voxel) body(voxel);
  });
}

}  // namespace

absl::Status StartSplit(const ExecContext&, const RegionSplit& t) {
  ForEachVoxel(t, [&](int64_t voxel) { StartVoxel(t, voxel); });
  return absl::OkStatus();
}

absl::Status StepSplit(const ExecContext&, const RegionSplit& t) {
  ForEachVoxel(t, [&](int64_t voxel) { DualVoxel(t, voxel); });
  ForEachVoxel(t, [&](int64_t voxel) { PrimalVoxel(t, voxel); });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
