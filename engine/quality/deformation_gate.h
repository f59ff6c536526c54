// SPDX-License-Identifier: Apache-2.0
// The gate asks if a deformation is worth its way: the tissue that it moves has to come nearer to its counterpart.
//
// A deformation that is right and moves the tissue by d mm takes about d mm off the error. One that fits noise, or
// makes unlike things alike, moves it as far, and the residual probe sees hardly less error than with the affine part
// alone.
//
// The affine part has a say, too: where it stands, kErrorQuantile of its errors are below their bound, and a
// deformation that is right is about as long as the error that it takes away. One that moves more of the tissue further
// than that contradicts what was seen of the affine part.
#ifndef INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_
#define INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/quality/predicted_error.h"
#include "engine/quality/residual_probe.h"
#include "engine/transform/transform.h"

namespace intrawarp {

struct DeformationEvidence {
  // ErrorEstimate.expected_mm of the affine part alone, and of the whole transform.
  double affine_expected_mm = 0;
  double expected_mm = 0;
  // MeanDeformation.
  double deformation_mm = 0;
  // Side of a node of the probe.
  double node_mm = 1;
};

// The mean of |T(x) - A(x)| over the centres of the matched blocks; 0 without any. Waits for the stream. Workspace:
// MeanDeformationWorkspaceBytes, which is less than that of the probe.
absl::StatusOr<double> MeanDeformation(const ExecContext& ctx, const Transform& transform, const ResidualProbe& probe);
size_t MeanDeformationWorkspaceBytes(const Geometry& fixed);

// How many matched blocks a deformation moves, and how many of them further than their bound.
struct BoundedMoves {
  int64_t blocks = 0;
  int64_t beyond = 0;
};
// `affine` is the probe of the transform's affine part. Waits for the stream. Workspace: MeanDeformationWorkspaceBytes.
absl::StatusOr<BoundedMoves> CountBoundedMoves(const ExecContext& ctx, const Transform& transform,
                                               const ResidualProbe& affine);
// True with more blocks beyond than the 1 - kErrorQuantile that may be, by two standard deviations of a binomial count.
bool ContradictsBound(const BoundedMoves& moves);

// The part of its way that a deformation gains: the fall of the expected error over the mean deformation. The way
// counts up to kSearchRadius nodes, since the probe sees no further. 1 for a way of less than half a node, which the
// probe cannot judge and which does little harm.
double GainOf(const DeformationEvidence& evidence);
// A deformation that gains less is rejected: the images do not ask for most of its way. The probe takes what fits
// noise for a part of the gain, so that one that gains a third can still do harm.
inline constexpr double kLeastGain = 0.5;

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_
