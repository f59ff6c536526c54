// SPDX-License-Identifier: Apache-2.0
// The blocks of a kernel that takes rows in order do this together: sums over all rows before a row, and the counters
// for the host at the end. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ROW_SCAN_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ROW_SCAN_CUH_

#include <cstdint>

#include "engine/device/reduce.cuh"
#include "engine/sparse/cuda/counters.h"

namespace intrawarp::cuda::spgemm {

// The number of this block in the order in which blocks start, by a counter that is 0 at first. A block may wait for
// blocks of smaller numbers, as they have started, too. All threads of the block call it.
inline __device__ unsigned TakeBlock(unsigned* next) {
  __shared__ unsigned block;
  if (threadIdx.x == 0) block = atomicAdd(next, 1u);
  __syncthreads();
  return block;
}

// The sum over all blocks before `block`, by decoupled look-back (Merrill and Garland 2016): each block publishes its
// own sum, then the whole sum up to its end. One warp calls it.
constexpr unsigned long long kOwnSum = 1ull << 62, kWholeSum = 2ull << 62, kSumMask = kOwnSum - 1;
inline __device__ int64_t SumBefore(volatile unsigned long long* states, int64_t block) {
  const int lane = threadIdx.x % 32;
  int64_t sum = 0;
  for (int64_t last = block - 1; last >= 0; last -= 32) {
    const int64_t mine = last - lane;
    unsigned long long state = mine >= 0 ? 0 : kWholeSum;
    while (mine >= 0 && state == 0) state = states[mine];
    __syncwarp();
    const unsigned whole = __ballot_sync(kAllLanes, state >= kWholeSum);
    const int stop = whole == 0 ? 31 : __ffs(whole) - 1;
    const int64_t part = lane <= stop ? static_cast<int64_t>(state & kSumMask) : 0;
    sum += WarpSumAll(part);
    if (whole != 0) break;
  }
  return sum;
}

// The sum of the values of all threads before this one, in this block and in the blocks before it. `states`, one for
// each block, are 0 at first; `block` is from TakeBlock. All threads of the block, kThreads of them, call it.
inline __device__ int64_t SumBeforeThread(int64_t value, unsigned block, volatile unsigned long long* states) {
  __shared__ int64_t before_block, sums[kWarps];
  int64_t total = 0;
  const int64_t before = BlockExclusiveScan<kWarps>(value, sums, &total);
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0 && block > 0) states[block] = kOwnSum | static_cast<unsigned long long>(total);
    const int64_t sum = SumBefore(states, block);
    if (threadIdx.x == 0) {
      states[block] = kWholeSum | static_cast<unsigned long long>(sum + total);
      before_block = sum;
    }
  }
  __syncthreads();
  return before_block + before;
}

// The last block that calls it, by a counter that is 0 at first, writes the counters to the host's memory. All threads
// of the block, kThreads of them, call it.
inline __device__ void CountersToHost(Counters* counters, unsigned* done, HostCounters* on_host) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  constexpr int kWords = sizeof(Counters) / sizeof(unsigned);
  const auto* const from = reinterpret_cast<const unsigned*>(counters);
  auto* const to = reinterpret_cast<unsigned*>(&on_host->counters);
  for (int w = threadIdx.x; w < kWords; w += kThreads) to[w] = __ldcg(from + w);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *static_cast<volatile unsigned*>(&on_host->ready) = 1;
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ROW_SCAN_CUH_
