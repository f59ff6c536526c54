// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/image/region_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void ClearKernel(const __grid_constant__ RegionClearing t) {
  const int64_t voxel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (voxel < t.voxels()) ClearVoxel(t, voxel);
}

}  // namespace

absl::Status ClearRegion(const ExecContext& ctx, const RegionClearing& t) {
  ClearKernel<<<static_cast<unsigned>((t.voxels() + kThreads - 1) / kThreads), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
