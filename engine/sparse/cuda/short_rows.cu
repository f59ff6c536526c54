// SPDX-License-Identifier: Apache-2.0
#include <climits>

#include "engine/base/status_macros.h"
#include "engine/device/warp.cuh"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/merge.cuh"
#include "engine/sparse/cuda/products.cuh"
#include "engine/sparse/cuda/row_lists.cuh"
#include "engine/sparse/cuda/row_scan.cuh"
#include "engine/sparse/cuda/row_work.cuh"
#include "engine/sparse/cuda/semirings.cuh"
#include "engine/sparse/cuda/short_rows.h"
#include "engine/sparse/cuda/tiles.h"

namespace intrawarp::cuda::spgemm {
namespace {

// A warp's set of columns, by open addressing; at least twice as large as it may become.
struct ColumnSet {
  static constexpr int kMostSlots = 2 * kShortMultiplications;
  int32_t* slots;
  int bits;  // the set has 2^bits slots

  // Makes a set for a row with so many multiplications; the warp calls it.
  __device__ ColumnSet(int32_t* memory, int multiplications) : slots(memory) {
    bits = max(7, 33 - __clz(multiplications - 1));
    const int4 none = make_int4(-1, -1, -1, -1);
    for (int s = threadIdx.x % 32 * 4; s < 1 << bits; s += 128) *reinterpret_cast<int4*>(slots + s) = none;
    __syncwarp();
  }
  // True when the column was not there; threads may insert at the same time.
  __device__ bool Insert(int32_t column) const {
    unsigned slot = static_cast<uint32_t>(column) * 2654435761u >> (32 - bits);
    while (true) {
      int32_t there = slots[slot];
      if (there == -1) there = atomicCAS(&slots[slot], -1, column);
      if (there == -1) return true;
      if (there == column) return false;
      slot = (slot + 1) & ((1u << bits) - 1);
    }
  }
};

// The columns of a row of C with 32 multiplications and entries of A at most; each lane has an entry of A, [from, to)
// of B. A warp calls it.
__device__ int CountFewColumns(const ConstPatternView& b, int64_t from, int64_t to) {
  const int lane = threadIdx.x % 32;
  int columns = 0;
  ForProducts<1>(from, to, [&](const Products<1>& p) {
    const int32_t column = p.at[0] >= 0 ? b.column_indices[p.at[0]] : -1 - lane;
    const unsigned same = __match_any_sync(kAllLanes, column), below = (1u << lane) - 1;
    columns += __popc(__ballot_sync(kAllLanes, column >= 0 && (same & below) == 0));
  });
  return columns;
}

// The columns of a row of C with kShortMultiplications at most. `memory` holds kMostSlots. A warp calls it.
__device__ int CountColumns(const ConstPatternView& a, const ConstPatternView& b, int64_t begin, int64_t end,
                            int multiplications, int32_t* memory) {
  constexpr int kTogether = 2;
  const ColumnSet set(memory, multiplications);
  int columns = 0;
  for (int64_t at = begin; at < end; at += 32) {
    const RowOfB row(a, b, at + threadIdx.x % 32, end);
    ForProducts<kTogether>(row.from, row.to, [&](const Products<kTogether>& p) {
      int32_t column[kTogether];
#pragma unroll
      for (int h = 0; h < kTogether; ++h) column[h] = p.at[h] >= 0 ? b.column_indices[p.at[h]] : -1;
#pragma unroll
      for (int h = 0; h < kTogether; ++h) columns += column[h] >= 0 && set.Insert(column[h]);
      __syncwarp();
    });
  }
  return WarpSumAll(columns);
}

struct CountArguments {
  ConstPatternView a, b;
  PatternWorkspace w;
  RowBinsView bins;
  RowLimits limits;
  int rows_of_block;
  unsigned long long* states;
  uint16_t* counts;
  int64_t* offsets;
  HostCounters* on_host;
};

// A block finds this out about its rows.
struct BlockRows {
  unsigned waiting, taken;  // the queue of rows that warps take
  unsigned together;        // rows that the block takes
  unsigned long_rows;
  unsigned long long multiplications;
  uint16_t counts[kThreads];
  uint8_t kinds[kThreads];
  int8_t classes[kThreads];  // value class; -1 without
  uint8_t of_warps[kThreads], of_block[kThreads];
};

// Notes a row that is left to other classes. One thread calls it.
__device__ void NoteLong(const CountArguments& m, int64_t row, const RowWork& work, BlockRows& rows, int place) {
  const RowExtent extent = {
      work.first, work.last,
      static_cast<unsigned>(min(work.multiplications, static_cast<unsigned long long>(UINT_MAX)))};
  m.w.extents[row] = extent;
  rows.kinds[place] = ClassOf(extent, INT_MAX, 0) | (work.same ? kSame : 0);
  atomicAdd(&rows.multiplications, work.multiplications);
  if (work.multiplications == 0 || atomicAdd(&rows.long_rows, 1u) > 0) return;
  if (atomicAdd(&m.w.counters->long_rows, 1u) == 0) *static_cast<volatile unsigned*>(&m.on_host->long_rows) = 1;
}

// Looks at a row whose entries of A are [begin, end), kShortEntriesOfA at most. A warp calls it.
__device__ void CountRow(const CountArguments& m, int64_t row, int64_t begin, int64_t end, BlockRows& rows, int place,
                         int32_t* memory) {
  constexpr int64_t kMost = kShortMultiplications + 1;  // stands for more, so that sums fit an int
  const int lane = threadIdx.x % 32;
  const RowOfB first(m.a, m.b, begin + lane, end);
  int multiplications = WarpSumAll(static_cast<int>(min(first.to - first.from, kMost)));
  for (int64_t at = begin + 32; at < end; at += 32) {
    const RowOfB next(m.a, m.b, at + lane, end);
    multiplications += WarpSumAll(static_cast<int>(min(next.to - next.from, kMost)));
  }
  if (multiplications == 0) return;
  if (multiplications > kShortMultiplications) {
    RowWork work = WorkOf(m.a, m.b, row, begin, end, lane, 32, false);
    work.JoinLanes<32>();
    if (lane == 0) NoteLong(m, row, work, rows, place);
    return;
  }
  const bool few_entries = end - begin <= 32;
  const int columns = few_entries && multiplications <= 32
                          ? CountFewColumns(m.b, first.from, first.to)
                          : CountColumns(m.a, m.b, begin, end, multiplications, memory);
  if (lane != 0) return;
  rows.kinds[place] = kShort;
  rows.classes[place] = few_entries && multiplications <= kFewMultiplications ? kShortFew
                        : multiplications <= kWarpMultiplications             ? kShortWarp
                                                                              : kShortBlock;
  rows.counts[place] = static_cast<uint16_t>(columns);
  atomicAdd(&rows.multiplications, static_cast<unsigned long long>(multiplications));
}

// Merges a row if it is tiny; false for any other row. A thread calls it.
__device__ bool CountTinyRow(const CountArguments& m, int64_t row, int64_t begin, int64_t end, BlockRows& rows,
                             int place) {
  if (end - begin > kTinyEntries) return false;
  int64_t multiplications = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int32_t k = m.a.column_indices[i];
    multiplications += m.b.row_offsets[k + 1] - m.b.row_offsets[k];
  }
  if (multiplications > m.limits.tiny_multiplications) return false;
  int count = 0;
  const ConstCsrView a = {m.a, ValueType::kFloat32, nullptr}, b = {m.b, ValueType::kFloat32, nullptr};
  MergeRow<int32_t, PlusTimes<int32_t>, false>(a, b, row, [&](int, int32_t) { ++count; });
  rows.counts[place] = static_cast<uint16_t>(count);
  if (multiplications > 0) rows.kinds[place] = kTiny;
  atomicAdd(&rows.multiplications, static_cast<unsigned long long>(multiplications));
  return true;
}

// Puts what the block found out where it belongs. Thread t has the block's t-th row.
__device__ void PublishRows(const CountArguments& m, unsigned block, int64_t row, const BlockRows& rows) {
  const int t = threadIdx.x, entries = rows.counts[t];
  const int64_t before = SumBeforeThread(entries, block, m.states);
  const bool mine = t < m.rows_of_block && row < m.a.rows;
  if (mine) {
    m.offsets[row] = before;
    m.counts[row] = rows.counts[t];
    m.bins.kinds[row] = rows.kinds[t];
    if (row == m.a.rows - 1) m.w.counters->entries = m.offsets[row + 1] = before + entries;
  }
  const unsigned place = ReservePlaces<kValueClasses>(rows.classes[t], 1, m.w.counters->value_rows);
  if (rows.classes[t] >= 0) *m.bins.RowAt(rows.classes[t], place) = static_cast<int32_t>(row);
  const int tiny = __syncthreads_count(mine && (rows.kinds[t] & kClassMask) == kTiny);
  if (t > 0) return;
  if (tiny > 0) atomicAdd(&m.w.counters->pattern_rows[kTiny], static_cast<unsigned>(tiny));
  if (rows.long_rows > 1) atomicAdd(&m.w.counters->long_rows, rows.long_rows - 1);
  if (rows.multiplications > 0) atomicAdd(&m.w.counters->multiplications, rows.multiplications);
}

// kMerge: there are so many rows that threads merge tiny ones.
template <bool kMerge>
__global__ void __launch_bounds__(kThreads, kMerge ? 4 : 5) CountKernel(CountArguments m) {
  __shared__ __align__(16) int32_t sets[kWarps][ColumnSet::kMostSlots];
  __shared__ BlockRows rows;
  const int t = threadIdx.x;
  if (t == 0) {
    rows.waiting = rows.taken = rows.together = rows.long_rows = 0;
    rows.multiplications = 0;
  }
  rows.counts[t] = 0;
  rows.kinds[t] = kNone;
  rows.classes[t] = -1;
  const unsigned block = TakeBlock(&m.w.counters->next_short);
  const int64_t first = int64_t{block} * m.rows_of_block, row = first + t;
  if (t < m.rows_of_block && row < m.a.rows) {
    const int64_t begin = m.a.row_offsets[row], end = m.a.row_offsets[row + 1];
    if (end - begin > kShortEntriesOfA) {
      rows.of_block[atomicAdd(&rows.together, 1u)] = static_cast<uint8_t>(t);
    } else if (end > begin && !(kMerge && CountTinyRow(m, row, begin, end, rows, t))) {
      rows.of_warps[atomicAdd(&rows.waiting, 1u)] = static_cast<uint8_t>(t);
    }
  }
  __syncthreads();
  const unsigned waiting = rows.waiting;
  while (true) {
    unsigned next = t % 32 == 0 ? atomicAdd(&rows.taken, 1u) : 0;
    next = __shfl_sync(kAllLanes, next, 0);
    if (next >= waiting) break;
    const int place = rows.of_warps[next];
    const int64_t of_warp = first + place;
    CountRow(m, of_warp, m.a.row_offsets[of_warp], m.a.row_offsets[of_warp + 1], rows, place, sets[t / 32]);
  }
  __syncthreads();
  const unsigned together = rows.together;
  for (unsigned n = 0; n < together; ++n) {
    const int64_t of_block = first + rows.of_block[n];
    const RowWork work = BlockWorkOf(m.a, m.b, of_block, false);
    if (t == 0) NoteLong(m, of_block, work, rows, rows.of_block[n]);
  }
  __syncthreads();
  PublishRows(m, block, row, rows);
  CountersToHost(m.w.counters, &m.w.counters->short_counted, m.on_host);
}

}  // namespace

