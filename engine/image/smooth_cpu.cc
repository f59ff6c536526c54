// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "engine/device/parallel.h"
#include "engine/image/row_simd.h"
#include "engine/image/smooth_kernels.h"

namespace intrawarp::cpu {
namespace {

// Part of a volume that a task smooths: so many voxels side by side, so many steps along the axis. Small enough for the
// rows that neighbouring outputs share to stay in the cache.
constexpr int64_t kTileWidth = 1024;
constexpr int kTileSteps = 64;
constexpr int kRowsPerTask = 16;

struct FullKernel {
  explicit FullKernel(const GaussianKernel& half) : radius(half.radius) {
    for (int k = -radius; k <= radius; ++k) weights[k + radius] = half.weights[std::abs(k)];
  }
  const float* center() const { return weights + radius; }
  int radius;
  float weights[2 * kMaxRadius + 1];
};

void SmoothRow(const float* in, int n, const GaussianKernel& half, const FullKernel& full, float* out) {
  const int r = full.radius;
  const auto at_face = [&](int x) {
    WeightedRows(in + x, 1, full.center(), std::max(-r, -x), std::min(r, n - 1 - x), half.Scale(x, n), 1, out + x);
  };
  const int begin = std::min(r, n), end = std::max(begin, n - r);
  for (int x = 0; x < begin; ++x) at_face(x);
  WeightedRows(in + begin, 1, full.center(), -r, r, 1.0f, end - begin, out + begin);
  for (int x = end; x < n; ++x) at_face(x);
}

void SmoothAlongX(const float* in, float* out, Int3 size, const GaussianKernel& half) {
  const FullKernel full(half);
  const int64_t rows = int64_t{size.y} * size.z;
  ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    for (int64_t row = task * kRowsPerTask; row < std::min(rows, (task + 1) * kRowsPerTask); ++row) {
      SmoothRow(in + row * size.x, size.x, half, full, out + row * size.x);
    }
  });
}

// Along y or z: `outer` blocks of n rows, each row `stride` long.
void SmoothAcross(const float* in, float* out, int64_t outer, int n, int64_t stride, const GaussianKernel& half) {
  const FullKernel full(half);
  const int64_t widths = (stride + kTileWidth - 1) / kTileWidth, steps = (n + kTileSteps - 1) / kTileSteps;
  ParallelFor(outer * widths * steps, [&](int64_t task) {
    const int64_t x = task % widths * kTileWidth, width = std::min(kTileWidth, stride - x);
    const int begin = static_cast<int>(task / widths % steps) * kTileSteps, end = std::min(n, begin + kTileSteps);
    const int64_t block = task / widths / steps * n * stride + x;
    for (int i = begin; i < end; ++i) {
      WeightedRows(in + block + i * stride, stride, full.center(), std::max(-full.radius, -i),
                   std::min(full.radius, n - 1 - i), half.Scale(i, n), width, out + block + i * stride);
    }
  });
}

}  // namespace

absl::Status SmoothAxis(const ExecContext&, const float* in, float* out, Int3 size, int axis,
                        const GaussianKernel& kernel) {
  if (axis == 0) {
    SmoothAlongX(in, out, size, kernel);
  } else if (axis == 1) {
    SmoothAcross(in, out, size.z, size.y, size.x, kernel);
  } else {
    SmoothAcross(in, out, 1, size.z, int64_t{size.x} * size.y, kernel);
  }
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
