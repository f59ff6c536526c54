// SPDX-License-Identifier: Apache-2.0
// The determinants of a transform's Jacobian, and how well its inverse undoes it.
#ifndef INTRAWARP_ENGINE_QUALITY_JACOBIAN_H_
#define INTRAWARP_ENGINE_QUALITY_JACOBIAN_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// Statistics of det(grad T) over the voxels of the fixed grid: exact for a control grid, for a dense displacement by
// central differences (one-sided at the faces).
struct JacobianStatistics {
  double min = 1;
  double max = 1;
  double nonpositive_fraction = 0;
};

// Waits for the stream unless the transform is affine.
absl::StatusOr<JacobianStatistics> MeasureJacobian(const ExecContext& ctx, const Transform& transform,
                                                   const Geometry& fixed);
// 0 suffices for an affine transform.
size_t JacobianWorkspaceBytes(const Geometry& fixed, bool has_control_grid = false);

// |T^-1(T(p)) - p| in mm.
struct InverseConsistency {
  double mean_mm = 0;
  double max_mm = 0;
};

// The error of exp(-v)(exp(v)(p)) for a transform with a velocity, over the voxels of its domain that exp(v) keeps
// inside. Waits for the stream. Workspace: InverseConsistencyWorkspaceBytes.
absl::StatusOr<InverseConsistency> MeasureInverseConsistency(const ExecContext& ctx, const Transform& transform);
size_t InverseConsistencyWorkspaceBytes(const Geometry& domain);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_QUALITY_JACOBIAN_H_
