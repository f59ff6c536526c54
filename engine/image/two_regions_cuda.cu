// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/image/two_regions_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

unsigned Blocks(const RegionSplit& t) { return static_cast<unsigned>((t.voxels() + kThreads - 1) / kThreads); }

__global__ void StartKernel(const __grid_constant__ RegionSplit t) {
  const int64_t voxel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (voxel < t.voxels()) StartVoxel(t, voxel);
}

__global__ void DualKernel(const __grid_constant__ RegionSplit t) {
  const int64_t voxel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (voxel < t.voxels()) DualVoxel(t, voxel);
}

__global__ void PrimalKernel(const __grid_constant__ RegionSplit t) {
  const int64_t voxel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (voxel < t.voxels()) PrimalVoxel(t, voxel);
}

}  // namespace

absl::Status StartSplit(const ExecContext& ctx, const RegionSplit& t) {
  StartKernel<<<Blocks(t), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// Each kernel reads of its neighbours only what the other one writes.
absl::Status StepSplit(const ExecContext& ctx, const RegionSplit& t) {
  DualKernel<<<Blocks(t), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  PrimalKernel<<<Blocks(t), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
