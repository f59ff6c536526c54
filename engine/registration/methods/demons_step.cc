// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/demons_step.h"

#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/registration/methods/demons_step_kernels.h"

namespace intrawarp {

absl::Status PrepareDemonsImage(const ExecContext& ctx, ConstVolumeView image, ConstMaskView mask, float scale,
                                float offset, float* out) {
  if (mask.data != nullptr && !SameGrid(mask.geometry, image.geometry)) {
    return absl::InvalidArgumentError("mask: not on the image's grid");
  }
  return INTRAWARP_DISPATCH(ctx, PrepareDemonsImage, image.data, mask.data, image.geometry.voxels(), scale, offset,
                            out);
}

size_t PairMomentsWorkspaceBytes(int64_t voxels) { return Arena::Rounded(sizeof(PairMoments) * MomentPieces(voxels)); }

absl::Status MeasurePair(const ExecContext& ctx, const float* fixed, const float* moving, int64_t voxels,
                         PairMoments* moments, const DemonsWeights& fixed_weights,
                         const DemonsWeights& moving_weights) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(PairMoments* const partial, ctx.arena().Allocate<PairMoments>(MomentPieces(voxels)));
  const DemonsPair pair{fixed, moving, fixed_weights, moving_weights};
  return INTRAWARP_DISPATCH(ctx, MeasurePair, pair, voxels, partial, moments);
}

absl::Status DemonsForce(const ExecContext& ctx, const DemonsForceTask& task, float* force, DemonsState* state,
                         const int* skip) {
  if (!(task.max_step > 0 && std::isfinite(task.max_step))) {
    return absl::InvalidArgumentError("max_step: must be finite and above 0");
  }
  if (!(task.weak_gradient >= 0 && std::isfinite(task.weak_gradient))) {
    return absl::InvalidArgumentError("weak_gradient: must be finite and not negative");
  }
  for (int a = 0; a < 3; ++a) {
    if (task.size[a] < 1 || task.size[a] > kMaxAxis) return absl::InvalidArgumentError("size: out of range");
    if (task.force_size[a] < 1 || task.force_size[a] > task.size[a]) {
      return absl::InvalidArgumentError("force_size: must be from 1 to size");
    }
    if (!(task.sides[a] > 0)) return absl::InvalidArgumentError("sides: must be above 0");
  }
  return INTRAWARP_DISPATCH(ctx, DemonsForce, task, force, state, skip);
}

size_t DemonsForceWorkspaceBytes([[maybe_unused]] Int3 size) {
#if INTRAWARP_WITH_CUDA
  return Arena::Rounded(3 * sizeof(double) * cuda::MostDemonsForceBlocks(size));
#else
  return 0;
#endif
}

}  // namespace intrawarp
