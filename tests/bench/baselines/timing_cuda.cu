// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/timing.h"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarmUp = 3;

class TimingEvents {
 public:
  explicit TimingEvents(int count) : events_(count) {
    for (cudaEvent_t& e : events_) cudaEventCreate(&e);
  }
  ~TimingEvents() {
    for (cudaEvent_t e : events_) cudaEventDestroy(e);
  }
  cudaEvent_t operator[](int i) const { return events_[i]; }

 private:
  std::vector<cudaEvent_t> events_;
};

__global__ void FillKernel(float4* data, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) data[i] = make_float4(1, 2, 3, 4);
}

__global__ void CopyKernel(float4* to, const float4* from, size_t count) {
  const size_t i = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = from[i];
}

unsigned Blocks(size_t count) { return (count + kThreads - 1) / kThreads; }

}  // namespace

absl::StatusOr<double> MedianSeconds(const ExecContext& ctx, int repeats, const Work& work) {
  const TimingEvents begin(repeats), end(repeats);
  for (int i = 0; i < kWarmUp; ++i) INTRAWARP_RETURN_IF_ERROR(work());
  for (int i = 0; i < repeats; ++i) {
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventRecord(begin[i], CudaStream(ctx)));
    INTRAWARP_RETURN_IF_ERROR(work());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventRecord(end[i], CudaStream(ctx)));
  }
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  std::vector<float> milliseconds(repeats);
  for (int i = 0; i < repeats; ++i) {
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds[i], begin[i], end[i]));
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + repeats / 2, milliseconds.end());
  return milliseconds[repeats / 2] / 1e3;
}

absl::Status Fill(const ExecContext& ctx, void* data, size_t bytes) {
  const size_t count = bytes / sizeof(float4);
  FillKernel<<<Blocks(count), kThreads, 0, CudaStream(ctx)>>>(static_cast<float4*>(data), count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status Copy(const ExecContext& ctx, void* to, const void* from, size_t bytes) {
  const size_t count = bytes / sizeof(float4);
  CopyKernel<<<Blocks(count), kThreads, 0, CudaStream(ctx)>>>(static_cast<float4*>(to),
                                                              static_cast<const float4*>(from), count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::baselines::cuda
