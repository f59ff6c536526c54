// SPDX-License-Identifier: Apache-2.0
// How kernels read marks. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_MARKS_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_MARKS_CUH_

#include <cstdint>

#include "engine/sparse/cuda/marks.h"

namespace intrawarp::cuda::spgemm {

inline __device__ bool IsMarked(const Marks& marks, int64_t entry) { return marks.bits[entry / 32] >> entry % 32 & 1; }

// The number of marks before an entry.
inline __device__ int64_t RankOf(const Marks& marks, int64_t entry) {
  return marks.before[entry / 32] + __popc(marks.bits[entry / 32] & ((1u << entry % 32) - 1));
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_MARKS_CUH_
