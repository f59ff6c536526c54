// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/choose/automatic_rules.h"

#include "absl/types/span.h"
#include "engine/quality/deformation_gate.h"

namespace intrawarp {
namespace {

// NGF takes central differences on every axis of the fixed image that is longer than one voxel.
bool HasGradients(const Geometry& fixed) { return fixed.size.x != 2 && fixed.size.y != 2 && fixed.size.z != 2; }

}  // namespace

std::vector<MetricKind> AffineMetrics(const Geometry& fixed) {
  const absl::Span<const MetricKind> all =
      fixed.is_2d() ? absl::MakeConstSpan(kPlaneTrials) : absl::MakeConstSpan(kAffineTrials);
  std::vector<MetricKind> metrics;
  for (const MetricKind metric : all) {
    if (metric != MetricKind::kNgf || HasGradients(fixed)) metrics.push_back(metric);
  }
  return metrics;
}

MetricKind SearchMetric(const Geometry& fixed) { return HasGradients(fixed) ? MetricKind::kNgf : MetricKind::kSsd; }

bool IsOnALine(const std::optional<IntensityRelation>& intensities) {
  return intensities.has_value() && intensities->linearity() >= kLeastLinearity;
}

bool FitsALine(const std::optional<IntensityRelation>& intensities) {
  return IsOnALine(intensities) && intensities->lack_of_fit() <= kMostLackOfFit;
}

ChoiceReason ReasonFor(const Geometry& fixed, const std::optional<IntensityRelation>& intensities) {
  if (fixed.is_2d()) return ChoiceReason::kPlane;
  if (!intensities.has_value()) return ChoiceReason::kUnknownIntensities;
  return IsOnALine(intensities) && intensities->correlation > 0 ? ChoiceReason::kLinearIntensities
                                                                : ChoiceReason::kOtherIntensities;
}

bool IsAhead(const std::optional<ErrorEstimate>& a, const std::optional<ErrorEstimate>& b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() && !b.has_value();
  return a->expected_mm < kClearlySmaller * b->expected_mm;
}

AffineMap MeanOf(absl::Span<const AffineMap> maps) {
  AffineMap mean;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) {
      double sum = 0;
      for (const AffineMap& map : maps) sum += map.m[r][c];
      mean.m[r][c] = sum / static_cast<double>(maps.size());
    }
  }
  return mean;
}

bool TakesTheLead(const DeformationTrial& trial, const DeformationTrial& best, bool keeps_rejected) {
  if (trial.is_accepted != best.is_accepted) return trial.is_accepted;
  const bool last_stays = !trial.is_accepted && !keeps_rejected;
  return last_stays || IsAhead(trial.error, best.error);
}

bool TakesSearch(const std::optional<ErrorEstimate>& affine, const DeformationTrial& first) {
  if (!affine.has_value() || affine->agreement >= kAgreedAlready) return false;
  if (!first.is_accepted || !first.error.has_value()) return false;
  return first.error->expected_mm >= kLeftForSearch * affine->expected_mm;
}

bool SearchLeads(const DeformationTrial& searched, const DeformationTrial& best) {
  if (!searched.is_accepted || !searched.error.has_value() || !best.error.has_value()) return false;
  const bool is_ahead = searched.error->expected_mm < kFarSmaller * best.error->expected_mm;
  return is_ahead && searched.gain.value_or(0) >= kAsLargeGain * best.gain.value_or(0);
}

bool RefinementLeads(const DeformationTrial& refined, const DeformationTrial& best) {
  return refined.is_accepted && !IsAhead(best.error, refined.error);
}

bool TakesStrongBending(const std::optional<ErrorEstimate>& affine) {
  return affine.has_value() && affine->agreement < kAgreedAlready;
}

}  // namespace intrawarp
