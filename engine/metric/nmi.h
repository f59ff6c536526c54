// SPDX-License-Identifier: Apache-2.0
// Normalised mutual information, a metric for images of different modalities whose intensities have any relation.
//
//   D = 2 - (H(F) + H(M)) / H(F, M)              (2 less the ratio of Studholme et al. 1999)
//
// with the entropies H of the joint histogram of 64 x 64 bins over [minimum, maximum] of each image and of its margins.
// A fixed value counts in one bin, a moving value is spread by a cubic B-spline Parzen window (Mattes et al. 2003, with
// bins padded so that the window stays inside). Windows are counted in fixed point, so that the sums are exact in any
// order. The derivative is that of the window.
//
// Fixed values fall into 64 bins of equal width between minimum and maximum. Moving values are placed at
// p = 61 (m - minimum) / (maximum - minimum) in [0, 61], and spread over the four bins floor(p) .. floor(p) + 3 by
// BsplineWeights(p - floor(p)), so that no window leaves the 64 bins. An image of one value lies in bin 0 (at p = 0).
//
// The passes over the images are parts of the FFD objective: nmi_ffd-inl.h and nmi_ffd.cuh.
//
// C. Studholme, D. Hill and D. Hawkes, "An overlap invariant entropy measure of 3D medical image alignment", Pattern
// Recognition 32, 1999. D. Mattes, D. Haynor, H. Vesselle, T. Lewellen and W. Eubank, "PET-CT image registration in the
// chest using free-form deformations", IEEE Transactions on Medical Imaging 22, 2003.
#ifndef INTRAWARP_ENGINE_METRIC_NMI_H_
#define INTRAWARP_ENGINE_METRIC_NMI_H_

#include <cstdint>
#include <cstring>

#include "engine/base/host_device.h"
#include "engine/metric/metric.h"

namespace intrawarp {

inline constexpr int kNmiBins = 64;
// The bin of a fixed voxel that the fixed mask does not select.
inline constexpr uint8_t kNmiNoBin = 255;
inline constexpr int kNmiWindowCells = kNmiBins - 3;
// Weights of a window are counted in units of 2^-12 and sum to 2^12.
inline constexpr int kNmiFractionBits = 12;
inline constexpr int kNmiOne = 1 << kNmiFractionBits;

// (value - minimum) * scale: in fixed bins, or in window cells.
struct NmiScale {
  float minimum = 0;
  float scale = 0;
};
NmiScale NmiFixedScale(float minimum, float maximum);
NmiScale NmiMovingScale(float minimum, float maximum);

INTRAWARP_HD inline int NmiFixedBin(NmiScale s, float value) {
  const float p = (value - s.minimum) * s.scale;
  // Written so that NaN lands in bin 0.
  return p > 0 ? (p < kNmiBins ? static_cast<int>(p) : kNmiBins - 1) : 0;
}

// The window of a moving value covers the bins cell .. cell + 3, at t in [0, 1].
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
MetricValue NmiFromHistogram(const int64_t* counts, NmiScale moving, float* derivative);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_NMI_H_
