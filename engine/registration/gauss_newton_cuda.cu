// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.cuh"
#include "engine/registration/gauss_newton.h"

namespace intrawarp::cuda {
namespace {

// Takes the optimiser's step where the sums are: in the last block of the evaluation.
struct AdvanceState {
  GaussNewtonState* state;
  __device__ bool Done() const { return state->status != GaussNewtonStatus::kRunning; }
  __device__ const AffineMap& Position() const { return state->trial; }
  __device__ void operator()(const NormalEquations& sums) const {
    __shared__ GaussNewtonState local;
    __shared__ GaussNewtonScratch scratch;
    if (threadIdx.x >= 32) return;
    constexpr int kWords = sizeof(GaussNewtonState) / sizeof(int);
    static_assert(sizeof(GaussNewtonState) % sizeof(int) == 0);
    for (int i = threadIdx.x; i < kWords; i += 32) {
      reinterpret_cast<int*>(&local)[i] = reinterpret_cast<const int*>(state)[i];
    }
    __syncwarp();
    AdvanceGaussNewton(local, sums, scratch, WarpLanes());
    __syncwarp();
    for (int i = threadIdx.x; i < kWords; i += 32) {
      reinterpret_cast<int*>(state)[i] = reinterpret_cast<const int*>(&local)[i];
    }
  }
};

}  // namespace

absl::Status RunGaussNewton(const ExecContext& ctx, const AffineObjective& objective, int evaluations,
                            GaussNewtonState* state) {
  ArenaScope scope(ctx.arena());
  ObjectiveArgs args;
  INTRAWARP_RETURN_IF_ERROR(SetUpObjective(ctx, objective, &args));
  AdvanceState advance;
  INTRAWARP_ASSIGN_OR_RETURN(advance.state, ctx.arena().Allocate<GaussNewtonState>(1));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(advance.state, state, sizeof(*state), ctx.stream()));
  for (int i = 0; i < evaluations; ++i) {
    INTRAWARP_RETURN_IF_ERROR(LaunchAffineObjective(ctx, objective, args, advance));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(state, advance.state, sizeof(*state), ctx.stream()));
  return ctx.device().Synchronize(ctx.stream());
}

}  // namespace intrawarp::cuda
