// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.cuh"
#include "engine/registration/optimise/gauss_newton.h"

namespace intrawarp::cuda {
namespace {

// Takes the optimiser's step where the sums are: in the last block of the evaluation.
struct AdvanceState {
  GaussNewtonState* states;
  AdvanceState From(int first) const { return {states + first}; }
  __device__ bool Done() const { return states[blockIdx.y].status != GaussNewtonStatus::kRunning; }
  __device__ const AffineMap& Position() const { return states[blockIdx.y].trial; }
  __device__ void operator()(const NormalEquations& sums) const {
    GaussNewtonState* const state = states + blockIdx.y;
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
                            absl::Span<GaussNewtonState> states) {
  ArenaScope scope(ctx.arena());
  ObjectiveArgs args;
  INTRAWARP_RETURN_IF_ERROR(SetUpObjective(ctx, objective, &args));
  AdvanceState advance;
  const int count = static_cast<int>(states.size());
  const size_t bytes = sizeof(GaussNewtonState) * states.size();
  INTRAWARP_ASSIGN_OR_RETURN(advance.states, ctx.arena().Allocate<GaussNewtonState>(states.size()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(advance.states, states.data(), bytes, ctx.stream()));
  for (int i = 0; i < evaluations; ++i) {
    INTRAWARP_RETURN_IF_ERROR(LaunchAffineObjective(ctx, objective, args, advance, count));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(states.data(), advance.states, bytes, ctx.stream()));
  return ctx.device().Synchronize(ctx.stream());
}

}  // namespace intrawarp::cuda
