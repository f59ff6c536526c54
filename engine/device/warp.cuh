// SPDX-License-Identifier: Apache-2.0
// Sums, scans and other reductions over the 32 lanes of a warp. All lanes of the warp call them.
#ifndef INTRAWARP_ENGINE_DEVICE_WARP_CUH_
#define INTRAWARP_ENGINE_DEVICE_WARP_CUH_

#include <cstdint>

namespace intrawarp::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// The sum over the lanes, valid in lane 0. (__reduce_add_sync needs compute capability 8.0; 7.5 is built, too.)
template <typename T>
__device__ T WarpSum(T value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(kAllLanes, value, offset);
  return value;
}

// The sum over the lanes, valid in every lane.
template <typename T>
__device__ T WarpSumAll(T value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

// The sum, the least and the union of bits over the lanes, valid in every lane: one instruction from 8.0 on.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
inline __device__ int WarpSumAll(int value) { return __reduce_add_sync(kAllLanes, value); }
inline __device__ int WarpMin(int value) { return __reduce_min_sync(kAllLanes, value); }
inline __device__ uint32_t WarpOr(uint32_t value) { return __reduce_or_sync(kAllLanes, value); }
#else
inline __device__ int WarpSumAll(int value) { return WarpSumAll<int>(value); }
inline __device__ int WarpMin(int value) {
  for (int offset = 16; offset > 0; offset /= 2) value = min(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}
inline __device__ uint32_t WarpOr(uint32_t value) {
  for (int offset = 16; offset > 0; offset /= 2) value |= __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}
#endif

// The sum over this lane and the lanes below it.
template <typename T>
__device__ T InclusiveScan(T value) {
  const int lane = threadIdx.x % 32;
  for (int offset = 1; offset < 32; offset *= 2) {
    const T below = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_DEVICE_WARP_CUH_
