// SPDX-License-Identifier: Apache-2.0
#include "engine/sparse/multiply_merge.cuh"
#include "engine/sparse/multiply_route.h"
#include "engine/sparse/multiply_values.h"

namespace intrawarp::cuda {
namespace {

const auto ProductPattern = MultiplyPlanAccess::ProductPattern;

// A warp's way from a column of its entries of C to their sums.
template <typename T>
struct BitsScratch {
  uint32_t* bits;
  uint16_t* ranks;  // of a word's first entry
  T* sums;
  int base, words;

  // For threads `thread` of `threads` together, which wait for each other between Place, Clear and Fill. `memory` holds
  // BytesOfBits bytes, aligned to 8.
  __device__ void Place(char* memory, const int32_t* columns, int count, int sum_count) {
    base = columns[0] / 32 * 32;
    words = (columns[count - 1] - base) / 32 + 1;
    sums = reinterpret_cast<T*>(memory);
    bits = reinterpret_cast<uint32_t*>(sums + sum_count);
    ranks = reinterpret_cast<uint16_t*>(bits + words);
  }
  __device__ void Clear(int thread, int threads, int sum_count, T identity) const {
    for (int w = thread; w < words; w += threads) bits[w] = 0;
    for (int r = thread; r < sum_count; r += threads) sums[r] = identity;
  }
  __device__ void Fill(int thread, int threads, const int32_t* columns, int count) const {
    for (int r = thread; r < count; r += threads) {
      const int c = columns[r] - base;
      atomicOr(&bits[c / 32], 1u << c % 32);
      if (r == 0 || (columns[r - 1] - base) / 32 != c / 32) ranks[c / 32] = static_cast<uint16_t>(r);
    }
  }
  // All of them, by a warp.
  __device__ void Init(char* memory, const int32_t* columns, int count, int sum_count, T identity) {
    const int lane = threadIdx.x % 32;
    Place(memory, columns, count, sum_count);
    Clear(lane, 32, sum_count, identity);
    __syncwarp();
    Fill(lane, 32, columns, count);
    __syncwarp();
  }
  __device__ int Find(int32_t column) const {
    const int c = column - base;
    return ranks[c / 32] + __popc(bits[c / 32] & ((1u << c % 32) - 1));
  }
};

// Sums of up to kRows rows of C with one pattern, `count` entries each, and how products are added to them: those of an
// entry of A a lane, whose values in those rows are a_value. find(column) is the rank of a column. The products of a
// sum are added by ascending k.
template <typename T, typename Ring, int kRows, typename Find>
struct Adder {
  const int32_t* b_columns;
  const T* b_values;
  Find find;
  int count;
  T* sums;

  // Entries of A whose rows of B are long: one row of B after another, whose entries never meet.
  __device__ __forceinline__ void AddByRows(int64_t from, int length, const T (&a_value)[kRows]) const {
    const int lane = threadIdx.x % 32;
    // Entries j and j + 32 of a row of B of `length`: looked up, loaded and stored together, as they never meet.
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
    unsigned m = __ballot_sync(kAll, length > 0);
    if (m == 0) return;
    // The first 64 entries of the next row of B are on their way while this one is added.
    int64_t at = __shfl_sync(kAll, from, __ffs(m) - 1);
    int stop = __shfl_sync(kAll, length, __ffs(m) - 1);
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
      for (int g = 0; g < kRows; ++g) factors[g] = __shfl_sync(kAll, a_value[g], s);
      const int64_t at_now = at;
      const int stop_now = stop;
      int32_t column_now[2] = {column[0], column[1]};
      T value_now[2] = {value[0], value[1]};
      if (m != 0) {
        at = __shfl_sync(kAll, from, __ffs(m) - 1);
        stop = __shfl_sync(kAll, length, __ffs(m) - 1);
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

  // All products in order, 32 at a time: lanes that meet at one sum take turns.
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
        for (int g = 0; g < kRows; ++g) factor[g] = __shfl_sync(kAll, a_value[g], p.entry[h]);
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
          turn = __popc(__match_any_sync(kAll, rank[h]) & ((1u << lane) - 1));
          waiting = __ballot_sync(kAll, turn > 0);
        }
        if (rank[h] >= 0 && turn == 0) add();
        for (int now_at = 1; waiting != 0; ++now_at) {
          __syncwarp();
          if (turn == now_at) add();
          waiting = __ballot_sync(kAll, turn > now_at);
        }
        __syncwarp();
      }
    });
  }
};

