// SPDX-License-Identifier: Apache-2.0
// The gate asks if a deformation is worth its way: the tissue that it moves has to come nearer to its counterpart.
//
// A deformation that is right and moves the tissue by d mm takes about d mm off the error. One that fits noise, or
// makes unlike things alike, moves it as far, and the residual probe sees hardly less error than with the affine part
// alone.
#ifndef INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_
#define INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
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

// The part of its way that a deformation gains: the fall of the expected error over the mean deformation. The way
// counts up to kSearchRadius nodes, since the probe sees no further. 1 for a way of less than half a node, which the
// probe cannot judge and which does little harm.
double GainOf(const DeformationEvidence& evidence);
// A deformation that gains less is rejected.
inline constexpr double kLeastGain = 0.2;

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_DEFORMATION_GATE_H_
