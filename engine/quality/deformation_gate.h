// SPDX-License-Identifier: Apache-2.0
// The gate asks if a deformation is worth its way: the tissue that it moves has to come nearer to its counterpart.
//
// The judges are the blocks of the residual probe that the deformation moves by kMoved nodes and more. A block that
// does not move has no say, so that a bump around a lesion is judged at the lesion, and a shift of everything
// everywhere. A deformation is believed when
// - the blocks gain: the sum of their expected errors falls by kLeastGain of the way that they are moved;
// - the affine part's own probe, which knew nothing of the deformation, foretold it: the displacements that it found
//   there point where the deformation goes (kLeastForetold). A deformation that makes unlike things alike gains, too,
//   but was not foretold. Where the way is longer than the probe reaches, the intensities speak instead: the
//   deformation leaves at most kFewUnexplained of their variance unexplained, which is at most kFarLess of what was
//   before;
// - it does not contradict the affine part: where that agrees, kErrorQuantile of its errors are below their bound, and
// a
//   deformation that is right is about as long as the error that it takes away. One that moves more of the tissue
//   further than that contradicts what was seen.
// Intensities that fall into place nearly completely (kLeftOfNearlyAll) in three quarters of the blocks that moved
// overrule the rest: the other quarter may be a lesion that only one image shows.
#ifndef INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_
#define INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/image/pyramid.h"
#include "engine/quality/predicted_error.h"
#include "engine/quality/residual_probe.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// Nodes of the probe. A shorter way is below what the probe sees, and does little harm.
inline constexpr double kMoved = 0.25;
// With fewer blocks that moved there is nothing to judge: the deformation stays.
inline constexpr int kLeastMovedBlocks = 8;
inline constexpr double kLeastGain = 0.4;
inline constexpr double kLeastForetold = 0.15;
inline constexpr double kFewUnexplained = 0.15;
inline constexpr double kFarLess = 0.25;
inline constexpr double kLeftOfNearlyAll = 0.2;

struct GateImages {
  const PreparedImage& fixed;
  const PreparedImage& moving;
  // The masks that MeasureSimilarity (similarity.h) takes.
  ConstMaskView fixed_mask, moving_mask;
};

// A transform as a probe of kProbeNodes saw it.
struct Probed {
  const ResidualProbe& probe;
  const ErrorEstimate& error;
};

// The evidence of the blocks that a deformation moves. Lengths are in nodes of the probe.
struct MovedBlocks {
  // The matched blocks of both probes that moved by kMoved or more.
  int64_t count = 0;
  // The fall of their expected errors over their way, both in sum. The way of a block counts up to kSearchRadius, since
  // the probe sees no further.
  double gain = 1;
  // The displacements that the affine part's probe found there, along the deformation and in its lengths: about 1 where
  // it sees what the deformation does, 0 where it does not.
  double foretold = 1;
};

// How much of the intensities' variance (1 - r^2) the other image does not explain by a straight line, before (affine
// part alone) and after: over the blocks with structure that moved, and over all of them.
struct Unexplained {
  double before = 1, after = 1, after_everywhere = 1;
  // In three quarters of the blocks that moved at most this part of the squared residuals from that line is left.
  double left_in_most = 1;
};

// How many blocks the affine part's probe matched, and how many of them agree with it (to within a node) and are moved
// further than their bound: where the affine part is off by more than the probe reaches, a bound means nothing.
struct BoundedMoves {
  int64_t blocks = 0;
  int64_t beyond = 0;
};
// True with more blocks beyond than the 1 - kErrorQuantile that may be, by two standard deviations of a binomial count.
bool ContradictsBound(const BoundedMoves& moves);

struct DeformationEvidence {
  MovedBlocks moved;
  Unexplained unexplained;
  BoundedMoves bounded;
  // The mean length of the deformation over the matched blocks of its own probe, mm.
  double deformation_mm = 0;
  double node_mm = 1;
  // ErrorEstimate.agreement of the affine part.
  double affine_agreement = 0;
  // The intensities are known to lie on a straight line, or nothing is known of them. Otherwise an affine part that
  // agrees already is contradicted by a deformation of more than kContradictionNodes in the mean.
  bool may_lie_on_a_line = true;
};
// ErrorEstimate.agreement of an affine result.
inline constexpr double kAgreedAlready = 0.9;
// The places in a ball of one node are 3/4 of a node from its centre in the mean.
inline constexpr double kContradictionNodes = 0.8;

bool Contradicts(const DeformationEvidence& evidence);
bool IsBelieved(const DeformationEvidence& evidence);

// The gate's answer on a deformation.
struct GateAnswer {
  DeformationEvidence evidence;
  // The part of its way that it gained.
  double gain() const { return evidence.moved.gain; }
  bool contradicts = false;
  bool is_accepted = true;
  // The estimate of the transform, held against its affine part (HoldAgainstAffine). Where the affine part
  // does not agree, and the affine map that is nearest to an accepted deformation does, the affine agreement and bound
  // are that map's: a shift that a deformable stage found from a start that was off is not a sign of unrelated images.
  ErrorEstimate error;
};

// Judges the deformation of T(x) = A(x + u(x)). `affine` is A only. Waits for the stream. Workspace: as for a probe.
// The samples of both images are summed up on the host.
absl::StatusOr<GateAnswer> JudgeDeformation(const ExecContext& ctx, const GateImages& images,
                                            const Transform& transform, const Probed& affine, const Probed& deformed,
                                            bool may_lie_on_a_line = true);

// The mean of |T(x) - A(x)| over the centres of the matched blocks; 0 without any. Waits for the stream. Workspace:
// MeanDeformationWorkspaceBytes, which is less than the probe's workspace.
absl::StatusOr<double> MeanDeformation(const ExecContext& ctx, const Transform& transform, const ResidualProbe& probe);
size_t MeanDeformationWorkspaceBytes(const Geometry& fixed);

// `ways` are the displacements u of a deformation, in mm, one a block of the probes, of which `before` is the affine
// part's; both probes have the same blocks.
MovedBlocks SumMovedBlocks(const ResidualProbe& before, const ResidualProbe& after, absl::Span<const Vec3d> ways);
BoundedMoves CountBoundedMoves(const ResidualProbe& before, absl::Span<const Vec3d> ways);

// The affine map x + B(x) with the least squared distance to x + u(x), u given at `places`; absent with fewer than
// kLeastBlocks of them, or when they lie in a plane that is not one of the image's (`axes` has the image's axes of more
// than one block).
std::optional<AffineMap> NearestAffine(absl::Span<const Vec3d> places, absl::Span<const Vec3d> ways,
                                       absl::Span<const Vec3d> axes);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_
