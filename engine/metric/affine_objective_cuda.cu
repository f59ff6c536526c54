// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.cuh"

namespace intrawarp::cuda {
namespace {

// Evaluates at given maps and stores the sums.
struct StoreSums {
  const AffineMap* w;
  NormalEquations* out;
  StoreSums From(int first) const { return {w + first, out + first}; }
  __device__ bool Done() const { return false; }
  __device__ const AffineMap& Position() const { return w[blockIdx.y]; }
  __device__ void operator()(const NormalEquations& sums) const {
    if (threadIdx.x == 0) out[blockIdx.y] = sums;
  }
};

}  // namespace

absl::Status EvaluateAffineObjectives(const ExecContext& ctx, const AffineObjective& objective,
                                      absl::Span<const AffineMap> maps, NormalEquations* sums) {
  ArenaScope scope(ctx.arena());
  ObjectiveArgs args;
  INTRAWARP_RETURN_IF_ERROR(SetUpObjective(ctx, objective, &args));
  StoreSums store;
  INTRAWARP_ASSIGN_OR_RETURN(AffineMap * positions, ctx.arena().Allocate<AffineMap>(maps.size()));
  INTRAWARP_ASSIGN_OR_RETURN(store.out, ctx.arena().Allocate<NormalEquations>(maps.size()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(positions, maps.data(), sizeof(AffineMap) * maps.size(), ctx.stream()));
  store.w = positions;
  INTRAWARP_RETURN_IF_ERROR(LaunchAffineObjective(ctx, objective, args, store, static_cast<int>(maps.size())));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(sums, store.out, sizeof(*sums) * maps.size(), ctx.stream()));
  return ctx.device().Synchronize(ctx.stream());
}

}  // namespace intrawarp::cuda
