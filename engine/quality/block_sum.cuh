// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a block, in a fixed order, of a trivially copyable T with `__device__ void Add(const T&)`.
// Internal to this room.
#ifndef INTRAWARP_ENGINE_QUALITY_BLOCK_SUM_CUH_
#define INTRAWARP_ENGINE_QUALITY_BLOCK_SUM_CUH_

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace intrawarp::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kSumThreads = 256;

// The value of the lane `offset` above this one. All lanes of the warp call it.
template <typename T>
__device__ T FromLane(const T& value, int offset) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(int) == 0);
  int words[sizeof(T) / sizeof(int)];
  memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int& word : words) word = __shfl_down_sync(kAllLanes, word, offset);
  T moved;
  memcpy(&moved, words, sizeof(T));
  return moved;
}

// The sum over the block, in thread 0, in an order fixed by the block's size. `shared` holds one T a warp. All threads
// call it.
template <typename T>
__device__ T BlockSum(T sum, T* shared, int warps) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int offset = 16; offset > 0; offset /= 2) sum.Add(FromLane(sum, offset));
  if (lane == 0) shared[warp] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < warps; ++w) sum.Add(shared[w]);
  }
  __syncthreads();
  return sum;
}

// partial[0] + partial[1] + ... by one block, in an order fixed by `count`.
template <typename T>
__device__ T SumPartials(const T* partial, int64_t count, T* shared) {
  T sum;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) sum.Add(partial[i]);
  return BlockSum(sum, shared, kSumThreads / 32);
}

// Room for a T that has initialisers, which __shared__ variables may not have.
template <typename T>
struct alignas(alignof(T)) RawArray {
  unsigned char bytes[sizeof(T) * (kSumThreads / 32)];
  __device__ T* get() { return reinterpret_cast<T*>(bytes); }
};

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_QUALITY_BLOCK_SUM_CUH_
