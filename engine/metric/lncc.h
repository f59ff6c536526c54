// SPDX-License-Identifier: Apache-2.0
// Local normalised cross-correlation, a metric for images whose intensities are related linearly nearby, as an operator
// on stored images.
//
//   D = 1 - 1/N sum_J n_J cc_J,   cc = <f', m'>^2 / (<f', f'> <m', m'>)
//
// over boxes J of 2 x 2 x 2 voxels (fewer at the far faces, and along axes of one voxel) with samples of the weight n_J
// each (soft_mask.h; without soft masks their number), N in all, where f' and m' are the intensities less their local
// means, and local sums have a window around J over the samples only, each by its weight, so that a sample fades out as
// its weight goes to 0. The window is a Gaussian over boxes (Cachier et al. 2003; the squared coefficient as Avants et
// al. 2008) of so many boxes that a box and the Gaussian together have the variance sigma^2 of voxels, truncated at 3
// standard deviations. So a voxel weighs by the box that it lies in, and a window is centred on each box, not on each
// voxel: an eighth of the sums, of which neighbouring ones differ little, as the window is some five voxels wide. A
// window in which either variance is not above its floor counts as cc = 0.
//
// Gauss-Newton steps need a curvature as well. 1 - cc_J is the smallest sum of window weights times (f - a m - b)^2
// over all a and b, in units of <f', f'>: a least-squares problem whose residual has the slope -a_J = -<f', m'> / <m',
// m'> in m(i). With a and b held (Kaufman's approximation of a separable problem), the Gauss-Newton matrix of D in the
// warped image is diagonal, with
//   h(i) = 2/N w(i) sum_J n_J G(I - J) / W_J cc_J / var_J(m),     I the box of i, W_J the sum of the window's weights,
// with w(i) the sample's weight: the mean of cc over the local variance of m, and the factor of m(i) in dD/dm(i).
//
// P. Cachier, E. Bardinet, D. Dormont, X. Pennec and N. Ayache, "Iconic feature based nonrigid registration: the PASHA
// algorithm", Computer Vision and Image Understanding 89, 2003. B. Avants, C. Epstein, M. Grossman and J. Gee,
// "Symmetric diffeomorphic image registration with cross-correlation", Medical Image Analysis 12, 2008. L. Kaufman, "A
// variable projection method for solving separable nonlinear least squares problems", BIT 15, 1975.
#ifndef INTRAWARP_ENGINE_METRIC_LNCC_H_
#define INTRAWARP_ENGINE_METRIC_LNCC_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/metric/metric.h"

namespace intrawarp {

// Bounds of sigma, in voxels. The box itself has 0.5.
inline constexpr double kLeastLnccSigma = 0.6, kMaxLnccSigma = 16.0 / 3;

// Objectives take local variances below this part of the whole image's variance for flat.
inline constexpr double kLnccFlat = 1e-6;

// The fixed image f and the warped moving image m on the same grid, in device memory. m is NaN where a voxel is no
// sample (it has no source, or is masked); f is finite.
struct LnccTask {
  const float* fixed = nullptr;
  const float* warped = nullptr;
  Int3 size;
  // In voxels, kLeastLnccSigma to kMaxLnccSigma.
  double sigma = 2.5;
  // Local variances not above these count as flat; and those that float32 does not resolve, some 1e-6 of the mean
  // squared difference of the window from its surroundings' mean.
  double fixed_floor = 0, moving_floor = 0;
  // Unless null, an evaluation with a gradient writes h(i) for every voxel i here, 0 where i is not a sample.
  float* curvature = nullptr;
  // The weight w of each voxel, 0 to 1 and above 0 for samples; null: 1 for all. `voxel_gradient` may
  // lie in the same memory.
  const float* weights = nullptr;
};

// Writes D to *value, and dD/dm(i) for every voxel i to `voxel_gradient`, 0 where i is not a sample; both in device
// memory. `voxel_gradient` may be null: only the value. Stream-ordered; fixed order of summation. `skip` as in
// FfdEvaluator. INVALID_ARGUMENT for a size that no image has, and for parameters out of range, by name. Workspace:
// LnccWorkspaceBytes.
absl::Status EvaluateLncc(const ExecContext& ctx, const LnccTask& task, const int* skip, float* voxel_gradient,
                          MetricValue* value);
int64_t LnccWorkspaceBytes(Int3 size);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_LNCC_H_
