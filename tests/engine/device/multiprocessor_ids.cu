// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "tests/engine/device/multiprocessor_ids.h"

namespace intrawarp {
namespace {

// A block lasts some ten microseconds, so that the next one finds another multiprocessor free first.
constexpr long long kCycles = 20000;
constexpr int kBlocks = 16384;

__global__ void MarkKernel(uint8_t* seen) {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  const long long begin = clock64();
  while (clock64() - begin < kCycles) {
  }
  if (threadIdx.x == 0) seen[id] = 1;
}

}  // namespace

absl::Status MarkMultiprocessors(const ExecContext& ctx, uint8_t* seen) {
  MarkKernel<<<kBlocks, 32, 0, CudaStream(ctx)>>>(seen);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp
