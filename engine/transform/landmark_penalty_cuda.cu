// SPDX-License-Identifier: Apache-2.0
// One block finds what every landmark pulls by; then every control point adds up the pulls of the landmarks beside it.
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/transform/landmark_penalty_kernels.h"

namespace intrawarp::cuda {
namespace {

__device__ bool Skips(const int* skip) { return skip != nullptr && *skip != 0; }

__global__ void __launch_bounds__(kReduceThreads) PullKernel(const __grid_constant__ LandmarkPenaltyTask t) {
  __shared__ double scratch[kReduceWarps];
  if (Skips(t.skip)) return;
  double value = 0;
  for (int i = threadIdx.x; i < t.count; i += kReduceThreads) value += PullOf(t, i);
  const double sum = BlockSum(value, scratch);
  if (threadIdx.x == 0) *t.value += sum;
}

__global__ void __launch_bounds__(kReduceThreads) GradientKernel(const __grid_constant__ LandmarkPenaltyTask t) {
  if (Skips(t.skip)) return;
  const int64_t place = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  if (place >= t.nodes()) return;
  const Int3 node = VoxelAt(t.size, place);
  for (int i = 0; i < t.count; ++i) {
    const float weight = WeightAt(t.placed[i].taps, node);
    if (weight == 0) continue;
    for (int c = 0; c < 3; ++c) t.gradient[3 * place + c] += weight * t.pulls[3 * i + c];
  }
}

}  // namespace

absl::Status AddLandmarkPenalty(const ExecContext& ctx, const LandmarkPenaltyTask& task) {
  PullKernel<<<1, kReduceThreads, 0, CudaStream(ctx)>>>(task);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  const auto blocks = static_cast<unsigned>((task.nodes() + kReduceThreads - 1) / kReduceThreads);
  GradientKernel<<<blocks, kReduceThreads, 0, CudaStream(ctx)>>>(task);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
