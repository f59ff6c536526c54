// SPDX-License-Identifier: Apache-2.0
// The uniform cubic B-spline in one dimension, for host and device; the one definition that every operator composes.
//
// At t in [0, 1) between the nodes 1 and 2 of four neighbours, a spline with coefficients c[0..3] has the value
// sum c[i] w[i]. Derivatives are per node distance.
#ifndef INTRAWARP_ENGINE_IMAGE_BSPLINE_H_
#define INTRAWARP_ENGINE_IMAGE_BSPLINE_H_

#include "engine/base/host_device.h"

namespace intrawarp {

template <typename T>
INTRAWARP_HD inline void BsplineWeights(T t, T w[4]) {
  const T s = T(1) - t, sixth = T(1) / T(6);
  w[0] = s * s * s * sixth;
  w[1] = (T(4) + t * t * (T(3) * t - T(6))) * sixth;
  w[2] = (T(4) + s * s * (T(3) * s - T(6))) * sixth;
  w[3] = t * t * t * sixth;
}

template <typename T>
INTRAWARP_HD inline void BsplineDerivatives(T t, T d[4]) {
  const T s = T(1) - t, half = T(1) / T(2);
  d[0] = -half * s * s;
  d[1] = half * t * (T(3) * t - T(4));
  d[2] = half * s * (T(4) - T(3) * s);
  d[3] = half * t * t;
}

template <typename T>
INTRAWARP_HD inline void BsplineSecondDerivatives(T t, T d[4]) {
  d[0] = T(1) - t;
  d[1] = T(3) * t - T(2);
  d[2] = T(1) - T(3) * t;
  d[3] = t;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_BSPLINE_H_
