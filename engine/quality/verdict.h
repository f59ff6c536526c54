// SPDX-License-Identifier: Apache-2.0
// The quality report that travels with every result, and the verdict that follows from it: the reasons why a person
// should look at the result. Plain values; the functions are pure.
#ifndef INTRAWARP_ENGINE_QUALITY_VERDICT_H_
#define INTRAWARP_ENGINE_QUALITY_VERDICT_H_

#include <optional>
#include <vector>

#include "engine/geometry/geometry.h"
#include "engine/quality/jacobian.h"
#include "engine/quality/predicted_error.h"
#include "engine/quality/similarity.h"
#include "engine/transform/landmark.h"

namespace intrawarp {

enum class ReviewCause {
  kWorseThanStart,
  kFolding,
  kLowOverlap,
  kNotConverged,
  kImplausibleAffine,
  kAmbiguousStart,
  kMirrored,
  kErrorAboveLimit,
  kUnrelatedImages,
  kDeformationRejected,
  kErrorUnknown,
  kPoseNotObserved,
  kSpatiallyUneven,
  kBoundAboveLimit,
  kUnitsDiffer,
  kNotCorrelated,
  kPartlyVisible,
  kNoGain,
  kMissingTissue,
  kLandmarksMissed,
  kTurned,
};
// In words: "worse than the start", "folding", "low overlap", "not converged", "implausible affine map", "ambiguous
// start", "mirrored images", "error above the limit", "unrelated images", "deformation rejected", "error unknown",
// "pose not observed", "spatially uneven", "bound above the limit", "units differ", "not correlated", "partly visible",
// "no gain", "missing tissue", "landmarks missed", "turned by the deformation".
const char* ReviewText(ReviewCause cause);

// A reason why a person should look at a result.
struct ReviewReason {
  ReviewCause cause = ReviewCause::kNotConverged;
  // The number that was judged and the one that it was held against; absent where the cause has none.
  std::optional<double> value = std::nullopt;
  std::optional<double> limit = std::nullopt;
  // This reason tells what was done with the result, and asks nobody to look.
  bool is_told_only = false;
};

// The shape of the affine part: its smallest and largest singular value, and whether it mirrors space.
struct AffineShape {
  double min_stretch = 1;
  double max_stretch = 1;
  bool mirrors = false;
};

AffineShape ShapeOf(const AffineMap& map);

struct QualityReport {
  Similarity before;
  Similarity after;
  AffineShape affine;
  double overlap = 0;
  JacobianStatistics jacobian;
  // Absent where the method has no inverse.
  std::optional<InverseConsistency> inverse_consistency;
  // The search of a start gives these (registration/start/starts.h); absent where a start was given, or nothing was to
  // compare.
  std::optional<double> start_margin;
  std::optional<double> mirror_lead;
  // For a slice in a volume (registration/start/slice_pose.h); absent for other images.
  std::optional<double> slice_observability;
  // The part of what both images cover that has no counterpart (missing_tissue.h); absent where nobody looked.
  std::optional<double> missing_fraction;
  // How far the result is from the landmarks; absent without any.
  std::optional<LandmarkFit> landmarks;
  // How far the deformation turns the body, degrees (deformation_ways.h); absent for an affine result, after a rigid or
  // affine stage, where there is too little structure to judge by, and where a registration judged itself.
  std::optional<double> turn_degrees;
  // Absent where there is too little structure to judge by.
  std::optional<ErrorEstimate> error;
  // An estimate was asked for: without `error` there is too little to judge by.
  bool is_probed = false;
  // The last stage deformed the image, and its deformation is part of the answer.
  bool is_deformed = false;
  // The last stage compares intensities as they are (SSD).
  bool takes_like_intensities = false;
  // The longest side of one image over the longest of the other, 1 or more.
  double extent_ratio = 1;
  // On demand, and not without `error`.
  std::optional<ErrorMap> error_map;
  std::vector<PointError> error_at;
  // The gain of a deformation that was rejected (deformation_gate.h); absent: none was.
  std::optional<double> rejected_gain;
  // The deformation is the answer all the same, since the caller keeps deformations.
  bool keeps_rejected = false;
  // The verdict is ok unless NeedsReview.
  std::vector<ReviewReason> review_reasons;
};

// Below this fraction of the fixed image (mask), a result is marked "low overlap".
inline constexpr double kLowOverlap = 0.4;

// An affine part that shortens some direction to less than the first, lengthens one to more than the second, or mirrors
// space is marked "implausible affine map". Bodies differ by less: a child's head is 0.7 of an adult's.
inline constexpr double kLeastStretch = 0.5;
inline constexpr double kMostStretch = 2.0;

// A start with a smaller margin is marked "ambiguous start"; a mirrored candidate that leads by more marks the images
// "mirrored images". On known pairs as they come, right starts have margins of 0.25 and more; turned, wrong ones have
// 0.12 and less. Beside a right start a mirrored candidate leads by 0.016 at most (docs/evidence/accuracy.md, Starts).
inline constexpr double kLeastStartMargin = 0.15;
inline constexpr double kMostMirrorLead = 0.02;
// A start without a margin is not a reason where the estimate of the answer gives none and so many blocks agree: a
// wrong start leaves few that do. There a deformation that was rejected is told only: what is left of it is an affine
// result that stands by itself. The blocks of a start have to be clear, too, so that no rival is as good: the median of
// their bounds is no more than the reach. For a deformation all this is asked of its affine part, since a deformation
// makes blocks agree.
inline constexpr double kCertainAgreement = 0.8;

// The expected error says nothing above so many reaches (ErrorEstimate.reach_mm): unrelated images have about 1.6.
inline constexpr double kMostReaches = 0.5;
// A bound, at the median block, above so many limits is "bound above the limit": half of the blocks cannot tell the
// result from one that is so far off.
inline constexpr double kMostBoundLimits = 8;
// A region whose expected error is above so many reaches is matched no better than by chance: "spatially uneven".
inline constexpr double kMostRegionReaches = 1;
// A deformable stage fits what is not seen, too: with less of the structure in both images, "partly visible".
inline constexpr double kLeastVisible = 0.65;
// With more of what both images cover without a counterpart: "missing tissue".
inline constexpr double kMostMissing = 0.2;
// A landmark that is missed by more of its sigmas, of which a voxel is the least, disagrees with the images: "landmarks
// missed". Of landmarks as sure as they say, one in 1,000 is missed by so much.
inline constexpr double kMostLandmarkSigmas = 4;
// A deformation without an affine stage that turns the body by more degrees makes up for one: structures come to lie on
// their counterparts, and what lies between them is sheared. "turned by the deformation" (docs/evidence/accuracy.md, A
// frame after a jump). After an affine stage a liver that breathes may turn by as much.
inline constexpr double kMostTurnDegrees = 5;
// Extents of bodies and of parts of them, 15 to 600 mm, differ by less; metres and millimetres by 1000.
inline constexpr double kMostExtentRatio = 50;
// A correlation below that, after a stage that takes like intensities, explains not a hundredth of the variance.
inline constexpr double kLeastCorrelation = 0.1;

// A slice whose objective rises by less than this part when it leaves its plane, of the rise that the same movement in
// its plane brings, is marked "pose not observed" (docs/evidence/accuracy.md, Slice to volume).
inline constexpr double kLeastObservability = 0.05;

// The expected error that is held against the estimate's, in mm, where a request names none.
inline constexpr double kDefaultErrorLimitMm = 5;

// How a registration ended, as far as the verdict goes.
enum class Ending {
  kConverged,
  // Out of iterations, or without descent: a reason unless there is an estimate of the error that gives none.
  kUnfinished,
  // Cut short by a budget: always a reason.
  kCutShort,
};

// The reasons, from the rest of the report. `worse_than_start`: the objective of the registration ended above its
// start. An error estimate has its own: an agreement below LeastAgreement (of the affine part before a deformation,
// too, unless the matches of the whole are clear), fewer clear matches than fix an affine map, an expected error above
// the smaller of `error_limit_mm` and kMostReaches, and what the constants above say of bounds, regions and visibility.
// The absence of an estimate is a reason where is_probed.
std::vector<ReviewReason> ReviewReasons(const QualityReport& report, bool worse_than_start, Ending ending,
                                        double error_limit_mm = kDefaultErrorLimitMm);
// True with a reason that is more than told.
bool NeedsReview(const std::vector<ReviewReason>& reasons);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_VERDICT_H_
