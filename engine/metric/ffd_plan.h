// SPDX-License-Identifier: Apache-2.0
// What both devices' FFD objective (ffd_objective.h) is evaluated from: weights along each axis of the fixed image, the
// maps between indices and millimetres, the bins of NMI, and NMI itself from a joint histogram. Plain values.
#ifndef INTRAWARP_ENGINE_METRIC_FFD_PLAN_H_
#define INTRAWARP_ENGINE_METRIC_FFD_PLAN_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/host_device.h"
#include "engine/metric/ffd_objective.h"

namespace intrawarp {

// The spline along one axis of the fixed image: voxel i has the weights weights[4 * i + k] for the control points
// base[i] + k, k < taps. `base` never falls, and rises by one or not at all from voxel to voxel (by two where the
// spacing is a voxel and rounding will have it). Computed in float64.
struct SplineAxis {
  // Control points along the axis.
  int nodes = 1;
  // 4, or 1 along an axis of one control point; weights beyond are 0, and must not be read for.
  int taps = 1;
  std::vector<int> base;
  std::vector<float> weights;
};

struct FfdPlan {
  SplineAxis axis[3];
  // Fixed index to moving index by A alone.
  AffineMap to_moving;
  // Displacement u in mm to a displacement in moving voxels (no translation). Its transpose (LinearTransposed) takes
  // a derivative by the moving index to one by u.
  AffineMap displacement_to_moving;
};

// INVALID_ARGUMENT "grid: ..." when the grid does not cover the fixed image's voxel centres, has another direction, or
// its spacing is finer than a voxel.
absl::StatusOr<FfdPlan> MakeFfdPlan(const FfdObjective& objective);

// ---- NMI ----
// Fixed values fall into 64 bins of equal width between minimum and maximum. Moving values are placed at
// p = 61 (m - minimum) / (maximum - minimum) in [0, 61], and spread over the four bins floor(p) .. floor(p) + 3 by
// BsplineWeights(p - floor(p)), so that no window leaves the 64 bins. An image of one value lies in bin 0 (at p = 0).

inline constexpr int kNmiWindowCells = kNmiBins - 3;
// Weights of a window are counted in units of 2^-12 and sum to 2^12.
inline constexpr int kNmiFractionBits = 12;
inline constexpr int kNmiOne = 1 << kNmiFractionBits;

// (value - minimum) * scale: in fixed bins, or in window cells.
struct NmiScale {
  float minimum = 0;
  float scale = 0;
};
NmiScale NmiFixedScale(const FfdObjective& objective);
NmiScale NmiMovingScale(const FfdObjective& objective);

INTRAWARP_HD inline int NmiFixedBin(NmiScale s, float value) {
  const float p = (value - s.minimum) * s.scale;
  // Written so that NaN lands in bin 0.
  return p > 0 ? (p < kNmiBins ? static_cast<int>(p) : kNmiBins - 1) : 0;
}

// Where a moving value's window lies: bins cell .. cell + 3, at t in [0, 1].
struct NmiWindow {
  int cell;
  float t;
  // False where the value lay beyond the bins and was clamped: its derivative is 0.
  bool inside;
};
INTRAWARP_HD inline NmiWindow MakeNmiWindow(NmiScale s, float value) {
  const float raw = (value - s.minimum) * s.scale;
  const float p = raw > 0 ? (raw < kNmiWindowCells ? raw : static_cast<float>(kNmiWindowCells)) : 0.0f;
  const int cell = p < kNmiWindowCells ? static_cast<int>(p) : kNmiWindowCells - 1;
  return {cell, p - static_cast<float>(cell), p == raw};
}

// The nearest multiple of 2^-12 to a weight in [0, 1], halves to even, in units of 2^-12.
INTRAWARP_HD inline uint32_t NmiFixedPoint(float weight) {
  // The product is exact, and the sum's mantissa is the rounded integer.
  const float shifted = weight * static_cast<float>(kNmiOne) + 8388608.0f;
#ifdef __CUDA_ARCH__
  return __float_as_uint(shifted) - 0x4b000000u;
#else
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  return bits - 0x4b000000u;
#endif
}
// A window's weights in units of 2^-12; the third takes what rounding leaves.
INTRAWARP_HD inline void NmiCounts(const float weights[4], uint32_t counts[4]) {
  counts[0] = NmiFixedPoint(weights[0]);
  counts[1] = NmiFixedPoint(weights[1]);
  counts[3] = NmiFixedPoint(weights[3]);
  counts[2] = kNmiOne - counts[0] - counts[1] - counts[3];
}

// NMI from a joint histogram: `counts[64 * fixed_bin + moving_bin]` in units of 2^-12. Unless `derivative` is null,
// derivative[64 * fixed_bin + moving_bin] makes the metric's derivative in a sample's moving value m
//   sum over k < 4 of derivative[64 * f + cell + k] d[k],   d = BsplineDerivatives(t)
// (0 where the window is not inside). No sample: metric NaN and a derivative of 0.
FfdValue NmiFromHistogram(const int64_t* counts, NmiScale moving, float* derivative);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_FFD_PLAN_H_
