// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

absl::Status ValidateMask(const char* name, const ConstMaskView& mask, const Geometry& grid) {
  if (mask.data == nullptr || mask.geometry.size == grid.size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", SizeString(mask.geometry), " voxels, must be ", SizeString(grid), " as its image"));
}

}  // namespace

AffineMap IndexToNormalized(const Geometry& fixed) {
  AffineMap a;
  for (int i = 0; i < 3; ++i) {
    const double center = 0.5 * (fixed.size[i] - 1), radius = 0.5 * std::max(fixed.size[i] - 1, 1);
    a.m[i][i] = 1 / radius;
    a.m[i][3] = -center / radius;
  }
  return a;
}

AffineMap NormalizedToIndex(const Geometry& fixed) {
  AffineMap a;
  for (int i = 0; i < 3; ++i) {
    a.m[i][i] = 0.5 * std::max(fixed.size[i] - 1, 1);
    a.m[i][3] = 0.5 * (fixed.size[i] - 1);
  }
  return a;
}

absl::Status EvaluateAffineObjective(const ExecContext& ctx, const AffineObjective& objective, const AffineMap& w,
                                     NormalEquations* sums) {
  if (!TraitsOf(objective.metric).has_hessian) {
    return absl::UnimplementedError(absl::StrCat("metric: ", MetricName(objective.metric), " has no affine objective"));
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("fixed_mask", objective.fixed_mask, objective.fixed.geometry));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("moving_mask", objective.moving_mask, objective.moving.geometry));
  return INTRAWARP_DISPATCH(ctx, EvaluateAffineObjective, objective, w, sums);
}

}  // namespace intrawarp
