// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/metric/lncc.h"
#include "engine/metric/nmi.h"
#include "engine/metric/soft_mask.h"
#include "engine/metric/stored_images.h"

namespace intrawarp {
namespace {

absl::Status ValidateMask(const char* name, const ConstMaskView& mask, const Geometry& grid) {
  if (mask.data == nullptr || mask.geometry.size == grid.size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", SizeString(mask.geometry), " voxels, must be ", SizeString(grid), " as its image"));
}

absl::Status ValidateWeights(const AffineObjective& objective) {
  if (MaskingOf(objective.fixed_mask, objective.moving_mask) != Masking::kWeighted) return absl::OkStatus();
  if (objective.metric != MetricKind::kLncc) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("masks with weights: not in the affine objective of ", MetricName(objective.metric)));
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

absl::Status EvaluateAffineObjectives(const ExecContext& ctx, const AffineObjective& objective,
                                      absl::Span<const AffineMap> maps, NormalEquations* sums) {
  if (maps.size() > kMaxAffineMaps) {
    return absl::InvalidArgumentError(absl::StrCat("maps: ", maps.size(), ", at most ", kMaxAffineMaps, " at once"));
  }
  if (objective.nmi_bins < 4 || objective.nmi_bins > kNmiBins) {
    return absl::InvalidArgumentError(absl::StrCat("nmi_bins: ", objective.nmi_bins, " is not in [4, ", kNmiBins, "]"));
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("fixed_mask", objective.fixed_mask, objective.fixed.geometry));
  INTRAWARP_RETURN_IF_ERROR(ValidateMask("moving_mask", objective.moving_mask, objective.moving.geometry));
  INTRAWARP_RETURN_IF_ERROR(ValidateWeights(objective));
  if (maps.empty()) return absl::OkStatus();
  return INTRAWARP_DISPATCH(ctx, EvaluateAffineObjectives, objective, maps, sums);
}

absl::Status EvaluateAffineObjective(const ExecContext& ctx, const AffineObjective& objective, const AffineMap& w,
                                     NormalEquations* sums) {
  return EvaluateAffineObjectives(ctx, objective, absl::MakeConstSpan(&w, 1), sums);
}

int64_t AffineObjectiveWorkspaceBytes(MetricKind metric, Int3 fixed) {
  if (metric != MetricKind::kLncc) return kAffineSumsBytes;
  return kAffineSumsBytes + 3 * Arena::Rounded(Voxels(fixed) * sizeof(float)) + LnccWorkspaceBytes(fixed);
}

}  // namespace intrawarp
