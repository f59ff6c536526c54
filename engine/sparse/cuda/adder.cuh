// SPDX-License-Identifier: Apache-2.0
// Adds products to the sums of a row of C, by a warp. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ADDER_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ADDER_CUH_

#include <cstdint>

#include "engine/device/warp.cuh"
#include "engine/sparse/csr.h"
#include "engine/sparse/cuda/products.cuh"
#include "engine/sparse/cuda/search.cuh"

namespace intrawarp::cuda::spgemm {

// Adds products to the sums of up to kRows rows of C with one pattern, `count` entries each. Each lane holds an entry
// of A, whose values in these rows are a_value; find(column) is the rank of a column, or -1 - lane for a column without
// a sum, whose product is left out. The products of a sum are added by ascending k.
template <typename T, typename Ring, int kRows, typename Find>
struct Adder {
  const int32_t* b_columns;
  const T* b_values;
  Find find;
  int count;
  T* sums;

  // Adds one row of B after another, for entries of A whose rows of B are long. The entries of a row of B have sums of
  // their own.
  __device__ __forceinline__ void AddByRows(int64_t from, int length, const T (&a_value)[kRows]) const {
    const int lane = threadIdx.x % 32;
    // Adds entries j and j + 32 of a row of B of `length`. Their sums differ, so lookups, loads and stores overlap.
    const auto add = [&](const int32_t* column, const T* b_value, const T* factors, int j, int length) {
      int rank[2];
      T sum[2][kRows];
#pragma unroll
      for (int h = 0; h < 2; ++h) rank[h] = j + h * 32 < length ? find(column[h]) : -1;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int g = 0; g < kRows; ++g) sum[h][g] = rank[h] >= 0 ? sums[g * count + rank[h]] : T{};
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int g = 0; g < kRows; ++g) {
          if (rank[h] >= 0) sums[g * count + rank[h]] = Ring::Add(sum[h][g], factors[g], b_value[h]);
        }
      }
    };
    unsigned m = __ballot_sync(kAllLanes, length > 0);
    if (m == 0) return;
    // The first 64 entries of the next row of B load while this row is added.
    int64_t at = __shfl_sync(kAllLanes, from, __ffs(m) - 1);
    int stop = __shfl_sync(kAllLanes, length, __ffs(m) - 1);
    int32_t column[2] = {};
    T value[2] = {};
    const auto load = [&](int64_t row_begin, int row_length, int j, int32_t* columns, T* values) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (j + h * 32 >= row_length) continue;
        columns[h] = b_columns[row_begin + j + h * 32];
        values[h] = b_values[row_begin + j + h * 32];
      }
    };
    load(at, stop, lane, column, value);
    while (m != 0) {
      const int s = __ffs(m) - 1;
      m &= m - 1;
      T factors[kRows];
#pragma unroll
      for (int g = 0; g < kRows; ++g) factors[g] = __shfl_sync(kAllLanes, a_value[g], s);
      const int64_t at_now = at;
      const int stop_now = stop;
      int32_t column_now[2] = {column[0], column[1]};
      T value_now[2] = {value[0], value[1]};
      if (m != 0) {
        at = __shfl_sync(kAllLanes, from, __ffs(m) - 1);
        stop = __shfl_sync(kAllLanes, length, __ffs(m) - 1);
        load(at, stop, lane, column, value);
      }
      add(column_now, value_now, factors, lane, stop_now);
      for (int j = lane + 64; j < stop_now; j += 64) {
        load(at_now, stop_now, j, column_now, value_now);
        add(column_now, value_now, factors, j, stop_now);
      }
      __syncwarp();
    }
  }

  // Adds all products in order, 32 at a time; lanes whose products fall on one sum take turns.
  __device__ __forceinline__ void AddAll(int64_t from, int64_t to, const T (&a_value)[kRows]) const {
    constexpr int kTogether = 2;
    const int lane = threadIdx.x % 32;
    ForProducts<kTogether>(from, to, [&](const Products<kTogether>& p) {
      int rank[kTogether];
      T b_value[kTogether] = {};
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        rank[h] = -1 - lane;
        if (p.at[h] < 0) continue;
        rank[h] = b_columns[p.at[h]];
        b_value[h] = b_values[p.at[h]];
      }
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        if (p.at[h] >= 0) rank[h] = find(rank[h]);
      }
#pragma unroll
      for (int h = 0; h < kTogether; ++h) {
        T factor[kRows];
#pragma unroll
        for (int g = 0; g < kRows; ++g) factor[g] = __shfl_sync(kAllLanes, a_value[g], p.entry[h]);
        const auto add = [&] {
#pragma unroll
          for (int g = 0; g < kRows; ++g) {
            T& sum = sums[g * count + rank[h]];
            sum = Ring::Add(sum, factor[g], b_value[h]);
          }
        };
        int turn = 0;
        unsigned waiting = 0;
        if (p.mixed[h]) {
          turn = __popc(__match_any_sync(kAllLanes, rank[h]) & ((1u << lane) - 1));
          waiting = __ballot_sync(kAllLanes, turn > 0);
        }
        if (rank[h] >= 0 && turn == 0) add();
        for (int now_at = 1; waiting != 0; ++now_at) {
          __syncwarp();
          if (turn == now_at) add();
          waiting = __ballot_sync(kAllLanes, turn > now_at);
        }
        __syncwarp();
      }
    });
  }

  // Adds all products, in the way that suits the lengths of the rows of B. kShort: rows of B may be short.
  template <bool kShort>
  __device__ __forceinline__ void Add(int64_t from, int64_t to, const T (&a_value)[kRows]) const {
    constexpr int kLongEntries = 10;  // of a row of B
    const int64_t length = to - from;
    if constexpr (kShort) {
      const int there = __popc(__ballot_sync(kAllLanes, length > 0));
      const int are_long = __popc(__ballot_sync(kAllLanes, length >= kLongEntries));
      if (2 * are_long <= there) {
        AddAll(from, to, a_value);
        return;
      }
    }
    AddByRows(from, static_cast<int>(length), a_value);
  }
};