// Adds the products of every `step`-th entry of A from `begin`, before `end`, and of those of the rows after it with
// the same pattern (`rows` of them, kRows at most; then it is all of a row), in columns [first, last] when not whole,
// to sums[g * count + rank]. kShort: rows of B may be short.
template <typename T, typename Ring, int kRows, bool kShort, typename Find>
__device__ __forceinline__ void AddProducts(const ConstCsrView& a, const ConstCsrView& b, int64_t begin, int64_t end,
                                            int step, int rows, bool whole, int32_t first, int32_t last,
                                            const Find& find, int count, T* sums) {
  constexpr int kLongEntries = 10;  // of a row of B
  const int lane = threadIdx.x % 32;
  const T* a_values = static_cast<const T*>(a.values);
  const Adder<T, Ring, kRows, Find> adder = {b.column_indices, static_cast<const T*>(b.values), find, count, sums};
  const int64_t a_stride = end - begin;
  Meeting next(a, b, begin + lane * step, end);
  for (int64_t at = begin; at < end; at += 32 * step) {
    const int64_t i = at + lane * step;
    Meeting now = next;
    T a_value[kRows] = {};
#pragma unroll
    for (int g = 0; g < kRows; ++g) {
      if (i < end && g < rows) a_value[g] = a_values[i + g * a_stride];
    }
    next = Meeting(a, b, i + 32 * step, end);
    if (!whole) Narrow(b.column_indices, first, last + 1, &now.from, &now.to);
    const int64_t length = now.to - now.from;
    if constexpr (kShort) {
      const int there = __popc(__ballot_sync(kAll, length > 0));
      const int are_long = __popc(__ballot_sync(kAll, length >= kLongEntries));
      if (2 * are_long <= there) {
        adder.AddAll(now.from, now.to, a_value);
        continue;
      }
    }
    adder.AddByRows(now.from, static_cast<int>(length), a_value);
  }
}

template <typename T>
__device__ void WriteSums(const T* sums, int count, T alpha, T* out) {
  for (int r = threadIdx.x % 32; r < count; r += 32) out[r] = alpha == T{1} ? sums[r] : alpha * sums[r];
  __syncwarp();
}

constexpr int kBitsWarps = 4;

// Values [skipped, skipped + count) of a row of C whose row of A has one entry. False for any other row.
template <typename T, typename Ring>
__device__ bool ScaleRow(const ConstCsrView& a, const ConstCsrView& b, int32_t row, int64_t skipped, int count,
                         int thread, int threads, T alpha, T* out) {
  const int64_t i = a.row_offsets[row];
  if (a.row_offsets[row + 1] - i != 1) return false;
  const T factor = static_cast<const T*>(a.values)[i];
  const T* b_values = static_cast<const T*>(b.values) + b.row_offsets[a.column_indices[i]] + skipped;
  for (int r = thread; r < count; r += threads) {
    const T sum = Ring::Add(Ring::Identity(), factor, b_values[r]);
    out[r] = alpha == T{1} ? sum : alpha * sum;
  }
  return true;
}

