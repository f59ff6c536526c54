// SPDX-License-Identifier: Apache-2.0
// The kernel of SmoothGaussian and its two versions of a pass along one axis. Internal.
#ifndef INTRAWARP_ENGINE_IMAGE_SMOOTH_KERNELS_H_
#define INTRAWARP_ENGINE_IMAGE_SMOOTH_KERNELS_H_

#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/image/smooth.h"

namespace intrawarp {

inline constexpr double kMaxSigma = 64;
inline constexpr int kMaxRadius = 192;  // ceil(3 kMaxSigma)
// A CUDA thread makes this many outputs of a line from the voxels that it loads once.
inline constexpr int kSmoothRun = 8;

// Half of a symmetric kernel: weights[0] + 2 (weights[1] + ... + weights[radius]) = 1, and zeros for kSmoothRun - 1
// beyond.
struct GaussianKernel {
  int radius = 0;
  float weights[kMaxRadius + kSmoothRun] = {};
  // cumulative[k] = weights[0] + ... + weights[k].
  float cumulative[kMaxRadius + 1] = {};

  // The factor that normalises the result at voxel i of n to the part of the kernel that lies inside.
  INTRAWARP_HD float Scale(int i, int n) const {
    const int left = i < radius ? i : radius, right = n - 1 - i < radius ? n - 1 - i : radius;
    if (left == radius && right == radius) return 1.0f;
    return 1.0f / (cumulative[left] + cumulative[right] - weights[0]);
  }
};
GaussianKernel MakeGaussianKernel(double sigma);

// out = in convolved along `axis` (0, 1, 2 for x, y, z); `out` is not `in`.
INTRAWARP_DECLARE_ON_DEVICES(absl::Status SmoothAxis(const ExecContext& ctx, const float* in, float* out, Int3 size,
                                                     int axis, const GaussianKernel& kernel);)

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_SMOOTH_KERNELS_H_
