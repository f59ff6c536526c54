// SPDX-License-Identifier: Apache-2.0
// Tiny rows: one thread merges the rows of B. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_MERGE_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_MERGE_CUH_

#include <climits>
#include <cstdint>

#include "engine/sparse/csr.h"
#include "engine/sparse/cuda/row_classes.h"

namespace intrawarp::cuda::spgemm {

// A merge writes one of these: the number of entries of each row, their columns, their values, or columns and values.
enum class MergeOutput { kCount, kColumns, kValues, kBoth };

// Merges the rows of B that a row of A multiplies, in registers; calls emit(column, sum) by ascending columns.
template <typename T, typename Ring, bool kWithValues, typename Emit>
__device__ void MergeRow(const ConstCsrView& a, const ConstCsrView& b, int64_t row, const Emit& emit) {
  const int64_t begin = a.row_offsets[row];
  const int lists = static_cast<int>(a.row_offsets[row + 1] - begin);
  const T* a_values = static_cast<const T*>(a.values);
  const T* b_values = static_cast<const T*>(b.values);
  int64_t at[kTinyEntries];
  int left[kTinyEntries], head[kTinyEntries];
  T factor[kTinyEntries];
#pragma unroll
  for (int i = 0; i < kTinyEntries; ++i) {
    at[i] = 0;
    left[i] = 0;
    factor[i] = 0;
    if (i < lists) {
      const int32_t k = a.column_indices[begin + i];
      if (kWithValues) factor[i] = a_values[begin + i];
      at[i] = b.row_offsets[k];
      left[i] = static_cast<int>(b.row_offsets[k + 1] - at[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kTinyEntries; ++i) head[i] = left[i] > 0 ? b.column_indices[at[i]] : INT_MAX;
  while (true) {
    int column = head[0];
#pragma unroll
    for (int i = 1; i < kTinyEntries; ++i) column = min(column, head[i]);
    if (column == INT_MAX) return;
    T sum = Ring::Identity();
#pragma unroll
    for (int i = 0; i < kTinyEntries; ++i) {
      if (head[i] != column) continue;
      if constexpr (kWithValues) sum = Ring::Add(sum, factor[i], b_values[at[i]]);
      ++at[i];
      --left[i];
      head[i] = left[i] > 0 ? b.column_indices[at[i]] : INT_MAX;
    }
    emit(column, sum);
  }
}

// A block stages its rows in shared memory, to write them in order: so many entries a thread.
constexpr int kStagedPerThread = 16;

// The columns and values of C, and the shared memory that stages them; null for an output that is not made.
template <typename T>
struct MergeTargets {
  int32_t* columns;
  T* values;
  int32_t* staged_columns;
  T* staged_values;
};

// Merges the tiny rows among consecutive rows from `first` on, a thread each. Counts go into `offsets`. All threads of
// a block call it.
template <typename T, typename Ring, MergeOutput kMake>
__device__ void MergeRows(const ConstCsrView& a, const ConstCsrView& b, const uint8_t* kinds, int64_t* offsets,
                          int64_t first, T alpha, const MergeTargets<T>& to) {
  constexpr bool kColumns = kMake == MergeOutput::kColumns || kMake == MergeOutput::kBoth;
  constexpr bool kValues = kMake == MergeOutput::kValues || kMake == MergeOutput::kBoth;
  const int64_t row = first + threadIdx.x;
  const bool mine = row < a.rows && (kinds[row] & kClassMask) == kTiny;
  if constexpr (kMake == MergeOutput::kCount) {
    if (!mine) return;
    int count = 0;
    MergeRow<T, Ring, false>(a, b, row, [&](int, T) { ++count; });
    offsets[row] = count;
  } else {
    const int64_t begin = offsets[first], end = offsets[min(first + blockDim.x, int64_t{a.rows})];
    const bool others = row < a.rows && !mine && (kinds[row] & kClassMask) != kNone;
    const bool staged = !__syncthreads_or(others) && end - begin <= kStagedPerThread * blockDim.x;
    int32_t* const columns = kColumns ? staged ? to.staged_columns : to.columns + begin : nullptr;
    T* const values = kValues ? staged ? to.staged_values : to.values + begin : nullptr;
    if (mine) {
      int64_t place = offsets[row] - begin;
      MergeRow<T, Ring, kValues>(a, b, row, [&](int column, T sum) {
        if constexpr (kColumns) columns[place] = column;
        if constexpr (kValues) values[place] = alpha == T{1} ? sum : alpha * sum;
        ++place;
      });
    }
    __syncthreads();
    if (!staged) return;
    const int count = static_cast<int>(end - begin);
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      if constexpr (kColumns) to.columns[begin + i] = columns[i];
      if constexpr (kValues) to.values[begin + i] = values[i];
    }
  }
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_MERGE_CUH_
