// SPDX-License-Identifier: Apache-2.0
// The parts of NMI and LNCC in the affine objective that both devices share. Internal.
#ifndef INTRAWARP_ENGINE_METRIC_AFFINE_TERMS_H_
#define INTRAWARP_ENGINE_METRIC_AFFINE_TERMS_H_

#include "engine/base/host_device.h"
#include "engine/metric/affine_objective.h"
#include "engine/metric/lncc.h"
#include "engine/metric/metric.h"
#include "engine/metric/nmi.h"
#include "engine/metric/soft_mask.h"

namespace intrawarp {

inline NmiScale FixedScale(const AffineObjective& o) {
  return NmiFixedScale(o.fixed_minimum, o.fixed_maximum, o.nmi_bins);
}
inline NmiScale MovingScale(const AffineObjective& o) {
  return NmiMovingScale(o.moving_minimum, o.moving_maximum, o.nmi_bins);
}

inline LnccTask MakeLnccTask(const AffineObjective& o, const float* warped, float* curvature) {
  LnccTask task{o.fixed.data, warped, o.fixed.geometry.size, o.lncc_sigma};
  task.fixed_floor = kLnccFlat * o.fixed_stddev * o.fixed_stddev;
  task.moving_floor = kLnccFlat * o.moving_stddev * o.moving_stddev;
  task.curvature = curvature;
  return task;
}

// The weight of the samples: the sum of their weights (`samples` of MetricValue), or 0 where D is 1 but for rounding
// (or NaN).
INTRAWARP_HD inline double SampleWeight(const MetricValue& d) { return d.metric < 1 - 1e-9 ? d.samples : 0; }

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_TERMS_H_
