// SPDX-License-Identifier: Apache-2.0
// Fixed-order reductions within a block of kReduceThreads threads.
#ifndef INTRAWARP_ENGINE_IMAGE_REDUCE_CUH_
#define INTRAWARP_ENGINE_IMAGE_REDUCE_CUH_

namespace intrawarp::cuda {

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceWarps = kReduceThreads / 32;

// Combines the values of all threads by a tree and returns the result to each. Every thread must call it; combine(a, b)
// adds b to a. T is any trivially copyable type; `scratch` holds kReduceThreads of them and may be reused after a
// barrier.
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

// The sum over the lanes of a warp, valid in lane 0. (__reduce_add_sync needs compute capability 8.0; 7.5 is built,
// too.)
template <typename T>
__device__ T WarpSum(T value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
  return value;
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

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_IMAGE_REDUCE_CUH_
