// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/quality/residual_probe_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    SampleKernel(const __grid_constant__ ProbeSampling in, int64_t count, ProbeSamples out) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place < count) SampleNode(in, place, VoxelAt(in.size, place), out);
}

}  // namespace

absl::Status SampleProbe(const ExecContext& ctx, const ProbeSampling& in, const ProbeSamples& out) {
  const int64_t count = int64_t{in.size.x} * in.size.y * in.size.z;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  SampleKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(in, count, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
