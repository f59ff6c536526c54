// SPDX-License-Identifier: Apache-2.0
// The samples that a window is found by, and both versions of the operators. Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_WINDOW_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_WINDOW_KERNELS_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/image/window.h"

namespace intrawarp {

// As they lie in device memory.
struct RawSamples {
  float values[kIntensitySamples];
  float neighbours[kIntensitySamples];
  float distant[kIntensitySamples];
  float corners[8];
};

INTRAWARP_HD inline int SampleCount(int64_t voxels) {
  return voxels < kIntensitySamples ? static_cast<int>(voxels) : kIntensitySamples;
}

// The voxel of sample i: somewhere in the i-th of equal parts of the volume, by a hash, so that no row or plane of the
// grid is preferred.
INTRAWARP_HD inline int64_t SampledVoxel(int64_t voxels, int i) {
  const int count = SampleCount(voxels);
  const int64_t begin = voxels / count * i + voxels % count * i / count;
  const int64_t length = voxels / count;
  // The multiplier of Knuth's multiplicative hash (The Art of Computer Programming, volume 3, section 6.4).
  const uint32_t hash = static_cast<uint32_t>(i) * 2654435761u;
  return begin + static_cast<int64_t>((static_cast<uint64_t>(hash) * static_cast<uint64_t>(length)) >> 32);
}

INTRAWARP_HD inline int64_t CornerVoxel(Int3 n, int corner) {
  const int64_t x = corner & 1 ? n.x - 1 : 0, y = corner & 2 ? n.y - 1 : 0, z = corner & 4 ? n.z - 1 : 0;
  return (z * n.y + y) * n.x + x;
}

INTRAWARP_HD inline void TakeSample(const float* volume, Int3 n, int i, RawSamples* out) {
  const int64_t voxels = int64_t{n.x} * n.y * n.z;
  const int64_t voxel = SampledVoxel(voxels, i);
  out->values[i] = volume[voxel];
  const int64_t rest = n.x - 1 - voxel % n.x;
  out->neighbours[i] = volume[voxel + (rest < 1 ? rest : 1)];
  out->distant[i] = volume[voxel + (rest < kDistantVoxels ? rest : kDistantVoxels)];
}

// A voxel that is not painted over.
INTRAWARP_HD inline float Through(const IntensityWindow& w, float v) {
  if (v == w.fill) return w.fill_becomes;
  return v < w.low ? w.low : v > w.high ? w.high : v;
}

// Enqueues the gathering of samples; `out` lies in device memory.
absl::Status EnqueueSamples(const ExecContext& ctx, ConstVolumeView volume, RawSamples* out);
IntensitySamples SamplesOf(const Geometry& geometry, const RawSamples& raw);

INTRAWARP_DECLARE_ON_DEVICES(absl::Status EnqueueSamples(const ExecContext& ctx, ConstVolumeView volume,
                                                         RawSamples* out);
                             absl::Status MapThroughWindow(const ExecContext& ctx, const IntensityWindow& window,
                                                           ConstVolumeView in, VolumeView out);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_WINDOW_KERNELS_H_
