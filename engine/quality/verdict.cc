// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/verdict.h"

#include <algorithm>
#include <cmath>

#include "engine/quality/deformation_gate.h"

namespace intrawarp {

const char* ReviewText(ReviewCause cause) {
  switch (cause) {
    case ReviewCause::kWorseThanStart:
      return "worse than the start";
    case ReviewCause::kFolding:
      return "folding";
    case ReviewCause::kLowOverlap:
      return "low overlap";
    case ReviewCause::kNotConverged:
      return "not converged";
    case ReviewCause::kImplausibleAffine:
      return "implausible affine map";
    case ReviewCause::kAmbiguousStart:
      return "ambiguous start";
    case ReviewCause::kMirrored:
      return "mirrored images";
    case ReviewCause::kErrorAboveLimit:
      return "error above the limit";
    case ReviewCause::kUnrelatedImages:
      return "unrelated images";
    case ReviewCause::kDeformationRejected:
      return "deformation rejected";
    case ReviewCause::kErrorUnknown:
      return "error unknown";
    case ReviewCause::kPoseNotObserved:
      return "pose not observed";
    case ReviewCause::kSpatiallyUneven:
      return "spatially uneven";
    case ReviewCause::kBoundAboveLimit:
      return "bound above the limit";
    case ReviewCause::kUnitsDiffer:
      return "units differ";
    case ReviewCause::kNotCorrelated:
      return "not correlated";
    case ReviewCause::kPartlyVisible:
      return "partly visible";
    case ReviewCause::kNoGain:
      return "no gain";
    case ReviewCause::kMissingTissue:
      return "missing tissue";
    case ReviewCause::kLandmarksMissed:
      return "landmarks missed";
    case ReviewCause::kTurned:
      return "turned by the deformation";
  }
  return "";
}

namespace {

// One rotation of Jacobi's method for symmetric matrices (Golub and Van Loan, algorithm 8.5.1): s[p][q] becomes 0.
void RotateAway(int p, int q, double s[3][3]) {
  if (s[p][q] == 0) return;
  const double tau = (s[q][q] - s[p][p]) / (2 * s[p][q]);
  const double t = (tau < 0 ? -1 : 1) / (std::abs(tau) + std::hypot(1.0, tau));
  const double cosine = 1 / std::hypot(1.0, t), sine = t * cosine;
  for (int i = 0; i < 3; ++i) {
    const double x = s[i][p], y = s[i][q];
    s[i][p] = cosine * x - sine * y;
    s[i][q] = sine * x + cosine * y;
  }
  for (int i = 0; i < 3; ++i) {
    const double x = s[p][i], y = s[q][i];
    s[p][i] = cosine * x - sine * y;
    s[q][i] = sine * x + cosine * y;
  }
}

// The reason says which number is wrong, and its limit; nullopt when nothing is wrong. NaN is wrong.
std::optional<ReviewReason> Implausible(const AffineShape& shape) {
  constexpr ReviewCause kCause = ReviewCause::kImplausibleAffine;
  if (shape.mirrors) return ReviewReason{kCause, -1.0, 0.0};
  if (!(shape.min_stretch >= kLeastStretch)) return ReviewReason{kCause, shape.min_stretch, kLeastStretch};
  if (!(shape.max_stretch <= kMostStretch)) return ReviewReason{kCause, shape.max_stretch, kMostStretch};
  return std::nullopt;
}

}  // namespace

AffineShape ShapeOf(const AffineMap& map) {
  // The singular values of A are the roots of the eigenvalues of A^T A.
  double s[3][3];
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) {
      s[r][c] = map.m[0][r] * map.m[0][c] + map.m[1][r] * map.m[1][c] + map.m[2][r] * map.m[2][c];
    }
  }
  constexpr int kSweeps = 12;
  for (int turn = 0; turn < 3 * kSweeps; ++turn) RotateAway(turn % 3, (turn + 1) % 3, s);
  const auto [least, most] = std::minmax({s[0][0], s[1][1], s[2][2]});
  return {std::sqrt(std::max(0.0, least)), std::sqrt(most), Determinant(map) < 0};
}

