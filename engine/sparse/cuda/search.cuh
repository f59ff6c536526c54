// SPDX-License-Identifier: Apache-2.0
// Binary searches in ascending values, by one thread. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_SEARCH_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_SEARCH_CUH_

#include <cstdint>

namespace intrawarp::cuda::spgemm {

// The first index in [begin, end) whose value is not less than `value`; `end` when there is none.
template <typename T, typename Index>
__device__ Index LowerBound(const T* values, Index begin, Index end, T value) {
  while (begin < end) {
    const Index middle = begin + (end - begin) / 2;
    if (values[middle] < value) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Sets *begin and *end to the lower bounds of `first` and of `last` in [*begin, *end). The two searches run together,
// so that their loads overlap.
inline __device__ void LowerBounds(const int32_t* values, int32_t first, int32_t last, int64_t* begin, int64_t* end) {
  int64_t low[2] = {*begin, *begin}, high[2] = {*end, *end};
  while (low[0] < high[0] || low[1] < high[1]) {
    int64_t middle[2];
    int32_t value[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      middle[h] = low[h] + (high[h] - low[h]) / 2;
      value[h] = low[h] < high[h] ? values[middle[h]] : 0;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (low[h] >= high[h]) continue;
      if (value[h] < (h == 0 ? first : last)) {
        low[h] = middle[h] + 1;
      } else {
        high[h] = middle[h];
      }
    }
  }
  *begin = low[0];
  *end = low[1];
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_SEARCH_CUH_
