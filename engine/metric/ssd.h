// SPDX-License-Identifier: Apache-2.0
// The sum of squared differences, a metric for images whose intensities correspond.
//
//   affine  D = 1/N sum w 1/2 (s (m - f))^2      (Tramnitzke 2014, eq. 7, per sample; gradient and Hessian eq. 21, 22)
//   FFD     D = 1/N sum w (s (m - f))^2
//
// over the samples, with w the sample's weight (soft_mask.h), N the sum of the weights, f the fixed image's intensity,
// m the moving image's at the mapped voxel, and s the intensity scale, which makes values independent of the
// intensities' unit.
//
// The pointwise formula is part of fused passes: ssd_affine-inl.h and ssd_affine.cuh, ssd_ffd-inl.h and
// ssd_ffd.cuh. The FFD passes sum m - f unscaled and apply s^2 at the end.
//
// F. Tramnitzke, "GPU Based Affine Linear Image Registration", Master's thesis, Universitaet zu Luebeck, 2014.
#ifndef INTRAWARP_ENGINE_METRIC_SSD_H_
#define INTRAWARP_ENGINE_METRIC_SSD_H_

#include "engine/base/host_device.h"

namespace intrawarp {

// The factor from the sum of w (m - f) dm/dp over samples of weight N to the derivative of FFD's D in p; 0 without a
// sample.
INTRAWARP_HD inline double SsdGradientFactor(double squared_scale, double weight) {
  return weight > 0 ? 2 * squared_scale / weight : 0;
}

// Sums over samples: w (m - f)^2, w, and 1.
struct SsdSums {
  double value = 0, weight = 0, samples = 0;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_SSD_H_
