// SPDX-License-Identifier: Apache-2.0
// The rules by which an automatic registration chooses (automatic.h): plain functions of numbers.
#ifndef INTRAWARP_ENGINE_REGISTRATION_CHOOSE_AUTOMATIC_RULES_H_
#define INTRAWARP_ENGINE_REGISTRATION_CHOOSE_AUTOMATIC_RULES_H_

#include <array>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"
#include "engine/metric/metric.h"
#include "engine/quality/deformation_gate.h"
#include "engine/quality/predicted_error.h"
#include "engine/registration/choose/choice.h"
#include "engine/registration/choose/intensity_relation.h"

namespace intrawarp {

inline constexpr std::array kAffineTrials = {MetricKind::kNgf, MetricKind::kNmi};
inline constexpr std::array kPlaneTrials = {MetricKind::kNgf, MetricKind::kNmi, MetricKind::kSsd};
// A result is ahead where its expected error is below this part of the one before it.
inline constexpr double kClearlySmaller = 0.95;
inline constexpr double kLeastLinearity = 0.93;
// IntensityRelation.lack_of_fit.
inline constexpr double kMostLackOfFit = 0.25;
inline constexpr double kStrongBending = 20;
// The ffd stages that follow a search or another ffd stage have these (FfdOptions): MIND after a search, and LNCC after
// MIND or NMI.
inline constexpr double kFineSpacingVox = 3, kFeatureBending = 0.35, kDetailBending = 0.25;
// The first deformation leaves this part of the affine part's expected error, or more, where a search is tried.
inline constexpr double kLeftForSearch = 0.1;
// The result after a search is ahead where its expected error is below this part of the other's, and its gain is this
// part of the other's or more.
inline constexpr double kFarSmaller = 0.86, kAsLargeGain = 0.9;

// For a fixed image on this grid: the metrics of the affine trials, in their order, and the metric of the search of a
// start. NGF is not among them where an axis of two voxels has no gradients.
std::vector<MetricKind> AffineMetrics(const Geometry& fixed);
MetricKind SearchMetric(const Geometry& fixed);

// True when intensities are known to lie on a straight line, rising or falling.
bool IsOnALine(const std::optional<IntensityRelation>& intensities);
// True when that line explains the intensities but for their scatter: those of one modality. Two weightings of MRI can
// pass for a line by their linearity alone.
bool FitsALine(const std::optional<IntensityRelation>& intensities);
ChoiceReason ReasonFor(const Geometry& fixed, const std::optional<IntensityRelation>& intensities);

// True when result `a` is clearly better than `b`. A result of unknown error is behind every other.
bool IsAhead(const std::optional<ErrorEstimate>& a, const std::optional<ErrorEstimate>& b);

// The affine results of two or more metrics that agree to within so many nodes of the probe are estimates of one map.
inline constexpr double kOneMapNodes = 1;
// The mean of maps that lie close to each other: of their matrices, entry by entry. Between rotations that are an angle
// t apart it shrinks by t^2 / 8. `maps` is not empty.
AffineMap MeanOf(absl::Span<const AffineMap> maps);

// True when a trial takes the place of the best so far. Of rejected ones the last stays, which the affine part
// replaces; where they are kept (`keeps_rejected`), the one that is ahead.
bool TakesTheLead(const DeformationTrial& trial, const DeformationTrial& best, bool keeps_rejected);

// True when NMI with kStrongBending (and kAgreedAlready) is tried after rejected deformations.
bool TakesStrongBending(const std::optional<ErrorEstimate>& affine);

// True when a discrete search is tried: the affine result does not agree yet (kAgreedAlready), and the first
// deformation was accepted and leaves more than a little (kLeftForSearch). Where it was rejected, the images may have
// nothing in common, and a search joins them.
bool TakesSearch(const std::optional<ErrorEstimate>& affine, const DeformationTrial& first);
// True when a result after a search takes the place of the best so far, which was accepted: it is accepted, too, its
// expected error is below kFarSmaller of the other, and its deformation gains nearly as large a part of its way
// (kAsLargeGain). A longer way that gains less is due to noise.
bool SearchLeads(const DeformationTrial& searched, const DeformationTrial& best);
// True when a refinement takes the place of the accepted deformation that it continues: it is accepted, too, and the
// other is not clearly better.
bool RefinementLeads(const DeformationTrial& refined, const DeformationTrial& best);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_CHOOSE_AUTOMATIC_RULES_H_
