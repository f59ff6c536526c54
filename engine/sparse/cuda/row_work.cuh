// SPDX-License-Identifier: Apache-2.0
// The work of a row of a product, measured. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ROW_WORK_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ROW_WORK_CUH_

#include <climits>
#include <cstdint>

#include "engine/device/warp.cuh"
#include "engine/sparse/csr.h"
#include "engine/sparse/cuda/row_classes.h"

namespace intrawarp::cuda::spgemm {

constexpr int kRunLength = 64;  // a run of rows with one pattern is cut after so many rows

inline __device__ uint8_t ClassOf(const RowExtent& extent, int64_t a_entries, unsigned tiny_multiplications) {
  if (extent.multiplications == 0) return kNone;
  if (extent.multiplications <= tiny_multiplications && a_entries <= kTinyEntries) return kTiny;
  const int words = extent.last / 32 - extent.first / 32 + 1;
  return words <= kNearWords ? kNear : words <= kMiddleWords ? kMiddle : kFar;
}

// The work of a row, or of a part of a row.
struct RowWork {
  unsigned long long multiplications;
  int first, last;  // columns
  bool same;        // the row of A has the pattern of the row before
  unsigned runs;    // of entries of A in one tile, if counted

  __device__ void Join(const RowWork& other) {
    multiplications += other.multiplications;
    first = min(first, other.first);
    last = max(last, other.last);
    same = same && other.same;
    runs += other.runs;
  }
  // Joins the work of kLanes lanes, a power of two. All lanes of the warp call it.
  template <int kLanes>
  __device__ void JoinLanes() {
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      RowWork other;
      other.multiplications = __shfl_xor_sync(kAllLanes, multiplications, offset);
      other.first = __shfl_xor_sync(kAllLanes, first, offset);
      other.last = __shfl_xor_sync(kAllLanes, last, offset);
      other.same = __shfl_xor_sync(kAllLanes, same, offset);
      other.runs = __shfl_xor_sync(kAllLanes, runs, offset);
      Join(other);
    }
  }
};

// The work of every `step`-th entry of the row of A, from the `skip`-th on.
inline __device__ RowWork WorkOf(const ConstPatternView& a, const ConstPatternView& b, int64_t row, int64_t begin,
                                 int64_t end, int skip, int step, bool count_runs) {
  RowWork w = {0, INT_MAX, -1, false, 0};
  // `row` may lie behind the rows of A if it has no entries.
  const bool follows = row % kRunLength != 0 && begin < end;
  const int64_t before = follows ? a.row_offsets[row - 1] : begin;
  w.same = follows && begin - before == end - begin;
  for (int64_t i = begin + skip; i < end; i += step) {
    const int32_t k = a.column_indices[i];
    const int64_t from = b.row_offsets[k], to = b.row_offsets[k + 1];
    w.same = w.same && a.column_indices[before + (i - begin)] == k;
    if (count_runs) w.runs += i == begin || a.column_indices[i - 1] / 8 != k / 8;
    if (from == to) continue;
    w.multiplications += to - from;
    w.first = min(w.first, b.column_indices[from]);
    w.last = max(w.last, b.column_indices[to - 1]);
  }
  return w;
}

// The work of a whole row of A, by a block of kThreads, all of whose threads call it; valid in thread 0. A barrier ends
// it.
inline __device__ RowWork BlockWorkOf(const ConstPatternView& a, const ConstPatternView& b, int64_t row,
                                      bool count_runs) {
  __shared__ RowWork parts[kWarps];
  const int64_t begin = a.row_offsets[row], end = a.row_offsets[row + 1];
  RowWork work = WorkOf(a, b, row, begin, end, threadIdx.x, kThreads, count_runs);
  work.JoinLanes<32>();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = work;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int p = 1; p < kWarps; ++p) work.Join(parts[p]);
  }
  __syncthreads();
  return work;
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ROW_WORK_CUH_
