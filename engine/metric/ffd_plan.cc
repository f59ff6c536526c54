// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/ffd_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/image/bspline.h"

namespace intrawarp {
namespace {

// Of a control point's distance; rounding in headers stays below it.
constexpr double kIndexTolerance = 1e-3;

absl::Status NotCovered(const FfdObjective& objective) {
  return absl::InvalidArgumentError(absl::StrCat("grid: ", SizeString(objective.grid),
                                                 " control points do not cover the fixed image of ",
                                                 SizeString(objective.fixed.geometry), " voxels"));
}

// Voxel i lies at `start` + i * `step` control points.
absl::StatusOr<SplineAxis> MakeSplineAxis(const FfdObjective& objective, int a, double start, double step) {
  const int n = objective.fixed.geometry.size[a], nodes = objective.grid.size[a];
  SplineAxis axis;
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

double SafeInverse(double range) { return range > 0 ? 1 / range : 0; }

NmiScale MakeNmiScale(float minimum, float maximum, int cells) {
  const double range = static_cast<double>(maximum) - minimum;
  return {minimum, static_cast<float>(cells * SafeInverse(range))};
}

double Entropy(const double* p, int count) {
  double h = 0;
  for (int i = 0; i < count; ++i) {
    if (p[i] > 0) h -= p[i] * std::log(p[i]);
  }
  return h;
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
    INTRAWARP_ASSIGN_OR_RETURN(plan.axis[a], MakeSplineAxis(objective, a, to_grid.m[a][3], to_grid.m[a][a]));
  }
  const AffineMap moving = Compose(PhysicalToIndex(objective.moving.geometry), objective.affine);
  plan.to_moving = Compose(moving, IndexToPhysical(fixed));
  plan.displacement_to_moving = moving;
  for (int r = 0; r < 3; ++r) plan.displacement_to_moving.m[r][3] = 0;
  return plan;
}

NmiScale NmiFixedScale(const FfdObjective& objective) {
  return MakeNmiScale(objective.fixed_minimum, objective.fixed_maximum, kNmiBins);
}
NmiScale NmiMovingScale(const FfdObjective& objective) {
  return MakeNmiScale(objective.moving_minimum, objective.moving_maximum, kNmiWindowCells);
}

FfdValue NmiFromHistogram(const int64_t* counts, NmiScale moving, float* derivative) {
  int64_t total = 0;
  for (int i = 0; i < kNmiBins * kNmiBins; ++i) total += counts[i];
  if (total == 0) {
    if (derivative != nullptr) std::fill_n(derivative, kNmiBins * kNmiBins, 0.0f);
    return {std::numeric_limits<double>::quiet_NaN(), 0};
  }
  std::vector<double> joint(kNmiBins * kNmiBins), fixed_bins(kNmiBins), moving_bins(kNmiBins);
  for (int f = 0; f < kNmiBins; ++f) {
    for (int m = 0; m < kNmiBins; ++m) {
      const double p = static_cast<double>(counts[f * kNmiBins + m]) / static_cast<double>(total);
      joint[f * kNmiBins + m] = p;
      fixed_bins[f] += p;
      moving_bins[m] += p;
    }
  }
  const double marginals = Entropy(fixed_bins.data(), kNmiBins) + Entropy(moving_bins.data(), kNmiBins);
  const double together = Entropy(joint.data(), kNmiBins * kNmiBins);
  const double samples = static_cast<double>(total / kNmiOne);
  if (derivative != nullptr) {
    // d(2 - A / B)/dp(f, m) = (B log p(m) - A log p(f, m)) / B^2 up to what is the same for all bins, which the
    // derivatives of a window, summing to 0, cancel. Bins that rounding left empty count as half a unit.
    const double floor = 0.5 / static_cast<double>(total), scale = moving.scale / (samples * together * together);
    for (int f = 0; f < kNmiBins; ++f) {
      for (int m = 0; m < kNmiBins; ++m) {
        derivative[f * kNmiBins + m] =
            static_cast<float>(scale * (together * std::log(std::max(moving_bins[m], floor)) -
                                        marginals * std::log(std::max(joint[f * kNmiBins + m], floor))));
      }
    }
  }
  return {2 - marginals / together, samples};
}

}  // namespace intrawarp
