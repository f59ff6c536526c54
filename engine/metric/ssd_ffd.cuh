// SPDX-License-Identifier: Apache-2.0
// The sums of SSD (ssd.h) in the FFD objective on CUDA.
#ifndef INTRAWARP_ENGINE_METRIC_SSD_FFD_CUH_
#define INTRAWARP_ENGINE_METRIC_SSD_FFD_CUH_

#include "engine/metric/ffd_march.cuh"

namespace intrawarp::cuda {

// Sums over samples: w (m - f)^2, 1 and, of soft masks, w.
inline constexpr int kSampleSums = 3;
template <int kSums>
struct SampleSums {
  static_assert(kSums <= kSampleSums);
  double of[kSums] = {};
};

// Adds up the sums of all threads, and then of all blocks in a fixed order. True in thread 0 of the last block, where
// *total gets them. kThreads threads call it.
template <int kThreads, int kSums>
__device__ bool SumOverBlocks(const FfdArgs& a, const SampleSums<kSums>& sums, SampleSums<kSums>* total) {
  __shared__ double scratch[kThreads][kSums];
  __shared__ bool last;
  const auto block_sum = [&](const SampleSums<kSums>& own) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) scratch[threadIdx.x][k] = own.of[k];
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) {
#pragma unroll
        for (int k = 0; k < kSums; ++k) scratch[threadIdx.x][k] += scratch[threadIdx.x + half][k];
      }
    }
  };
  __syncthreads();
  block_sum(sums);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) a.block_sums[kSums * blockIdx.x + k] = scratch[0][k];
    __threadfence();
    last = atomicAdd(a.ticket, 1u) == gridDim.x - 1;
    if (last) *a.ticket = 0;
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
  SampleSums<kSums> blocks;
  for (int i = threadIdx.x; i < gridDim.x; i += kThreads) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) blocks.of[k] += __ldcg(a.block_sums + kSums * i + k);
  }
  __syncthreads();
  block_sum(blocks);
#pragma unroll
  for (int k = 0; k < kSums; ++k) total->of[k] = scratch[0][k];
  return threadIdx.x == 0;
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_SSD_FFD_CUH_
