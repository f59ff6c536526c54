// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/bspline_bench.h"

namespace intrawarp::cuda {
namespace {

__global__ void FillKernel(float4* out, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) __stcs(out + i, make_float4(1, 2, 3, 4));
}

}  // namespace

absl::StatusOr<double> TimeLaunches(const ExecContext& ctx, int launches, const std::function<absl::Status()>& launch) {
  cudaEvent_t begin, end;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventCreate(&begin));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventCreate(&end));
  INTRAWARP_RETURN_IF_ERROR(launch());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventRecord(begin, CudaStream(ctx)));
  for (int i = 0; i < launches; ++i) INTRAWARP_RETURN_IF_ERROR(launch());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventRecord(end, CudaStream(ctx)));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  float milliseconds = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, begin, end));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventDestroy(begin));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventDestroy(end));
  return milliseconds / 1e3 / launches;
}

absl::Status FillVectors(const ExecContext& ctx, float* out, int64_t count) {
  constexpr int kThreads = 256;
  const int64_t vectors = count / 4;
  FillKernel<<<static_cast<unsigned>((vectors + kThreads - 1) / kThreads), kThreads, 0, CudaStream(ctx)>>>(
      reinterpret_cast<float4*>(out), vectors);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
