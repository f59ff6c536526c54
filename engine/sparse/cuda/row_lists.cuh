// SPDX-License-Identifier: Apache-2.0
// How kernels put rows into lists. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ROW_LISTS_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ROW_LISTS_CUH_

#include <cstdint>

#include "engine/sparse/cuda/row_classes.h"

namespace intrawarp::cuda::spgemm {

// Reserves `amount` places at the end of the list of class `of_class` (-1: none) for each thread of the block, and
// returns the first of them; one atomic a block and class. All threads of the block call it.
template <int kClasses>
__device__ unsigned ReservePlaces(int of_class, unsigned amount, unsigned* lengths) {
  __shared__ unsigned counts[kClasses], starts[kClasses];
  if (threadIdx.x < kClasses) counts[threadIdx.x] = 0;
  __syncthreads();
  const unsigned mine = of_class >= 0 ? atomicAdd(&counts[of_class], amount) : 0;
  __syncthreads();
  if (threadIdx.x < kClasses && counts[threadIdx.x] > 0) {
    starts[threadIdx.x] = atomicAdd(&lengths[threadIdx.x], counts[threadIdx.x]);
  }
  __syncthreads();
  return of_class >= 0 ? starts[of_class] + mine : 0;
}

// The number of rows in the group that `row` begins; 0 when the row belongs to a group that an earlier row begins. The
// rows of a run with one pattern have equal kinds.
inline __device__ int GroupSize(const uint8_t* kinds, int32_t row, int32_t rows) {
  int into_run = 0;
  while ((kinds[row - into_run] & kSame) && (kinds[row - into_run - 1] & kClassMask) != kTiled) ++into_run;
  if (into_run % kGroupRows != 0) return 0;
  int group = 1;
  while (group < kGroupRows && row + group < rows && (kinds[row + group] & kSame)) ++group;
  return group;
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ROW_LISTS_CUH_
