// SPDX-License-Identifier: Apache-2.0
// Smoothing a control grid just where its displacement folds: the last resort when penalties have not prevented it.
#ifndef INTRAWARP_ENGINE_TRANSFORM_FOLD_SMOOTHING_H_
#define INTRAWARP_ENGINE_TRANSFORM_FOLD_SMOOTHING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/image/volume.h"

namespace intrawarp {

// Until det(I + grad u) is above 0 at every voxel of `image`, or `rounds` times: each control point that has a voxel
// with a determinant below a small margin in its support moves halfway to the mean of its neighbours; all others stay.
// The neighbours are 1, 2, ..., `reach` control points away in turns, one distance a round: farther ones undo a jump
// over many control points in fewer rounds. In place; answers how many voxels still fold. Bit-identical from run to
// run. Waits for the stream. `image` has the grid's direction (INVALID_ARGUMENT otherwise). Workspace:
// SmoothFoldsWorkspaceBytes.
absl::StatusOr<int64_t> SmoothFolds(const ExecContext& ctx, FieldView grid, const Geometry& image, int rounds,
                                    int reach);
int64_t SmoothFoldsWorkspaceBytes(const Geometry& grid, const Geometry& image);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_FOLD_SMOOTHING_H_
