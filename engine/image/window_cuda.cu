// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/device/cuda_device.h"
#include "engine/image/window_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void SampleKernel(const float* volume, Int3 n, int count, RawSamples* out) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < 8) out->corners[i] = volume[CornerVoxel(n, i)];
  if (i < count) TakeSample(volume, n, i, out);
}

__global__ void WindowKernel(const float* in, float* out, int64_t count, IntensityWindow window) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) out[i] = Through(window, in[i]);
}

}  // namespace

absl::Status EnqueueSamples(const ExecContext& ctx, ConstVolumeView volume, RawSamples* out) {
  const int count = SampleCount(volume.geometry.voxels());
  const int blocks = (std::max(count, 8) + kThreads - 1) / kThreads;
  SampleKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(volume.data, volume.geometry.size, count, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status MapThroughWindow(const ExecContext& ctx, const IntensityWindow& window, ConstVolumeView in,
                              VolumeView out) {
  const int64_t count = in.geometry.voxels();
  const int blocks = static_cast<int>(std::min<int64_t>((count + kThreads - 1) / kThreads, 1 << 16));
  WindowKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(in.data, out.data, count, window);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