namespace {

// Images that have nothing in common where the result, or the affine part before a deformation, puts them.
std::optional<ReviewReason> Unrelated(const ErrorEstimate& error) {
  constexpr ReviewCause kCause = ReviewCause::kUnrelatedImages;
  const double least = LeastAgreement(error);
  if (error.agreement < least) return ReviewReason{kCause, error.agreement, least};
  // A deformation makes blocks agree, but not clearly where the images have nothing in common.
  const bool is_clear = error.bound_mm <= error.reach_mm;
  if (error.affine_agreement && *error.affine_agreement < least && !is_clear) {
    return ReviewReason{kCause, *error.affine_agreement, least};
  }
  return std::nullopt;
}

// The reasons that the estimate gives; none without an estimate. Comparisons are written so that NaN is a reason.
std::vector<ReviewReason> ErrorReasons(const QualityReport& report, double limit_mm) {
  std::vector<ReviewReason> reasons;
  if (!report.error) return reasons;
  const ErrorEstimate& error = *report.error;
  if (const std::optional<ReviewReason> unrelated = Unrelated(error)) reasons.push_back(*unrelated);
  if (!(error.clear_matches >= error.fixing_points)) {
    reasons.push_back({ReviewCause::kErrorUnknown, error.clear_matches, error.fixing_points});
  }
  const double most_mm = std::min(limit_mm, kMostReaches * error.reach_mm);
  if (!(error.expected_mm <= most_mm)) reasons.push_back({ReviewCause::kErrorAboveLimit, error.expected_mm, most_mm});
  const double most_bound_mm = kMostBoundLimits * limit_mm;
  if (!(error.bound_mm <= most_bound_mm)) {
    reasons.push_back({ReviewCause::kBoundAboveLimit, error.bound_mm, most_bound_mm});
  }
  const double most_in_region_mm = kMostRegionReaches * error.reach_mm;
  if (error.worst_region_expected_mm && !(*error.worst_region_expected_mm <= most_in_region_mm)) {
    reasons.push_back({ReviewCause::kSpatiallyUneven, *error.worst_region_expected_mm, most_in_region_mm});
  }
  if (report.is_deformed && !(error.visible_fraction >= kLeastVisible)) {
    reasons.push_back({ReviewCause::kPartlyVisible, error.visible_fraction, kLeastVisible});
  }
  return reasons;
}

// Whether the start has to be the right one, by the estimate of the affine part alone.
bool IsCertainOfStart(const QualityReport& report) {
  const ErrorEstimate& error = *report.error;
  if (report.is_deformed && !error.affine_agreement) return false;
  return error.affine_agreement.value_or(error.agreement) >= kCertainAgreement &&
         error.affine_bound_mm.value_or(error.bound_mm) <= error.reach_mm;
}

// Smooth images that have nothing in common agree, too: their few blocks have 4 to 8 clear matches.
bool StandsByItself(const ErrorEstimate& affine) {
  constexpr double kMatchesAPoint = 3;
  return affine.clear_matches >= kMatchesAPoint * affine.fixing_points;
}

// Undefined where one of the images is constant, which no metric can register.
std::optional<ReviewReason> NotCorrelated(const QualityReport& report) {
  constexpr ReviewCause kCause = ReviewCause::kNotCorrelated;
  if (!report.is_probed) return std::nullopt;
  const std::optional<double> ncc = report.after.ncc;
  const bool is_low = !ncc || (report.takes_like_intensities && !(*ncc >= kLeastCorrelation));
  return is_low ? std::optional<ReviewReason>({kCause, ncc, kLeastCorrelation}) : std::nullopt;
}

}  // namespace

std::vector<ReviewReason> ReviewReasons(const QualityReport& report, bool worse_than_start, Ending ending,
                                        double error_limit_mm) {
  std::vector<ReviewReason> reasons;
  if (worse_than_start) reasons.push_back({ReviewCause::kWorseThanStart});
  const double folding = report.jacobian.nonpositive_fraction;
  if (folding > 0) reasons.push_back({ReviewCause::kFolding, folding, 0.0});
  // Written so that NaN is low.
  if (!(report.overlap >= kLowOverlap)) reasons.push_back({ReviewCause::kLowOverlap, report.overlap, kLowOverlap});
  if (const std::optional<ReviewReason> reason = Implausible(report.affine)) reasons.push_back(*reason);
  const std::vector<ReviewReason> of_error = ErrorReasons(report, error_limit_mm);
  const bool is_sound = report.error.has_value() && of_error.empty();
  const bool agrees = is_sound && report.error->agreement >= kCertainAgreement;
  if (report.start_margin.value_or(1) < kLeastStartMargin && !(is_sound && IsCertainOfStart(report))) {
    reasons.push_back({ReviewCause::kAmbiguousStart, report.start_margin, kLeastStartMargin});
  }
  if (report.mirror_lead.value_or(0) > kMostMirrorLead) {
    reasons.push_back({ReviewCause::kMirrored, report.mirror_lead, kMostMirrorLead});
  }
  if (report.slice_observability.value_or(1) < kLeastObservability) {
    reasons.push_back({ReviewCause::kPoseNotObserved, report.slice_observability, kLeastObservability});
  }
  if (report.missing_fraction.value_or(0) > kMostMissing) {
    reasons.push_back({ReviewCause::kMissingTissue, report.missing_fraction, kMostMissing});
  }
  if (report.landmarks && report.landmarks->max_sigmas > kMostLandmarkSigmas) {
    reasons.push_back({ReviewCause::kLandmarksMissed, report.landmarks->max_sigmas, kMostLandmarkSigmas});
  }
  if (report.turn_degrees.value_or(0) > kMostTurnDegrees) {
    reasons.push_back({ReviewCause::kTurned, *report.turn_degrees, kMostTurnDegrees});
  }
  if (report.rejected_gain) {
    const bool is_told_only = agrees && StandsByItself(*report.error) && !report.keeps_rejected;
    reasons.push_back({ReviewCause::kDeformationRejected, *report.rejected_gain, kLeastGain, is_told_only});
    const bool is_in_vain = report.keeps_rejected && !(*report.rejected_gain > 0);
    if (is_in_vain) reasons.push_back({ReviewCause::kNoGain, *report.rejected_gain, 0.0});
  }
  reasons.insert(reasons.end(), of_error.begin(), of_error.end());
  if (!report.error && report.is_probed) reasons.push_back({ReviewCause::kErrorUnknown});
  if (report.extent_ratio > kMostExtentRatio) {
    reasons.push_back({ReviewCause::kUnitsDiffer, report.extent_ratio, kMostExtentRatio});
  }
  if (const std::optional<ReviewReason> reason = NotCorrelated(report)) reasons.push_back(*reason);
  const bool excused = ending == Ending::kUnfinished && is_sound;
  if (ending != Ending::kConverged && !excused) reasons.push_back({ReviewCause::kNotConverged});
  return reasons;
}

bool NeedsReview(const std::vector<ReviewReason>& reasons) {
  return std::any_of(reasons.begin(), reasons.end(), [](const ReviewReason& reason) { return !reason.is_told_only; });
}

}  // namespace intrawarp
