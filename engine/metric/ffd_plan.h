// SPDX-License-Identifier: Apache-2.0
// The tables of the FFD objective (ffd_objective.h) on both devices: weights along each axis of the fixed image, and
// the maps between indices and millimetres. Plain values.
#ifndef INTRAWARP_ENGINE_METRIC_FFD_PLAN_H_
#define INTRAWARP_ENGINE_METRIC_FFD_PLAN_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/metric/ffd_objective.h"

namespace intrawarp {

// The spline along one axis of the fixed image: voxel i has the weights weights[4 * i + k] for the control points
// base[i] + k, k < taps. `base` never falls, and rises by one or not at all from voxel to voxel (by two where the
// spacing is a voxel and rounding will have it). Computed in float64.
struct AxisWeights {
  // Control points along the axis.
  int nodes = 1;
  // 4, or 1 along an axis of one control point; weights beyond are 0, and must not be read for.
  int taps = 1;
  std::vector<int> base;
  std::vector<float> weights;
};

struct FfdPlan {
  AxisWeights axis[3];
  // Fixed index to moving index by A alone.
  AffineMap to_moving;
  // Displacement u in mm to a displacement in moving voxels (no translation). Its transpose (LinearTransposed) takes
  // a derivative by the moving index to one by u.
  AffineMap displacement_to_moving;
};

// INVALID_ARGUMENT "grid: ..." when the grid does not cover the fixed image's voxel centres, has another direction, or
// its spacing is finer than a voxel.
absl::StatusOr<FfdPlan> MakeFfdPlan(const FfdObjective& objective);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_METRIC_FFD_PLAN_H_
