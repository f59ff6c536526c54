// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/registration/methods/sliding_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

unsigned Blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }
__device__ int64_t Index() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void LeastKernel(const __grid_constant__ LayerImages t, float* out) {
  const int64_t i = Index();
  if (i < t.voxels) out[i] = LeastResidual(t, i);
}

__global__ void CostKernel(const __grid_constant__ LayerCosts t) {
  const int64_t i = Index();
  if (i < t.images.voxels) t.out[i] = LayerCost(t, i);
}

__global__ void MaskKernel(const __grid_constant__ LayerMask t) {
  const int64_t i = Index();
  if (i < t.voxels) t.out[i] = LayerMaskByte(t, i);
}

__global__ void MergeKernel(const __grid_constant__ LayerMerge t) {
  const int64_t i = Index();
  if (i < t.count()) MergeNode(t, i);
}

}  // namespace

absl::Status MeasureLeastResiduals(const ExecContext& ctx, const LayerImages& t, float* out) {
  LeastKernel<<<Blocks(t.voxels), kThreads, 0, CudaStream(ctx)>>>(t, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status MakeLayerCosts(const ExecContext& ctx, const LayerCosts& t) {
  CostKernel<<<Blocks(t.images.voxels), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status MakeLayerMask(const ExecContext& ctx, const LayerMask& t) {
  MaskKernel<<<Blocks(t.voxels), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status MergeLayers(const ExecContext& ctx, const LayerMerge& t) {
  MergeKernel<<<Blocks(t.count()), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
