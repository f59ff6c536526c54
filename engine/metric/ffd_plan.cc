// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/ffd_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/image/bspline.h"

namespace intrawarp {
namespace {

// A part of a control point's distance that rounding in headers stays below.
constexpr double kIndexTolerance = 1e-3;

absl::Status NotCovered(const FfdObjective& objective) {
  return absl::InvalidArgumentError(absl::StrCat("grid: ", SizeString(objective.grid),
                                                 " control points do not cover the fixed image of ",
                                                 SizeString(objective.fixed.geometry), " voxels"));
}

// Voxel i lies at `start` + i * `step` control points.
absl::StatusOr<AxisWeights> MakeAxisWeights(const FfdObjective& objective, int a, double start, double step) {
  const int n = objective.fixed.geometry.size[a], nodes = objective.grid.size[a];
  AxisWeights axis;
  axis.nodes = nodes;
  axis.taps = nodes == 1 ? 1 : 4;
  const double low = nodes == 1 ? -0.5 : 1, high = nodes == 1 ? 0.5 : nodes - 2;
  const double end = start + (n - 1) * step;
  // Written so that NaN is refused.
  if (!(start >= low - kIndexTolerance && end <= high + kIndexTolerance && step > 0)) return NotCovered(objective);
  if (nodes > 1 && n > 1 && step > 1 + 1e-6) {
    return absl::InvalidArgumentError("grid: control points lie closer than voxels");
  }
  axis.base.resize(n);
  axis.weights.resize(4 * static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    if (nodes == 1) {
      axis.weights[4 * static_cast<size_t>(i)] = 1;
      continue;
    }
    const double x = start + i * step;
    const int base = std::clamp(static_cast<int>(std::floor(x)) - 1, 0, nodes - 4);
    double w[4];
    BsplineWeights(std::clamp(x - 1 - base, 0.0, 1.0), w);
    axis.base[i] = base;
    for (int k = 0; k < 4; ++k) axis.weights[4 * static_cast<size_t>(i) + k] = static_cast<float>(w[k]);
  }
  return axis;
}

}  // namespace

absl::StatusOr<FfdPlan> MakeFfdPlan(const FfdObjective& objective) {
  const Geometry& fixed = objective.fixed.geometry;
  const AffineMap to_grid = Compose(PhysicalToIndex(objective.grid), IndexToPhysical(fixed));
  FfdPlan plan;
  for (int a = 0; a < 3; ++a) {
    double skew = 0;
    for (int c = 0; c < 3; ++c) skew += c == a ? 0 : std::abs(to_grid.m[a][c]) * (fixed.size[c] - 1);
    if (!(skew <= 10 * kIndexTolerance)) return absl::InvalidArgumentError("grid: not in the fixed image's direction");
    INTRAWARP_ASSIGN_OR_RETURN(plan.axis[a], MakeAxisWeights(objective, a, to_grid.m[a][3], to_grid.m[a][a]));
  }
  const AffineMap moving = Compose(PhysicalToIndex(objective.moving.geometry), objective.affine);
  plan.to_moving = Compose(moving, IndexToPhysical(fixed));
  plan.displacement_to_moving = moving;
  for (int r = 0; r < 3; ++r) plan.displacement_to_moving.m[r][3] = 0;
  return plan;
}

}  // namespace intrawarp
