// SPDX-License-Identifier: Apache-2.0
// How a warp walks the intermediate products a_ik b_kj of a row of C, in the order of A's entries and of B's columns.
// Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_PRODUCTS_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_PRODUCTS_CUH_

#include <cstdint>

#include "engine/device/warp.cuh"
#include "engine/sparse/csr.h"

namespace intrawarp::cuda::spgemm {

// The row of B that entry i of A multiplies, as entries [from, to) of B; no entries for i >= end.
struct RowOfB {
  int64_t from = 0, to = 0;
  __device__ RowOfB(const ConstPatternView& a, const ConstPatternView& b, int64_t i, int64_t end) {
    if (i >= end) return;
    const int32_t k = a.column_indices[i];
    from = b.row_offsets[k];
    to = b.row_offsets[k + 1];
  }
};

// The position of the bit of `mask` that has `n` set bits below it.
inline __device__ int NthBit(unsigned mask, int n) {
  int place = 0;
  for (int width = 16; width > 0; width /= 2) {
    const int below = __popc(mask >> place & ((1u << width) - 1));
    if (n < below) continue;
    n -= below;
    place += width;
  }
  return place;
}

// A lane's products in one step of ForProducts, kTogether of them.
template <int kTogether>
struct Products {
  int64_t at[kTogether];  // the entry of B; -1 where there is no product
  int entry[kTogether];   // the lane that holds the entry of A
  bool mixed[kTogether];  // whether the lanes' h-th products have several entries of A; the same in all lanes
};

// Calls use(products) for the products of each lane's entry of A with entries [from, to) of B: those of the first lane
// first, one after another, 32 kTogether a call. All lanes of the warp call it, and all call `use`.
template <int kTogether, typename Use>
__device__ __forceinline__ void ForProducts(int64_t from, int64_t to, const Use& use) {
  constexpr int64_t kMost = 1 << 25;  // of a row of B at once, so that sums of 32 fit an int
  const int lane = threadIdx.x % 32;
  const unsigned up_to_mine = kAllLanes >> (31 - lane);
  while (true) {
    const int length = static_cast<int>(to - from < kMost ? to - from : kMost);
    const unsigned there = __ballot_sync(kAllLanes, length > 0);
    if (there == 0) return;
    const bool gaps = (there & (there + 1)) != 0;
    const int lane_of = gaps ? NthBit(there, lane) : 0;
    const int ends = InclusiveScan(length), start = ends - length, total = __shfl_sync(kAllLanes, ends, 31);
    const int64_t shifted = from - start;
    int begun = 0;
    for (int first = 0; first < total; first += 32 * kTogether) {
      Products<kTogether> p;
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        const int place = start - first - h * 32;
        const uint32_t begins = WarpOr(length > 0 && place >= 0 && place < 32 ? 1u << place : 0);
        const int nth = begun + __popc(begins & up_to_mine) - 1;
        begun += __popc(begins);
        p.entry[h] = gaps ? __shfl_sync(kAllLanes, lane_of, nth) : nth;
        const int number = first + h * 32 + lane;
        const int64_t at = __shfl_sync(kAllLanes, shifted, p.entry[h]) + number;
        p.at[h] = number < total ? at : -1;
        p.mixed[h] = begins > 1;
      }
      use(p);
    }
    from += length;
  }
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_PRODUCTS_CUH_
