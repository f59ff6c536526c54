// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.cuh"
#include "tests/bench/affine_bench.h"

namespace intrawarp::cuda {
namespace {

// Evaluates at a given W again and again; keeps the value, so that the work is not optimised away.
struct KeepValue {
  const AffineMap* w;
  double* value;
  KeepValue From(int) const { return *this; }
  __device__ bool Done() const { return false; }
  __device__ const AffineMap& Position() const { return *w; }
  __device__ void operator()(const NormalEquations& sums) const {
    if (threadIdx.x == 0) *value = sums.value;
  }
};

}  // namespace

absl::StatusOr<double> TimeObjectiveLaunches(const ExecContext& ctx, const AffineObjective& objective,
                                             const AffineMap& w, int launches) {
  ArenaScope scope(ctx.arena());
  ObjectiveArgs args;
  INTRAWARP_RETURN_IF_ERROR(SetUpObjective(ctx, objective, &args));
  INTRAWARP_ASSIGN_OR_RETURN(AffineMap * position, ctx.arena().Allocate<AffineMap>(1));
  INTRAWARP_ASSIGN_OR_RETURN(double* value, ctx.arena().Allocate<double>(1));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(position, &w, sizeof(w), ctx.stream()));
  cudaEvent_t begin, end;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventCreate(&begin));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventCreate(&end));
  INTRAWARP_RETURN_IF_ERROR(LaunchAffineObjective(ctx, objective, args, KeepValue{position, value}, 1));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventRecord(begin, CudaStream(ctx)));
  for (int i = 0; i < launches; ++i) {
    INTRAWARP_RETURN_IF_ERROR(LaunchAffineObjective(ctx, objective, args, KeepValue{position, value}, 1));
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventRecord(end, CudaStream(ctx)));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  float milliseconds = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, begin, end));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventDestroy(begin));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventDestroy(end));
  return milliseconds / 1e3 / launches;
}

}  // namespace intrawarp::cuda
