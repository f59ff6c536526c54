// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/feature/pooled_descriptor_kernels.h"
#include "engine/transform/displacement.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 64;

template <bool kWeighted>
__global__ void __launch_bounds__(kThreads)
    PoolKernel(const __grid_constant__ Pooling in, int64_t count, PooledDescriptor* out, uint8_t* weights) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place < count) out[place] = PooledAt<kWeighted>(in, VoxelAt(in.size, place), weights + (kWeighted ? place : 0));
}

}  // namespace

absl::Status PoolDescriptors(const ExecContext& ctx, const Pooling& in, PooledDescriptor* out, uint8_t* weights) {
  const int64_t count = int64_t{in.size.x} * in.size.y * in.size.z;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  if (weights == nullptr) {
    PoolKernel<false><<<blocks, kThreads, 0, CudaStream(ctx)>>>(in, count, out, weights);
  } else {
    PoolKernel<true><<<blocks, kThreads, 0, CudaStream(ctx)>>>(in, count, out, weights);
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
