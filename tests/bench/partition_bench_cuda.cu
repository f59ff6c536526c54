// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "tests/bench/partition_bench.h"

namespace intrawarp {
namespace {

constexpr int kRounds = 15000;

__global__ void ArithmeticKernel(float* out) {
  float v = threadIdx.x;
  for (int i = 0; i < kRounds; ++i) v = v * 1.0000001f + 0.5f;
  if (v == 1.2345f) *out = v;
}

__global__ void CopyKernel(const float4* from, float4* to, size_t count) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += step) to[i] = from[i];
}

}  // namespace

absl::Status EnqueueArithmetic(const ExecContext& ctx, int blocks, float* out) {
  ArithmeticKernel<<<blocks, 256, 0, CudaStream(ctx)>>>(out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status EnqueueCopy(const ExecContext& ctx, int blocks, const void* from, void* to, size_t bytes) {
  CopyKernel<<<blocks, 512, 0, CudaStream(ctx)>>>(static_cast<const float4*>(from), static_cast<float4*>(to),
                                                  bytes / sizeof(float4));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp
