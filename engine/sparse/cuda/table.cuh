// SPDX-License-Identifier: Apache-2.0
// A hash table in shared memory, from the columns of a row of C to their ranks. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_TABLE_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_TABLE_CUH_

#include <cstdint>

namespace intrawarp::cuda::spgemm {

// A hash table from a column of C to its rank.
template <int kSize>
struct Table {
  int32_t columns[kSize];
  uint16_t ranks[kSize];

  static __device__ unsigned SlotOf(int32_t column) {
    return (static_cast<uint32_t>(column) * 2654435761u) >> (__clz(kSize) + 1);
  }
  __device__ void Clear(int thread, int threads) {
    for (int s = thread; s < kSize; s += threads) columns[s] = -1;
  }
  // Inserts a column, whose rank is set later; true when the table did not have it. Threads may insert at the same
  // time.
  __device__ bool Add(int32_t column) {
    unsigned slot = SlotOf(column);
    while (true) {
      int32_t there = columns[slot];
      if (there == -1) there = atomicCAS(&columns[slot], -1, column);
      if (there == -1) return true;
      if (there == column) return false;
      slot = (slot + 1) % kSize;
    }
  }
  // Sets the rank of a column that was inserted.
  __device__ void SetRank(int32_t column, int rank) {
    unsigned slot = SlotOf(column);
    while (columns[slot] != column) slot = (slot + 1) % kSize;
    ranks[slot] = static_cast<uint16_t>(rank);
  }
  // Inserts a column that the table does not have; threads may insert at the same time.
  __device__ void Insert(int32_t column, int rank) {
    unsigned slot = SlotOf(column);
    while (atomicCAS(&columns[slot], -1, column) != -1) slot = (slot + 1) % kSize;
    ranks[slot] = static_cast<uint16_t>(rank);
  }
  // The rank of a column that was inserted.
  __device__ int Find(int32_t column) const {
    unsigned slot = SlotOf(column);
    while (columns[slot] != column) slot = (slot + 1) % kSize;
    return ranks[slot];
  }
};

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_TABLE_CUH_
