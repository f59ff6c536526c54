// SPDX-License-Identifier: Apache-2.0
// Normalised mutual information, a metric for images of different modalities whose intensities have any relation.
//
//   D = 2 - (H(F) + H(M)) / H(F, M)              (2 less the ratio of Studholme et al. 1999)
//
// with the entropies H of the joint histogram of 64 x 64 bins over [minimum, maximum] of each image and of its margins
// (the affine objective fills fewer of them at coarse levels: NmiBinsFor).
// A fixed value counts in one bin, a moving value is spread by a cubic B-spline Parzen window (Mattes et al. 2003, with
// bins padded so that the window stays inside). Windows are counted in fixed point, so that the sums are exact in any
// order. The derivative is the window's. A sample of weight w (soft_mask.h) counts with w times its window, and
// its derivative is that much less; weights below 2^-13 are lost in the unit of counting.
//
// Fixed values fall into 64 bins of equal width between minimum and maximum. Moving values are placed at
// p = 61 (m - minimum) / (maximum - minimum) in [0, 61], and spread over the four bins floor(p) .. floor(p) + 3 by
// BsplineWeights(p - floor(p)), so that no window leaves the 64 bins. An image of one value lies in bin 0 (at p = 0).
//
// Gauss-Newton steps need a curvature as well. With the histogram held still, D is, to first order, the mean over the
// samples of -1/B [(A/B) log p(f, m) - log p(m)], with A and B the numerator and the denominator above: a negative
// log-likelihood of the moving values against that of their margin. Fisher's information identity puts the mean square
// of the score for the mean curvature (it holds for A = B; A/B lies in [1, 2]), so that a sample of fixed bin f has
//   h(f) = 1/B  E[ ((A/B) d log p(f, m)/dm - d log p(m)/dm)^2 | f ].
// h is never negative, falls as the variance of m given f grows, and vanishes where the images say nothing of each
// other. (Viola and Wells 1997 descend by the first order; Dowson and Bowden 2008 compare the Newton methods of mutual
// information.)
//
// The passes over the images are parts of the FFD objective and of the affine objective: nmi_ffd-inl.h and nmi_ffd.cuh,
// nmi_affine-inl.h and nmi_affine.cuh.
//
// C. Studholme, D. Hill and D. Hawkes, "An overlap invariant entropy measure of 3D medical image alignment", Pattern
// Recognition 32, 1999. D. Mattes, D. Haynor, H. Vesselle, T. Lewellen and W. Eubank, "PET-CT image registration in the
// chest using free-form deformations", IEEE Transactions on Medical Imaging 22, 2003. P. Viola and W. Wells, "Alignment
// by maximization of mutual information", International Journal of Computer Vision 24, 1997. N. Dowson and R. Bowden,
// "Mutual information for Lucas-Kanade tracking (MILK): an inverse compositional formulation", IEEE Transactions on
// Pattern Analysis and Machine Intelligence 30, 2008.
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
// The bins of each image that `samples` fill with as many samples a bin of the joint histogram as there are bins: more
// would only count noise, and few samples would look like a match. In [8, kNmiBins].
int NmiBinsFor(double samples);
// `bins` in [4, kNmiBins]: intensities fall into the first `bins` bins (and the maximum into the next, where there is
// one).
NmiScale NmiFixedScale(float minimum, float maximum, int bins = kNmiBins);
NmiScale NmiMovingScale(float minimum, float maximum, int bins = kNmiBins);

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
// A window's weights in units of 2^-12; the third takes what rounding leaves of `all`.
INTRAWARP_HD inline void NmiCounts(const float weights[4], uint32_t counts[4], uint32_t all = kNmiOne) {
  counts[0] = NmiFixedPoint(weights[0]);
  counts[1] = NmiFixedPoint(weights[1]);
  counts[3] = NmiFixedPoint(weights[3]);
  counts[2] = all - counts[0] - counts[1] - counts[3];
}

// NMI from a joint histogram: `counts[64 * fixed_bin + moving_bin]` in units of 2^-12. Unless `derivative` is null,
// derivative[64 * fixed_bin + moving_bin] makes the metric's derivative in the moving value m of a sample of weight 1
//   sum over k < 4 of derivative[64 * f + cell + k] d[k],   d = BsplineDerivatives(t)
// (0 where the window is not inside). Unless `curvature` is null, curvature[fixed_bin] is h of that bin over the number
// of samples, per squared intensity (0 for an empty bin); it needs `derivative`. MetricValue::samples is the sum of the
// samples' weights. No sample: metric NaN, the rest 0.
MetricValue NmiFromHistogram(const int64_t* counts, NmiScale moving, float* derivative, float* curvature = nullptr);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_NMI_H_
