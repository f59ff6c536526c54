// SPDX-License-Identifier: Apache-2.0
#include "engine/device/parallel.h"
#include "engine/image/inpaint_kernels.h"

namespace intrawarp::cpu {
namespace {

// at(voxel, index) for every voxel.
template <typename At>
void ForVoxels(Int3 n, const At& at) {
  ParallelFor(int64_t{n.y} * n.z, [&](int64_t row) {
    const int y = static_cast<int>(row % n.y), z = static_cast<int>(row / n.y);
    for (int x = 0; x < n.x; ++x) at(Int3{x, y, z}, row * n.x + x);
  });
}

}  // namespace

absl::Status MarkExtremes(const ExecContext&, const ExtremeLimits& limits, ConstVolumeView volume, uint8_t* marks) {
  ForVoxels(volume.geometry.size, [&](Int3, int64_t i) { marks[i] = MarkOf(limits, volume.data[i]); });
  return absl::OkStatus();
}

absl::Status InpaintThin(const ExecContext&, const InpaintGrid& grid, uint8_t* marks, uint8_t* scratch,
                         VolumeView volume) {
  ForVoxels(grid.n, [&](Int3 at, int64_t i) { scratch[i] = CoreAt(grid, marks, at); });
  ForVoxels(grid.n, [&](Int3 at, int64_t i) { marks[i] = ThinOrNot(grid, marks[i], scratch, at); });
  ForVoxels(grid.n, [&](Int3 at, int64_t i) { scratch[i] = KindAt(grid, marks, at); });
  ForVoxels(grid.n, [&](Int3 at, int64_t i) {
    if (scratch[i] == kPainted) volume.data[i] = FilledIn(grid, scratch, volume.data, at);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
