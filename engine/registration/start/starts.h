// SPDX-License-Identifier: Apache-2.0
// The search of a start, for a registration that was given none.
//
// The candidates are header alignment, the translation that brings the centres of mass together, rotations about the
// centre of mass (rotations.h; in 2-D within the plane), and the same rotations after a reflection. A reflection is
// never the answer: bodies are not mirrored, images are, and a reflected candidate that beats the rest says so.
//
// The candidates of a slice (levels.h) are header alignment, the centres of mass, and header alignment after a
// displacement of the slice's grid: kSliceOffsets along its normal times kSliceTilts about its axes times kSliceTurns
// in its plane, about its middle. A reflected slice is one that is turned over, so no candidate is reflected, and every
// candidate is evaluated at the coarsest level.
//
// Every other candidate is evaluated once at the screening level (the pyramid level below the coarsest of affine.h
// where there is one); the best are optimised there, and the best of those at the coarsest level, by the rigid
// optimiser whatever the method of the first stage. Where the coarse rotations give no clear winner, the fine ones
// follow. Close rivals of the winner are compared again at up to two finer levels.
//
// The score of a map is o v + (1 - o) v0, and lower is better: v is the objective in the optimiser's unit, o the
// overlap of the bodies, and v0 the median objective of the rotations before optimisation, the value of images that
// have nothing to do with each other (for a slice, of its candidates; its overlap is that of its own body). A body
// without a counterpart counts as unlike, so little overlap cannot win.
//
// The margin of the winner (score s1) over the best map that is clearly different (score s2) is (s2 - s1) / (v0 - s1):
// the part of the winner's gain over unrelated images that its rival lacks. It has no unit, and does not depend on the
// scale of the metric or of the images; it is 0 where v0 - s1 is below 0.005, as for a ball. Header alignment counts as
// the winner where the best is ahead of it by less than kLeastStartMargin (verdict.h).
//
// Landmarks (transform/landmark.h) move no candidate and change no score. Among proper candidates that the images do
// not tell apart (a lead below kLeastStartMargin), their term at the candidate's map is added to the score, for the
// order and for the margin. A screening keeps the best by score whatever landmarks say, and besides them the best with
// landmarks.
#ifndef INTRAWARP_ENGINE_REGISTRATION_START_STARTS_H_
#define INTRAWARP_ENGINE_REGISTRATION_START_STARTS_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"
#include "engine/metric/metric.h"
#include "engine/registration/stage/levels.h"

namespace intrawarp {

enum class StartKind { kHeader, kCenterOfMass, kRotation, kMirrored, kNearHeader };

// The displacements of a slice that a search tries, in mm and degrees.
inline constexpr double kSliceOffsets[] = {0, -10, 10, -20, 20, -30, 30, -40, 40};
inline constexpr double kSliceTilts[] = {0, -20, 20};
inline constexpr double kSliceTurns[] = {0, -25, 25};

struct StartCandidate {
  StartKind kind = StartKind::kHeader;
  // The angle of the rotation about the centre of mass, degrees; of a mirrored candidate: after a reflection
  // of x (in 2-D along the first axis of the fixed grid); of one near the header: about the middle of the slice.
  double rotation_deg = 0;
  // For a candidate near the header: along the normal of the slice, mm.
  double offset_mm = 0;
  // Fixed to moving, LPS mm: before and after the optimisation.
  AffineMap start = AffineMap::Identity();
  AffineMap end = AffineMap::Identity();
  // At the coarsest level: before (absent where undefined) and after the optimisation.
  std::optional<double> score_before;
  double score_after = 0;
  // At the end: the larger of the parts of the two bodies that the other image (mask) covers.
  double overlap = 0;
};

struct StartReport {
  // The candidates that were optimised at the coarsest level and ended more than kDistinctVoxels of its voxels apart:
  // the winner first, the other proper ones by score_after, then the mirrored ones. Empty when no objective was defined
  // anywhere, or when a budget ended the search before.
  std::vector<StartCandidate> candidates;
  // 0 to 1: 1 when every candidate ended at the winner, 0 when the winner's overlap is below kLeastStartOverlap. Absent
  // without a winner.
  std::optional<double> margin;
  // (s - m) / (v0 - min(s, m)) with the scores s and m of the best proper and the best mirrored candidate: above 0
  // where the mirrored one fits better. Absent without either.
  std::optional<double> mirror_lead;
  // Evaluations of the objective, on all levels.
  int evaluations = 0;
};

// Maps whose mean distance over the fixed body is more than so many voxels of the coarsest level are clearly different.
inline constexpr double kDistinctVoxels = 2, kDistinctPixelsOfSlice = 1;
// Where less of both bodies is covered, what is not seen could decide otherwise.
inline constexpr double kLeastStartOverlap = 0.5;

struct StartSearch {
  // The winner as it was proposed and as it was optimised. Header alignment when nothing else is known.
  AffineMap start = AffineMap::Identity();
  AffineMap found = AffineMap::Identity();
  StartKind kind = StartKind::kHeader;
  StartReport report;
};

// The metric that a search uses for a first stage of `metric`: SSD for SSD, and NGF, which finds its way on a level of
// 12^3 voxels where joint histograms and local windows have too few samples, for the rest.
MetricKind StartMetric(MetricKind metric);

// The metric of the first stage. Looks at the checkpoint between evaluations: kStop returns what is known so far,
// kCancel returns CANCELLED. Workspace: as for the rigid method with StartMetric. Waits for the stream.
absl::StatusOr<StartSearch> SearchStart(const ExecContext& ctx, const RegistrationImages& images, MetricKind metric);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_START_STARTS_H_