// Whole rows, by bitmaps: single ones, or kGroup or fewer that share their pattern.
template <typename T, typename Ring, int kRows>
__global__ void __launch_bounds__(kBitsWarps * 32, (kRows == 1 ? 10 : 8) - (sizeof(T) - 4) / 2)
    BitsKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, Route route, int of_class, unsigned tasks, T alpha,
               T* values) {
  const BesideOthers beside;
  extern __shared__ double bits_memory[];
  char* memory = reinterpret_cast<char*>(bits_memory) + threadIdx.x / 32 * BitsBytes(of_class);
  const unsigned warps = gridDim.x * kBitsWarps;
  for (unsigned t = blockIdx.x * kBitsWarps + threadIdx.x / 32; t < tasks; t += warps) {
    const Task task = kRows == 1 ? Task{*route.RowAt(of_class, t), 1} : *route.GroupAt(of_class, t);
    const int64_t begin = c.row_offsets[task.row];
    const int count = static_cast<int>(c.row_offsets[task.row + 1] - begin);
    BitsScratch<T> scratch;
    scratch.Init(memory, c.column_indices + begin, count, kRows * count, Ring::Identity());
    AddProducts<T, Ring, kRows, false>(
        a, b, a.row_offsets[task.row], a.row_offsets[task.row + 1], 1, task.rows, true, 0, 0,
        [scratch](int32_t column) { return scratch.Find(column); }, count, scratch.sums);
    WriteSums(scratch.sums, task.rows * count, alpha, values + begin);
  }
}

// Segments, by bitmaps.
template <typename T, typename Ring>
__global__ void SegmentKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, const Segment* segments,
                              const unsigned* length, T alpha, T* values) {
  const BesideOthers beside;
  extern __shared__ double bits_memory[];
  char* memory = reinterpret_cast<char*>(bits_memory) + threadIdx.x / 32 * kLargestBytes;
  const unsigned warps = gridDim.x * kBitsWarps, tasks = *length;
  for (unsigned t = blockIdx.x * kBitsWarps + threadIdx.x / 32; t < tasks; t += warps) {
    const Segment segment = segments[t];
    const int64_t begin = c.row_offsets[segment.row] + segment.skipped;
    if (ScaleRow<T, Ring>(a, b, segment.row, segment.skipped, segment.count, threadIdx.x % 32, 32, alpha,
                          values + begin)) {
      continue;
    }
    const int32_t* columns = c.column_indices + begin;
    BitsScratch<T> scratch;
    scratch.Init(memory, columns, segment.count, segment.count, Ring::Identity());
    const bool whole = segment.count == c.row_offsets[segment.row + 1] - c.row_offsets[segment.row];
    AddProducts<T, Ring, 1, true>(
        a, b, a.row_offsets[segment.row], a.row_offsets[segment.row + 1], 1, 1, whole, columns[0],
        columns[segment.count - 1], [scratch](int32_t column) { return scratch.Find(column); }, segment.count,
        scratch.sums);
    WriteSums(scratch.sums, segment.count, alpha, values + begin);
  }
}

constexpr int HeavyBytes(int value_bytes) {
  return static_cast<int>(BytesOfBits(kSplitWords, kWarps * SplitEntries(value_bytes), value_bytes));
}
constexpr int HeavyRowBytes(int of_class, int value_bytes) {
  return static_cast<int>(BytesOfBits(kMiddleWords, kWarps * BlockEntries(of_class, value_bytes), value_bytes));
}

// A segment of a row of many products, by a block: its warps take turns with the entries of A, with sums of their
// own, which are joined in order.
template <typename T, typename Ring>
__device__ void AddHeavy(const ConstCsrView& a, const ConstCsrView& b, const ConstPatternView& c, Segment segment,
                         T alpha, char* memory, T* values) {
  const int warp = threadIdx.x / 32, count = segment.count;
  const int64_t begin = c.row_offsets[segment.row] + segment.skipped;
  const int32_t* columns = c.column_indices + begin;
  BitsScratch<T> scratch;
  scratch.Place(memory, columns, count, kWarps * count);
  scratch.Clear(threadIdx.x, kThreads, kWarps * count, Ring::Identity());
  __syncthreads();
  scratch.Fill(threadIdx.x, kThreads, columns, count);
  __syncthreads();
  const int64_t from = a.row_offsets[segment.row], entries = a.row_offsets[segment.row + 1] - from;
  const bool whole = count == c.row_offsets[segment.row + 1] - c.row_offsets[segment.row];
  AddProducts<T, Ring, 1, true>(
      a, b, from + warp, from + entries, kWarps, 1, whole, columns[0], columns[count - 1],
      [scratch](int32_t column) { return scratch.Find(column); }, count, scratch.sums + warp * count);
  __syncthreads();
  for (int r = threadIdx.x; r < count; r += kThreads) {
    T sum = scratch.sums[r];
    for (int w = 1; w < kWarps; ++w) sum = Ring::Join(sum, scratch.sums[w * count + r]);
    values[begin + r] = alpha == T{1} ? sum : alpha * sum;
  }
  __syncthreads();
}

