// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/transform/total_variation_kernels.h"

namespace intrawarp::cuda {
namespace {

int64_t Blocks(Int3 size) { return (int64_t{size.x} * size.y * size.z + kReduceThreads - 1) / kReduceThreads; }

__device__ bool Skips(const int* skip) { return skip != nullptr && *skip != 0; }

__global__ void __launch_bounds__(kReduceThreads)
    GradientKernel(const __grid_constant__ TotalVariationTask t, double* partial) {
  __shared__ double scratch[kReduceWarps];
  if (Skips(t.skip)) return;
  const int64_t node = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  double value = 0;
  if (node < t.nodes()) {
    float own;
    const Vec3f derivative = VariationDerivative(t, node, &own);
    for (int c = 0; c < 3; ++c) t.gradient[3 * node + c] += t.scale * derivative[c];
    value = double{own} - t.edge;
  }
  const double sum = BlockSum(value, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kReduceThreads)
    SumKernel(const __grid_constant__ TotalVariationTask t, const double* partial, int64_t count) {
  __shared__ double scratch[kReduceWarps];
  if (Skips(t.skip)) return;
  double value = 0;
  for (int64_t i = threadIdx.x; i < count; i += kReduceThreads) value += partial[i];
  const double sum = BlockSum(value, scratch);
  if (threadIdx.x == 0) *t.value += double{t.scale} * sum;
}

}  // namespace

absl::Status AddTotalVariation(const ExecContext& ctx, const TotalVariationTask& task) {
  ArenaScope scope(ctx.arena());
  const int64_t blocks = Blocks(task.size);
  INTRAWARP_ASSIGN_OR_RETURN(double* partial, ctx.arena().Allocate<double>(blocks));
  GradientKernel<<<static_cast<unsigned>(blocks), kReduceThreads, 0, CudaStream(ctx)>>>(task, partial);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  SumKernel<<<1, kReduceThreads, 0, CudaStream(ctx)>>>(task, partial, blocks);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t TotalVariationWorkspaceBytes(Int3 size) { return Arena::Rounded(Blocks(size) * sizeof(double)); }

}  // namespace intrawarp::cuda
