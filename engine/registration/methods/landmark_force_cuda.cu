// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/registration/methods/landmark_force_kernels.h"
#include "engine/transform/displacement.h"

namespace intrawarp::cuda {
namespace {

__global__ void __launch_bounds__(kReduceThreads)
    FollowKernel(const __grid_constant__ LandmarkForceTask t, DemonsState* state) {
  __shared__ double scratch[kReduceWarps];
  if (state->done) return;
  double value = 0;
  for (int i = threadIdx.x; i < t.landmarks.count; i += kReduceThreads) value += FollowLandmark(t, i, state->largest);
  const double sum = BlockSum(value, scratch);
  if (threadIdx.x == 0) state->landmarks = sum;
}

__global__ void __launch_bounds__(kReduceThreads)
    PullKernel(const __grid_constant__ LandmarkForceTask t, const DemonsState* state, int64_t voxels) {
  if (state->done) return;
  const int64_t place = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  if (place < voxels) PullVoxel(t, VoxelAt(t.size, place), place);
}

}  // namespace

absl::Status FollowLandmarks(const ExecContext& ctx, const LandmarkForceTask& task, DemonsState* state) {
  FollowKernel<<<1, kReduceThreads, 0, CudaStream(ctx)>>>(task, state);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status AddLandmarkForce(const ExecContext& ctx, const LandmarkForceTask& task, const DemonsState* state) {
  const int64_t voxels = int64_t{task.size.x} * task.size.y * task.size.z;
  const auto blocks = static_cast<unsigned>((voxels + kReduceThreads - 1) / kReduceThreads);
  PullKernel<<<blocks, kReduceThreads, 0, CudaStream(ctx)>>>(task, state, voxels);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
