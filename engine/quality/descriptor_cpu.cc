// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/quality/descriptor_kernels.h"

namespace intrawarp::cpu {
namespace {

// body(row, y, z) for each row of voxels.
template <typename Body>
void ForRows(Int3 size, const Body& body) {
  ParallelFor(int64_t{size.y} * size.z,
              [&](int64_t row) { body(row, static_cast<int>(row % size.y), static_cast<int>(row / size.y)); });
}

// The sums of q over three voxels along x, for a row.
void SumAlongX(const float* image, Int3 size, int y, int z, Differences* out) {
  auto* q = ThreadScratch<Differences>(size.x);
  for (int x = 0; x < size.x; ++x) q[x] = DifferencesAt(image, size, {x, y, z});
  for (int x = 0; x < size.x; ++x) {
    out[x] = q[std::max(x - 1, 0)];
    Add(q[x], &out[x]);
    Add(q[std::min(x + 1, size.x - 1)], &out[x]);
  }
}

}  // namespace

absl::Status ComputeDescriptors(const ExecContext&, const float* image, Int3 size, float floor,
                                const DescriptorWorkspace& workspace, Descriptor* out) {
  ForRows(size, [&](int64_t row, int y, int z) { SumAlongX(image, size, y, z, workspace.along_x + row * size.x); });
  ForRows(size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < size.x; ++x) {
      workspace.means[row * size.x + x] = MeanOfRows(workspace.along_x, size, {x, y, z});
    }
  });
  ForRows(size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < size.x; ++x) out[row * size.x + x] = DescriptorAt(workspace.means, size, {x, y, z}, floor);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