template <typename T, typename Ring>
__global__ void __launch_bounds__(kThreads)
    HeavyKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, const Segment* segments, const unsigned* length,
                T alpha, T* values) {
  const BesideOthers beside;
  extern __shared__ double heavy_memory[];
  const unsigned tasks = *length;
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    AddHeavy<T, Ring>(a, b, c, segments[t], alpha, reinterpret_cast<char*>(heavy_memory), values);
  }
}

// Whole rows.
template <typename T, typename Ring>
__global__ void __launch_bounds__(kThreads)
    HeavyRowKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, Route route, int of_class, unsigned tasks,
                   T alpha, T* values) {
  const BesideOthers beside;
  extern __shared__ double heavy_memory[];
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    const int32_t row = *route.RowAt(of_class, t);
    const Segment segment = {row, 0, static_cast<int32_t>(c.row_offsets[row + 1] - c.row_offsets[row])};
    AddHeavy<T, Ring>(a, b, c, segment, alpha, reinterpret_cast<char*>(heavy_memory), values);
  }
}

// From a column of C to its rank.
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
  // Distinct columns; lanes may insert at the same time.
  __device__ void Insert(int32_t column, int rank) {
    unsigned slot = SlotOf(column);
    while (atomicCAS(&columns[slot], -1, column) != -1) slot = (slot + 1) % kSize;
    ranks[slot] = static_cast<uint16_t>(rank);
  }
  // Of a column that was inserted.
  __device__ int Find(int32_t column) const {
    unsigned slot = SlotOf(column);
    while (columns[slot] != column) slot = (slot + 1) % kSize;
    return ranks[slot];
  }
};

template <typename T, int kClass>
struct TableScratch {
  T sums[TableEntries(kClass)];
  Table<2 * TableEntries(kClass)> table;
};
constexpr int TableWarps(int of_class) { return of_class == kTable128 ? 8 : of_class == kTable512 ? 4 : 2; }

