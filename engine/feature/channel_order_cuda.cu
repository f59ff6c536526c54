// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/feature/channel_order.h"
#include "engine/feature/channel_order_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    ReorderKernel(const ChannelOrder order, int64_t count, Descriptor* descriptors) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) descriptors[i] = Reordered(descriptors[i], order);
}

}  // namespace

absl::Status ReorderChannels(const ExecContext& ctx, const ChannelOrder& order, int64_t count,
                             Descriptor* descriptors) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  ReorderKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(order, count, descriptors);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
