// SPDX-License-Identifier: Apache-2.0
// The ways of a deformation: where it takes places before the affine part, and how far it turns them as a whole.
#ifndef INTRAWARP_ENGINE_QUALITY_DEFORMATION_WAYS_H_
#define INTRAWARP_ENGINE_QUALITY_DEFORMATION_WAYS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/vec.h"
#include "engine/quality/residual_probe.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// u(x) of T(x) = A(x + u(x)) at each place, LPS mm; 0 for an affine transform. The affine part is not singular. Waits
// for the stream. Workspace: MapPointsWorkspaceBytes.
absl::StatusOr<std::vector<Vec3d>> DeformationWays(const ExecContext& ctx, const Transform& transform,
                                                   absl::Span<const Vec3d> places);

// The angle in degrees of the rotation that takes the places closest to x + u(x), in the least squares about their
// centres (Arun, Huang and Blostein 1987; the orthogonal factor of the covariance by Higham's iteration, 1986). 0 for
// fewer than four places, and where the covariance has no rotation (places on a line, or mirrored).
double TurnDegrees(absl::Span<const Vec3d> places, absl::Span<const Vec3d> ways);

// TurnDegrees over the inner half of the matched blocks of the transform's own probe. The outer half is left out, since
// blocks on an outline match that have slid along it. Workspace as for DeformationWays.
absl::StatusOr<double> DeformationTurn(const ExecContext& ctx, const Transform& transform, const ResidualProbe& probe);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_DEFORMATION_WAYS_H_