// Adds the products of every `step`-th entry of A in [begin, end) to sums[g * count + rank], for `rows` <= kRows rows g
// with one pattern; for more than one row, [begin, end) is a whole row of A. Unless `whole`, adds only the products in
// columns [first, last]. kShort: rows of B may be short.
template <typename T, typename Ring, int kRows, bool kShort, typename Find>
__device__ __forceinline__ void AddProducts(const ConstCsrView& a, const ConstCsrView& b, int64_t begin, int64_t end,
                                            int step, int rows, bool whole, int32_t first, int32_t last,
                                            const Find& find, int count, T* sums) {
  const int lane = threadIdx.x % 32;
  const T* a_values = static_cast<const T*>(a.values);
  const Adder<T, Ring, kRows, Find> adder = {b.column_indices, static_cast<const T*>(b.values), find, count, sums};
  const int64_t a_stride = end - begin;
  RowOfB next(a, b, begin + lane * step, end);
  for (int64_t at = begin; at < end; at += 32 * step) {
    const int64_t i = at + lane * step;
    RowOfB now = next;
    T a_value[kRows] = {};
#pragma unroll
    for (int g = 0; g < kRows; ++g) {
      if (i < end && g < rows) a_value[g] = a_values[i + g * a_stride];
    }
    next = RowOfB(a, b, i + 32 * step, end);
    if (!whole) LowerBounds(b.column_indices, first, last + 1, &now.from, &now.to);
    adder.template Add<kShort>(now.from, now.to, a_value);
  }
}

template <typename T>
__device__ void WriteSums(const T* sums, int count, T alpha, T* out) {
  for (int r = threadIdx.x % 32; r < count; r += 32) out[r] = alpha == T{1} ? sums[r] : alpha * sums[r];
  __syncwarp();
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ADDER_CUH_
