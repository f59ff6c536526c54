// SPDX-License-Identifier: Apache-2.0
// The two versions of ComputeDescriptors, and the arithmetic of a voxel: as it stands here on CUDA, for a vector of
// voxels on the CPU (descriptor_cpu.cc). Internal to this room.
#ifndef INTRAWARP_ENGINE_FEATURE_DESCRIPTOR_KERNELS_H_
#define INTRAWARP_ENGINE_FEATURE_DESCRIPTOR_KERNELS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "engine/base/host_device.h"
#include "engine/device/exec_context.h"
#include "engine/feature/descriptor.h"
#include "engine/geometry/vec.h"

namespace intrawarp {

// The differences n_b - n_a between the neighbours of a channel, up to their sign; in distances of the neighbours.
inline constexpr int kDescriptorDifferences = 6;

// The mean squared differences around a voxel, by difference.
struct Differences {
  float mean[kDescriptorDifferences];
};

INTRAWARP_HD constexpr Int3 StepAlong(int axis, int step) {
  return {axis == 0 ? step : 0, axis == 1 ? step : 0, axis == 2 ? step : 0};
}
INTRAWARP_HD constexpr Int3 SumOf(Int3 a, Int3 b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
// Difference k has the axes i and j: n_b - n_a = e_j - e_i for k = 0, 1, 2 and -e_j - e_i for k = 3, 4, 5.
INTRAWARP_HD constexpr Int3 DifferenceOf(int k) {
  return SumOf(StepAlong(k % 3, -1), StepAlong((k + 1) % 3, k < 3 ? 1 : -1));
}

INTRAWARP_HD inline int Clamped(int i, int n) { return i < 0 ? 0 : i < n ? i : n - 1; }

INTRAWARP_HD inline int64_t ClampedPlace(Int3 size, int x, int y, int z) {
  return (int64_t{Clamped(z, size.z)} * size.y + Clamped(y, size.y)) * size.x + Clamped(x, size.x);
}

// The six q at a voxel: squared differences from its neighbours.
INTRAWARP_HD inline Differences DifferencesAt(const float* image, Int3 size, Int3 voxel, int distance) {
  Differences q;
  const float here = image[ClampedPlace(size, voxel.x, voxel.y, voxel.z)];
  for (int k = 0; k < kDescriptorDifferences; ++k) {
    const Int3 d = distance * DifferenceOf(k);
    const float difference = here - image[ClampedPlace(size, voxel.x + d.x, voxel.y + d.y, voxel.z + d.z)];
    q.mean[k] = difference * difference;
  }
  return q;
}

INTRAWARP_HD inline void Add(const Differences& q, Differences* sum) {
  for (int k = 0; k < kDescriptorDifferences; ++k) sum->mean[k] += q.mean[k];
}

// The means of q around a voxel from the sums of q along x, three voxels each.
INTRAWARP_HD inline Differences MeanOfRows(const Differences* along_x, Int3 size, Int3 voxel) {
  Differences sum{};
  for (int dz = -1; dz <= 1; ++dz) {
    for (int dy = -1; dy <= 1; ++dy) Add(along_x[ClampedPlace(size, voxel.x, voxel.y + dy, voxel.z + dz)], &sum);
  }
  for (float& mean : sum.mean) mean *= 1.0f / 27;
  return sum;
}

// n_a of channel c, whose difference is k = c / 2: +e_i for even channels; for odd ones -e_j where k < 3, +e_j
// elsewhere.
INTRAWARP_HD constexpr Int3 FirstNeighbour(int c) {
  const int k = c / 2;
  return c % 2 == 0 ? StepAlong(k % 3, 1) : StepAlong((k + 1) % 3, k < 3 ? -1 : 1);
}

// m of every channel at a voxel, and v.
struct ChannelDistances {
  float m[kDescriptorChannels];
  float variation;
};

INTRAWARP_HD inline ChannelDistances DistancesAt(const Differences* means, Int3 size, Int3 voxel, int distance) {
  ChannelDistances out;
  float least = INFINITY, sum = 0;
  for (int c = 0; c < kDescriptorChannels; ++c) {
    const Int3 n = distance * FirstNeighbour(c);
    out.m[c] = means[ClampedPlace(size, voxel.x + n.x, voxel.y + n.y, voxel.z + n.z)].mean[c / 2];
    least = fminf(least, out.m[c]);
    sum += out.m[c];
  }
  out.variation = fmaxf(sum * (1.0f / kDescriptorChannels) - least, 0.0f);
  for (float& m : out.m) m -= least;
  return out;
}

INTRAWARP_HD inline Descriptor DescriptorAt(const Differences* means, Int3 size, Int3 voxel, int distance,
                                            float floor) {
  const ChannelDistances distances = DistancesAt(means, size, voxel, distance);
  Descriptor out;
  out.variation = distances.variation;
  const float scale = -1 / fmaxf(out.variation, floor);
  for (int c = 0; c < kDescriptorChannels; ++c) {
    out.channel[c] = static_cast<uint8_t>(255 * expf(scale * distances.m[c]) + 0.5f);
  }
  return out;
}

// Variations are counted in bins by the leading bits of a float that is not negative: eight bins between powers of two.
inline constexpr int kNoiseBinShift = 20;
inline constexpr int kNoiseBins = 1 << (31 - kNoiseBinShift);

INTRAWARP_HD inline int NoiseBin(float variation) {
  uint32_t bits;
  memcpy(&bits, &variation, sizeof(bits));
  return static_cast<int>(bits >> kNoiseBinShift);
}

// The least value of a bin.
INTRAWARP_HD inline float NoiseBinStart(int bin) {
  const uint32_t bits = static_cast<uint32_t>(bin) << kNoiseBinShift;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// The quantile that lies in `bin`, which holds `count` values and has `below` values before it: as if the bin's values
// were spread evenly.
INTRAWARP_HD inline float NoiseIn(int bin, double rank, int64_t below, int count) {
  const float start = NoiseBinStart(bin), width = NoiseBinStart(bin + 1) - start;
  return start + width * static_cast<float>((rank - static_cast<double>(below)) / count);
}

// Workspace: sums and means of the differences, kDescriptorDifferences floats a voxel each, as it suits the device; and
// kNoiseBins counts.
struct DescriptorWorkspace {
  float* sums = nullptr;
  float* means = nullptr;
  int* counts = nullptr;
};

INTRAWARP_DECLARE_ON_DEVICES(absl::Status ComputeDescriptors(const ExecContext& ctx, const float* image,
                                                             const uint8_t* valid, Int3 size, int distance, float floor,
                                                             const DescriptorWorkspace& workspace, Descriptor* out,
                                                             float* noise);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_FEATURE_DESCRIPTOR_KERNELS_H_