bool ShortRowsAreLikely(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options) {
  if (a.rows == 0 || b.rows == 0) return false;
  if (options.path == MultiplyPath::kShortRows) return true;
  if (options.path == MultiplyPath::kLongRows || AccumulatorsOf(options.path) != Accumulators::kBySize) return false;
  if (b.columns <= kMiddleWords * 32) return false;
  if (TilesArePossible(a, b, options)) return false;
  const double of_row = static_cast<double>(a.entries) / a.rows * (static_cast<double>(b.entries) / b.rows);
  return of_row <= kLikelyMultiplications;
}

absl::Status CountShortRows(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                            const PatternWorkspace& w, const RowBinsView& bins, uint16_t* counts, int64_t* offsets,
                            HostCounters* on_host) {
  constexpr int64_t kManyRows = 131072;
  const bool merge = a.rows >= kManyRows;
  auto* const states = reinterpret_cast<unsigned long long*>(w.counters + 1) + BinBlocks(a.rows);
  const CountArguments m = {a, b, w, bins, RowLimitsOf(a), ShortRowsOfBlock(a.rows), states, counts, offsets, on_host};
  return Launcher(ctx).LaunchCapped(INT_MAX, merge ? CountKernel<true> : CountKernel<false>, ShortBlocks(a.rows), 1,
                                    kThreads, 0, m);
}

}  // namespace intrawarp::cuda::spgemm
