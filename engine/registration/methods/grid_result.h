// SPDX-License-Identifier: Apache-2.0
// The last steps of every method whose result is a control grid (transform/control_grid.h). Internal.
#ifndef INTRAWARP_ENGINE_REGISTRATION_METHODS_GRID_RESULT_H_
#define INTRAWARP_ENGINE_REGISTRATION_METHODS_GRID_RESULT_H_

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// Smooths away the folds of `grid` at the voxels of `fixed`, in place: in 300 rounds at most, the later ones with a
// farther reach (fold_smoothing.h). Looks at the checkpoint every few rounds, and returns its last decision; CANCELLED
// for kCancel. Waits for the stream. Workspace: SmoothFoldsWorkspaceBytes.
absl::StatusOr<Decision> UnfoldGrid(const ExecContext& ctx, FieldView grid, const Geometry& fixed,
                                    const Progress& progress);

// A transform with a copy of the control points. Waits for the stream.
absl::StatusOr<Transform> MakeGridTransform(const ExecContext& ctx, const AffineMap& affine, ConstFieldView grid,
                                            const Geometry& domain);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_REGISTRATION_METHODS_GRID_RESULT_H_
