// SPDX-License-Identifier: Apache-2.0
// Reductions and scans over the threads of a block, in an order that is fixed. All threads of the block call them.
#ifndef INTRAWARP_ENGINE_DEVICE_REDUCE_CUH_
#define INTRAWARP_ENGINE_DEVICE_REDUCE_CUH_

#include "engine/device/warp.cuh"

namespace intrawarp::cuda {

// Threads of a block that calls BlockReduce or BlockSum.
inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceWarps = kReduceThreads / 32;

// Combines the values of all threads by a tree and returns the result to each; combine(a, b) adds b to a. T is any
// trivially copyable type; `scratch` holds kReduceThreads of them and may be reused after a barrier.
template <typename T, typename Combine>
__device__ T BlockReduce(T value, T* scratch, const Combine& combine) {
  const int t = threadIdx.x;
  scratch[t] = value;
  __syncthreads();
  for (int half = kReduceThreads / 2; half > 0; half /= 2) {
    if (t < half) combine(scratch[t], scratch[t + half]);
    __syncthreads();
  }
  return scratch[0];
}

// The sum over all threads, valid in thread 0. `scratch` holds kReduceWarps doubles.
__device__ inline double BlockSum(double value, double* scratch) {
  value = WarpSum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  if (threadIdx.x == 0) {
    for (int w = 0; w < kReduceWarps; ++w) sum += scratch[w];
  }
  return sum;
}

// The sum over the threads before this one, of a block of kBlockWarps warps; *total is the sum over all. `scratch`
// holds kBlockWarps values; a barrier separates its earlier use from this call.
template <int kBlockWarps, typename T>
__device__ T BlockExclusiveScan(T value, T* scratch, T* total) {
  const int warp = threadIdx.x / 32;
  const T ends = InclusiveScan(value);
  if (threadIdx.x % 32 == 31) scratch[warp] = ends;
  __syncthreads();
  T before = ends - value, all = 0;
  for (int w = 0; w < kBlockWarps; ++w) {
    before += w < warp ? scratch[w] : 0;
    all += scratch[w];
  }
  *total = all;
  return before;
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_DEVICE_REDUCE_CUH_
