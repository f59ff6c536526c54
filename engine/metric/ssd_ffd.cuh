// SPDX-License-Identifier: Apache-2.0
// The sums of SSD (ssd.h) in the FFD objective on CUDA.
#ifndef INTRAWARP_ENGINE_METRIC_SSD_FFD_CUH_
#define INTRAWARP_ENGINE_METRIC_SSD_FFD_CUH_

#include "engine/metric/ffd_march.cuh"

namespace intrawarp::cuda {

// Adds up (value, samples) of all threads, and then of all blocks in a fixed order. True in thread 0 of the last block,
// where *total gets the sums. kThreads threads call it.
template <int kThreads>
__device__ bool SumOverBlocks(const FfdArgs& a, double value, double samples, double2* total) {
  __shared__ double2 scratch[kThreads];
  __shared__ bool last;
  const auto block_sum = [&] {
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) {
        scratch[threadIdx.x].x += scratch[threadIdx.x + half].x;
        scratch[threadIdx.x].y += scratch[threadIdx.x + half].y;
      }
    }
  };
  __syncthreads();
  scratch[threadIdx.x] = {value, samples};
  block_sum();
  if (threadIdx.x == 0) {
    a.block_sums[blockIdx.x] = scratch[0];
    __threadfence();
    last = atomicAdd(a.ticket, 1u) == gridDim.x - 1;
    if (last) *a.ticket = 0;
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
  double2 sum = {0, 0};
  for (int i = threadIdx.x; i < gridDim.x; i += kThreads) {
    const double2 b = __ldcg(a.block_sums + i);
    sum.x += b.x;
    sum.y += b.y;
  }
  __syncthreads();
  scratch[threadIdx.x] = sum;
  block_sum();
  *total = scratch[0];
  return threadIdx.x == 0;
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_SSD_FFD_CUH_
