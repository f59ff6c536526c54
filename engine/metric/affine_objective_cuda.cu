// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.cuh"

namespace intrawarp::cuda {
namespace {

// Evaluates at a given W and stores the sums.
struct StoreSums {
  const AffineMap* w;
  NormalEquations* out;
  __device__ bool Done() const { return false; }
  __device__ const AffineMap& Position() const { return *w; }
  __device__ void operator()(const NormalEquations& sums) const {
    if (threadIdx.x == 0) *out = sums;
  }
};

}  // namespace

absl::Status EvaluateAffineObjective(const ExecContext& ctx, const AffineObjective& objective, const AffineMap& w,
                                     NormalEquations* sums) {
  ArenaScope scope(ctx.arena());
  ObjectiveArgs args;
  INTRAWARP_RETURN_IF_ERROR(SetUpObjective(ctx, objective, &args));
  StoreSums store;
  INTRAWARP_ASSIGN_OR_RETURN(AffineMap * position, ctx.arena().Allocate<AffineMap>(1));
  INTRAWARP_ASSIGN_OR_RETURN(store.out, ctx.arena().Allocate<NormalEquations>(1));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(position, &w, sizeof(w), ctx.stream()));
  store.w = position;
  INTRAWARP_RETURN_IF_ERROR(LaunchAffineObjective(ctx, objective, args, store));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(sums, store.out, sizeof(*sums), ctx.stream()));
  return ctx.device().Synchronize(ctx.stream());
}

}  // namespace intrawarp::cuda
