// SPDX-License-Identifier: Apache-2.0
// Plain loops over neighbouring lines, which the compiler turns into vectors: compiled once for each instruction set
// (Highway), the best of which is chosen when it runs.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/device/parallel.h"
#include "engine/image/bspline_filter_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/image/bspline_filter_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace intrawarp::cpu {
namespace {
namespace HWY_NAMESPACE {

// In place: `width` lines side by side, of n > 1 voxels `stride` apart.
void FilterLines(float* data, int n, int64_t stride, int width) {
  float start[64];
  for (int l = 0; l < width; ++l) start[l] = 0;
  for (int i = -kFilterWarmUp; i < 0; ++i) {
    const float* s = data + MirroredVoxel(i, n) * stride;
    for (int l = 0; l < width; ++l) start[l] = kFilterGain * s[l] + kFilterPole * start[l];
  }
  for (int l = 0; l < width; ++l) data[l] = kFilterGain * data[l] + kFilterPole * start[l];
  for (int i = 1; i < n; ++i) {
    float* __restrict row = data + i * stride;
    const float* before = row - stride;
    for (int l = 0; l < width; ++l) row[l] = kFilterGain * row[l] + kFilterPole * before[l];
  }
  float* last = data + (n - 1) * stride;
  for (int l = 0; l < width; ++l) last[l] = kFilterEnd * (last[l] + kFilterPole * last[l - stride]);
  for (int i = n - 2; i >= 0; --i) {
    float* __restrict row = data + i * stride;
    const float* after = row + stride;
    for (int l = 0; l < width; ++l) row[l] = kFilterPole * (after[l] - row[l]);
  }
}

// `count` rows of n > 1 voxels, at most kRows; scratch holds kRows * n.
constexpr int kRows = 16;
void FilterRows(const float* in, int n, int count, float* out, float* __restrict scratch) {
  for (int r = 0; r < kRows; ++r) {
    const float* row = in + int64_t{std::min(r, count - 1)} * n;
    for (int x = 0; x < n; ++x) scratch[x * kRows + r] = row[x];
  }
  FilterLines(scratch, n, kRows, kRows);
  for (int r = 0; r < count; ++r) {
    float* row = out + int64_t{r} * n;
    for (int x = 0; x < n; ++x) row[x] = scratch[x * kRows + r];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace intrawarp::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace intrawarp::cpu {
namespace {

HWY_EXPORT(FilterLines);
HWY_EXPORT(FilterRows);

// Lines that a task takes together: so few that all of their voxels stay in the cache.
constexpr int kStrip = 64;

void FilterAlongX(const float* in, Int3 n, float* out) {
  constexpr int kTaskRows = 16;
  const int64_t rows = int64_t{n.y} * n.z;
  ParallelFor((rows + kTaskRows - 1) / kTaskRows, [&](int64_t task) {
    const int64_t first = task * kTaskRows;
    HWY_DYNAMIC_DISPATCH(FilterRows)
    (in + first * n.x, n.x, static_cast<int>(std::min<int64_t>(kTaskRows, rows - first)), out + first * n.x,
     ThreadScratch<float>(size_t{kTaskRows} * n.x));
  });
}

// `outer` blocks of n rows, each row `stride` long.
void FilterAcross(float* data, int64_t outer, int n, int64_t stride) {
  const int64_t strips = (stride + kStrip - 1) / kStrip;
  ParallelFor(outer * strips, [&](int64_t task) {
    const int64_t x = task % strips * kStrip;
    HWY_DYNAMIC_DISPATCH(FilterLines)
    (data + task / strips * n * stride + x, n, stride, static_cast<int>(std::min<int64_t>(kStrip, stride - x)));
  });
}

}  // namespace

absl::Status PrefilterCubic(const ExecContext&, const float* image, Int3 size, float* coefficients) {
  if (size.x > 1) {
    FilterAlongX(image, size, coefficients);
  } else {
    std::memcpy(coefficients, image, sizeof(float) * size.x * size.y * size.z);
  }
  if (size.y > 1) FilterAcross(coefficients, size.z, size.y, size.x);
  if (size.z > 1) FilterAcross(coefficients, 1, size.z, int64_t{size.x} * size.y);
  return absl::OkStatus();
}

}  // namespace intrawarp::cpu
#endif