// Whole rows, by hash tables.
template <typename T, typename Ring, int kClass>
__global__ void TableKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, Route route, unsigned tasks, T alpha,
                            T* values) {
  const BesideOthers beside;
  __shared__ TableScratch<T, kClass> scratches[TableWarps(kClass)];
  TableScratch<T, kClass>& scratch = scratches[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const unsigned warps = gridDim.x * TableWarps(kClass);
  for (unsigned t = blockIdx.x * TableWarps(kClass) + threadIdx.x / 32; t < tasks; t += warps) {
    const int32_t row = *route.RowAt(kClass, t);
    const int64_t begin = c.row_offsets[row];
    const int count = static_cast<int>(c.row_offsets[row + 1] - begin);
    if (ScaleRow<T, Ring>(a, b, row, 0, count, lane, 32, alpha, values + begin)) continue;
    scratch.table.Clear(lane, 32);
    __syncwarp();
    for (int r = lane; r < count; r += 32) {
      scratch.table.Insert(c.column_indices[begin + r], r);
      scratch.sums[r] = Ring::Identity();
    }
    __syncwarp();
    AddProducts<T, Ring, 1, true>(
        a, b, a.row_offsets[row], a.row_offsets[row + 1], 1, 1, true, 0, 0,
        [&scratch](int32_t column) { return scratch.table.Find(column); }, count, scratch.sums);
    WriteSums(scratch.sums, count, alpha, values + begin);
  }
}

constexpr int kTableBlockWarps = 4;
template <typename T, int kClass>
struct TableBlockScratch {
  static constexpr int kEntries = BlockEntries(kClass, sizeof(T));
  T sums[kTableBlockWarps * kEntries];
  Table<2 * kEntries> table;
};

// Whole rows, by a hash table of a block; its warps take turns with the entries of A, as in AddHeavy.
template <typename T, typename Ring, int kClass>
__global__ void __launch_bounds__(kTableBlockWarps * 32)
    TableBlockKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, Route route, unsigned tasks, T alpha,
                     T* values) {
  const BesideOthers beside;
  extern __shared__ double table_memory[];
  auto& scratch = *reinterpret_cast<TableBlockScratch<T, kClass>*>(table_memory);
  constexpr int kBlock = kTableBlockWarps * 32;
  const int warp = threadIdx.x / 32;
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    const int32_t row = *route.RowAt(kClass, t);
    const int64_t begin = c.row_offsets[row];
    const int count = static_cast<int>(c.row_offsets[row + 1] - begin);
    if (ScaleRow<T, Ring>(a, b, row, 0, count, threadIdx.x, kBlock, alpha, values + begin)) continue;
    scratch.table.Clear(threadIdx.x, kBlock);
    for (int r = threadIdx.x; r < kTableBlockWarps * count; r += kBlock) scratch.sums[r] = Ring::Identity();
    __syncthreads();
    for (int r = threadIdx.x; r < count; r += kBlock) scratch.table.Insert(c.column_indices[begin + r], r);
    __syncthreads();
    const int64_t from = a.row_offsets[row], entries = a.row_offsets[row + 1] - from;
    AddProducts<T, Ring, 1, true>(
        a, b, from + warp, from + entries, kTableBlockWarps, 1, true, 0, 0,
        [&scratch](int32_t column) { return scratch.table.Find(column); }, count, scratch.sums + warp * count);
    __syncthreads();
    for (int r = threadIdx.x; r < count; r += kBlock) {
      T sum = scratch.sums[r];
      for (int w = 1; w < kTableBlockWarps; ++w) sum = Ring::Join(sum, scratch.sums[w * count + r]);
      values[begin + r] = alpha == T{1} ? sum : alpha * sum;
    }
    __syncthreads();
  }
}

constexpr int kTinyThreads = 128;

template <typename T, typename Ring, Make kMake>
__global__ void __launch_bounds__(kTinyThreads, sizeof(T) == 4 ? 9 : 7)
    TinyKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, const uint8_t* kinds, T alpha, T* values) {
  const BesideOthers beside;
  constexpr int kStaged = kTinyThreads * kStagedPerThread;
  __shared__ T staged_values[kStaged];
  __shared__ int32_t staged_columns[kMake == Make::kBoth ? kStaged : 1];
  MergeRows<T, Ring, kMake>(a, b, kinds, const_cast<int64_t*>(c.row_offsets), int64_t{blockIdx.x} * kTinyThreads, alpha,
                            {const_cast<int32_t*>(c.column_indices), values, staged_columns, staged_values});
}

