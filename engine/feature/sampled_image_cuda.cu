// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/feature/sampled_image_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    SampleKernel(const __grid_constant__ ImageSampling in, int64_t count, float* values, uint8_t* valid) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place < count) SampleVoxel(in, place, VoxelAt(in.size, place), values, valid);
}

}  // namespace

absl::Status SampleImage(const ExecContext& ctx, const ImageSampling& in, float* values, uint8_t* valid) {
  const int64_t count = int64_t{in.size.x} * in.size.y * in.size.z;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  SampleKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(in, count, values, valid);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
