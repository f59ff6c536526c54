// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/device/parallel.h"
#include "engine/feature/descriptor_kernels.h"

namespace intrawarp::cpu {
namespace {

// body(row, y, z) for each row of voxels.
template <typename Body>
void ForRows(Int3 size, const Body& body) {
  ParallelFor(int64_t{size.y} * size.z,
              [&](int64_t row) { body(row, static_cast<int>(row % size.y), static_cast<int>(row / size.y)); });
}

// The sums of q over three voxels along x, for a row.
void SumAlongX(const float* image, Int3 size, int distance, int y, int z, Differences* out) {
  auto* q = ThreadScratch<Differences>(size.x);
  for (int x = 0; x < size.x; ++x) q[x] = DifferencesAt(image, size, {x, y, z}, distance);
  for (int x = 0; x < size.x; ++x) {
    out[x] = q[std::max(x - 1, 0)];
    Add(q[x], &out[x]);
    Add(q[std::min(x + 1, size.x - 1)], &out[x]);
  }
}

// The noise from the variations in `out`.
float NoiseOf(const Descriptor* out, const uint8_t* valid, int64_t voxels, int* counts) {
  std::fill_n(counts, kNoiseBins, 0);
  int64_t total = 0;
  for (int64_t i = 0; i < voxels; ++i) {
    if (valid[i] == 0) continue;
    ++counts[NoiseBin(out[i].variation)];
    ++total;
  }
  if (total == 0) return 0;
  const double rank = kNoiseQuantile * static_cast<double>(total);
  int64_t below = 0;
  int bin = 0;
  while (static_cast<double>(below + counts[bin]) < rank) below += counts[bin++];
  return NoiseIn(bin, rank, below, counts[bin]);
}

}  // namespace

absl::Status ComputeDescriptors(const ExecContext&, const float* image, const uint8_t* valid, Int3 size, int distance,
                                float floor, const DescriptorWorkspace& workspace, Descriptor* out, float* noise) {
  ForRows(size,
          [&](int64_t row, int y, int z) { SumAlongX(image, size, distance, y, z, workspace.along_x + row * size.x); });
  ForRows(size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < size.x; ++x) {
      workspace.means[row * size.x + x] = MeanOfRows(workspace.along_x, size, {x, y, z});
    }
  });
  ForRows(size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < size.x; ++x) {
      out[row * size.x + x].variation = DistancesAt(workspace.means, size, {x, y, z}, distance).variation;
    }
  });
  *noise = NoiseOf(out, valid, int64_t{size.x} * size.y * size.z, workspace.counts);
  const float raised = std::max(floor, kFloorNoises * *noise);
  ForRows(size, [&](int64_t row, int y, int z) {
    for (int x = 0; x < size.x; ++x)
      out[row * size.x + x] = DescriptorAt(workspace.means, size, {x, y, z}, distance, raised);
  });
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