template <typename T, typename Ring>
absl::Status LaunchValues(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                          const ConstCsrView& b, T* values) {
  const ConstPatternView c = ProductPattern(plan);
  const Route route = RouteOf(plan);
  const auto& lengths = MultiplyPlanAccess::Lengths(plan);
  const T alpha = static_cast<T>(plan.options().alpha);
  const Segments segments = SegmentsIn(plan);
  Launcher launcher(ctx);
  INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(HeavyKernel<T, Ring>, segments.most[1], 1, kThreads, HeavyBytes(sizeof(T)),
                                            a, b, c, segments.lists[1], segments.lengths + 1, alpha, values));
  INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(SegmentKernel<T, Ring>, segments.most[0], kBitsWarps, kBitsWarps * 32,
                                            kBitsWarps * kLargestBytes, a, b, c, segments.lists[0], segments.lengths,
                                            alpha, values));
  for (int of_class : {kHeavy1280, kHeavy640}) {
    INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(HeavyRowKernel<T, Ring>, lengths[of_class], 1, kThreads,
                                              HeavyRowBytes(of_class, sizeof(T)), a, b, c, route, of_class,
                                              lengths[of_class], alpha, values));
  }
  INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(TableBlockKernel<T, Ring, kTableBlock4096>, lengths[kTableBlock4096], 1,
                                            kTableBlockWarps * 32, sizeof(TableBlockScratch<T, kTableBlock4096>), a, b,
                                            c, route, lengths[kTableBlock4096], alpha, values));
  INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(TableBlockKernel<T, Ring, kTableBlock2048>, lengths[kTableBlock2048], 1,
                                            kTableBlockWarps * 32, sizeof(TableBlockScratch<T, kTableBlock2048>), a, b,
                                            c, route, lengths[kTableBlock2048], alpha, values));
  for (int of_class = kGroupLargest; of_class >= kGroup6144; --of_class) {
    INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(BitsKernel<T, Ring, kGroup>, lengths[of_class], kBitsWarps,
                                              kBitsWarps * 32, kBitsWarps * BitsBytes(of_class), a, b, c, route,
                                              of_class, lengths[of_class], alpha, values));
  }
  for (int of_class = kBitsLargest; of_class >= kBits4096; --of_class) {
    INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(BitsKernel<T, Ring, 1>, lengths[of_class], kBitsWarps, kBitsWarps * 32,
                                              kBitsWarps * BitsBytes(of_class), a, b, c, route, of_class,
                                              lengths[of_class], alpha, values));
  }
  INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(TableKernel<T, Ring, kTable1024>, lengths[kTable1024],
                                            TableWarps(kTable1024), TableWarps(kTable1024) * 32, 0, a, b, c, route,
                                            lengths[kTable1024], alpha, values));
  INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(TableKernel<T, Ring, kTable512>, lengths[kTable512], TableWarps(kTable512),
                                            TableWarps(kTable512) * 32, 0, a, b, c, route, lengths[kTable512], alpha,
                                            values));
  INTRAWARP_RETURN_IF_ERROR(launcher.Rounds(TableKernel<T, Ring, kTable128>, lengths[kTable128], TableWarps(kTable128),
                                            TableWarps(kTable128) * 32, 0, a, b, c, route, lengths[kTable128], alpha,
                                            values));
  if (lengths[kTinyRows] == 0) return absl::OkStatus();
  auto* const tiny = LeavesColumns(plan) ? TinyKernel<T, Ring, Make::kBoth> : TinyKernel<T, Ring, Make::kValues>;
  return launcher.AtMost(INT_MAX, tiny, a.rows, kTinyThreads, kTinyThreads, 0, a, b, c, route.kinds, alpha, values);
}

template <typename T>
absl::Status ExecuteRowsAs(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                           const ConstCsrView& b, T* values) {
  switch (plan.options().semiring) {
    case Semiring::kPlusTimes:
      return LaunchValues<T, PlusTimes<T>>(ctx, plan, a, b, values);
    case Semiring::kOrAnd:
      return LaunchValues<T, OrAnd<T>>(ctx, plan, a, b, values);
    case Semiring::kMinPlus:
      return LaunchValues<T, MinPlus<T>>(ctx, plan, a, b, values);
  }
  return absl::UnimplementedError("semiring: not on CUDA yet");
}

}  // namespace

absl::Status ExecuteRows(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                         void* values) {
  if (plan.value_type() == ValueType::kFloat64) return ExecuteRowsAs(ctx, plan, a, b, static_cast<double*>(values));
  return ExecuteRowsAs(ctx, plan, a, b, static_cast<float*>(values));
}

}  // namespace intrawarp::cuda
