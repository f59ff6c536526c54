// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/fold_smoothing.h"

#include <optional>

#include "engine/base/status_macros.h"
#include "engine/transform/control_grid.h"
#include "engine/transform/fold_smoothing_kernels.h"

namespace intrawarp {

absl::StatusOr<int64_t> SmoothFolds(const ExecContext& ctx, FieldView grid, const Geometry& image, int rounds,
                                    int reach) {
  const std::optional<AlignedEvaluation> axes =
      MakeAlignedEvaluation(grid, AffineMap::Identity(), image, VoxelRun{image.size});
  if (!axes) return absl::InvalidArgumentError("image: has not the direction of the control grid");
  ArenaScope scope(ctx.arena());
  FoldSmoothing task;
  task.x = axes->x;
  task.y = axes->y;
  task.z = axes->z;
  task.grid = grid.data;
  VolumeView determinant{nullptr, image};
  INTRAWARP_ASSIGN_OR_RETURN(determinant.data, ctx.arena().Allocate<float>(image.voxels()));
  task.determinant = determinant.data;
  INTRAWARP_ASSIGN_OR_RETURN(task.moves, ctx.arena().Allocate<uint8_t>(task.nodes()));
  INTRAWARP_ASSIGN_OR_RETURN(task.folded, ctx.arena().Allocate<unsigned long long>(1));
  INTRAWARP_ASSIGN_OR_RETURN(task.out, ctx.arena().Allocate<float>(3 * task.nodes()));
  for (int round = 0;; ++round) {
    task.reach = 1 + round % reach;
    INTRAWARP_RETURN_IF_ERROR(EvaluateControlGridDeterminant(ctx, grid, determinant));
    INTRAWARP_RETURN_IF_ERROR(INTRAWARP_DISPATCH(ctx, SmoothFoldsOnce, task));
    unsigned long long folded = 0;
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&folded, task.folded, sizeof(folded), ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
    if (folded == 0 || round == rounds) return static_cast<int64_t>(folded);
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(grid.data, task.out, 3 * sizeof(float) * task.nodes(), ctx.stream()));
  }
}

int64_t SmoothFoldsWorkspaceBytes(const Geometry& grid, const Geometry& image) {
  return Arena::Rounded(image.voxels() * sizeof(float)) + Arena::Rounded(grid.voxels()) +
         Arena::Rounded(sizeof(unsigned long long)) + Arena::Rounded(3 * grid.voxels() * sizeof(float));
}

}  // namespace intrawarp
