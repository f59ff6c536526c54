// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "engine/device/cuda_device.h"
#include "engine/metric/mind.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    SplitKernel(const Descriptor* descriptors, int64_t voxels, float* channels) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= voxels) return;
  const Descriptor descriptor = descriptors[i];
#pragma unroll
  for (int c = 0; c < kDescriptorChannels; ++c) {
    channels[c * voxels + i] = static_cast<float>(descriptor.channel[c]) * (1.0f / 255);
  }
}

}  // namespace

absl::Status SplitDescriptors(const ExecContext& ctx, const Descriptor* descriptors, int64_t voxels, float* channels) {
  const auto blocks = static_cast<unsigned>((voxels + kThreads - 1) / kThreads);
  SplitKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(descriptors, voxels, channels);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
