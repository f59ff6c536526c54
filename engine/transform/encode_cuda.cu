// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/transform/encode_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

// The bits of magnitudes are in the order of their values, and a maximum does not depend on the order of its terms.
__global__ void LargestMagnitudeKernel(const float* values, int64_t count, unsigned* largest) {
  float most = 0;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    most = fmaxf(most, fabsf(values[i]));
  }
  for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_down_sync(0xffffffffu, most, offset));
  if (threadIdx.x % 32 == 0) atomicMax(largest, __float_as_uint(most));
}

__global__ void EncodeInt16Kernel(const float* values, int64_t count, float units_per_mm, int16_t* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) out[i] = ToInt16(values[i], units_per_mm);
}

__global__ void EncodeFloat16Kernel(const float* values, int64_t count, __half* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) out[i] = __float2half_rn(values[i]);
}

}  // namespace

absl::Status LargestMagnitude(const ExecContext& ctx, const float* values, int64_t count, float* largest) {
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(largest, 0, sizeof(*largest), ctx.stream()));
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, kBlocks));
  LargestMagnitudeKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(values, count, reinterpret_cast<unsigned*>(largest));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status EncodeComponents(const ExecContext& ctx, const float* values, int64_t count,
                              const ComponentEncoding& encoding, void* out) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  if (encoding.type == ComponentType::kInt16) {
    EncodeInt16Kernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(values, count, static_cast<float>(1 / encoding.scale),
                                                                static_cast<int16_t*>(out));
  } else {
    EncodeFloat16Kernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(values, count, static_cast<__half*>(out));
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
