// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/grid_result.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/transform/fold_smoothing.h"

namespace intrawarp {
namespace {

// Rounds of smoothing: at most, between two checkpoints, and until the neighbours reach a control point farther.
constexpr int kUnfoldingRounds = 300, kUnfoldingRoundsAtOnce = 10, kUnfoldingRoundsPerReach = 50;

}  // namespace

absl::StatusOr<Decision> UnfoldGrid(const ExecContext& ctx, FieldView grid, const Geometry& fixed,
                                    const Progress& progress) {
  for (int round = 0; round < kUnfoldingRounds; round += kUnfoldingRoundsAtOnce) {
    const int reach = 1 + round / kUnfoldingRoundsPerReach;
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t folded, SmoothFolds(ctx, grid, fixed, kUnfoldingRoundsAtOnce, reach));
    if (folded == 0) break;
    const Decision decision = ctx.Checkpoint(progress);
    if (decision == Decision::kCancel) return absl::CancelledError("cancelled");
    if (decision == Decision::kStop) return decision;
  }
  return Decision::kContinue;
}

absl::StatusOr<Transform> MakeGridTransform(const ExecContext& ctx, const AffineMap& affine, ConstFieldView grid,
                                            const Geometry& domain) {
  const size_t bytes = 3 * grid.geometry.voxels() * sizeof(float);
  INTRAWARP_ASSIGN_OR_RETURN(Buffer memory, ctx.device().Allocate(bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(memory.as<float>(), grid.data, bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return Transform(affine, std::move(memory), grid.geometry, domain);
}

}  // namespace intrawarp
