// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/registration/stage/mask_levels.h"

namespace intrawarp::cuda {
namespace {

__global__ void CountKernel(const uint8_t* mask, int64_t voxels, unsigned long long* count) {
  int mine = 0;
  for (int64_t i = blockIdx.x * int64_t{kReduceThreads} + threadIdx.x; i < voxels;
       i += int64_t{gridDim.x} * kReduceThreads) {
    mine += mask[i] != 0;
  }
  const int warp = WarpSum(mine);
  if ((threadIdx.x & 31) == 0 && warp > 0) atomicAdd(count, static_cast<unsigned long long>(warp));
}

}  // namespace

absl::Status CountMask(const ExecContext& ctx, ConstMaskView mask, unsigned long long* count) {
  const int64_t voxels = mask.geometry.voxels();
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(count, 0, sizeof(*count), ctx.stream()));
  const int blocks = static_cast<int>(std::min<int64_t>((voxels + kReduceThreads - 1) / kReduceThreads, 1024));
  CountKernel<<<blocks, kReduceThreads, 0, CudaStream(ctx)>>>(mask.data, voxels, count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
