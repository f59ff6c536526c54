// SPDX-License-Identifier: Apache-2.0
// Rows of few products, merged from their rows of B by one thread. Internal to multiply_*_cuda.cu.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_MERGE_CUH_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_MERGE_CUH_

#include "engine/sparse/multiply_device.cuh"

namespace intrawarp::cuda {

enum class Make { kCount, kColumns, kValues, kBoth };

template <typename T>
struct PlusTimes {
  static __device__ T Identity() { return 0; }
  static __device__ T Add(T sum, T a, T b) { return fma(a, b, sum); }
  static __device__ T Join(T x, T y) { return x + y; }
};
template <typename T>
struct OrAnd {
  static __device__ T Identity() { return 0; }
  static __device__ T Add(T sum, T a, T b) { return sum != 0 || (a != 0 && b != 0); }
  static __device__ T Join(T x, T y) { return x != 0 || y != 0; }
};
template <typename T>
struct MinPlus {
  static __device__ T Identity() { return static_cast<T>(INFINITY); }
  static __device__ T Add(T sum, T a, T b) { return fmin(sum, a + b); }
  static __device__ T Join(T x, T y) { return fmin(x, y); }
};

// A row's rows of B, merged in registers: calls emit(column, sum) by ascending columns.
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

// What a block's rows make is staged in shared memory, to be written in order: so many entries a thread.
constexpr int kStagedPerThread = 16;

// Where the columns and values of C go, null where they aren't made, and where they are staged.
template <typename T>
struct MergeTargets {
  int32_t* columns;
  T* values;
  int32_t* staged_columns;
  T* staged_values;
};

// Consecutive rows of few products from `first`, a thread each: counts into offsets, or entries. All threads of a block
// call it.
template <typename T, typename Ring, Make kMake>
__device__ void MergeRows(const ConstCsrView& a, const ConstCsrView& b, const uint8_t* kinds, int64_t* offsets,
                          int64_t first, T alpha, const MergeTargets<T>& to) {
  constexpr bool kColumns = kMake == Make::kColumns || kMake == Make::kBoth;
  constexpr bool kValues = kMake == Make::kValues || kMake == Make::kBoth;
  const int64_t row = first + threadIdx.x;
  const bool mine = row < a.rows && (kinds[row] & kClassMask) == kTiny;
  if constexpr (kMake == Make::kCount) {
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

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_MERGE_CUH_
