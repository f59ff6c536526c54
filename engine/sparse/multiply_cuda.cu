// SPDX-License-Identifier: Apache-2.0
// The product on CUDA: rows by their work, no atomics on values. Blocks of entries go by tiles (tiles.h), the rest
// here.
//
// Pattern. A row with few products is merged from its rows of B by one thread. Any other is a bitmap over the columns
// between its first and its last: of a warp in shared memory when they lie close together, of a block otherwise, with a
// summary of the words in use, window of columns by window. Bitmaps are counted, scanned over all rows, and made again
// to be written as columns, sorted as they are. Up to three consecutive rows of A that have the same pattern (unknowns
// of one node) have the same pattern in C, which is made once.
//
// Values. Rows of few products are merged again. Any other is a warp's, whole or in segments: a bitmap of its columns
// with the rank of each word (a hash table where columns are few and far apart) leads from a column to its sum in
// shared memory. The warp walks the rows of B one at a time, k ascending; the columns of one row are distinct, so that
// no two lanes ever add to the same sum, and sums have one order: fma(a, b, sum), from 0, k ascending. Rows with
// the same pattern share the walk. A row of many entries of A, and one of many entries of C far apart, is a block's:
// its warps take equal parts of the entries of A, with sums of their own, which are added in order.
#include <algorithm>
#include <climits>
#include <cub/device/device_scan.cuh>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/host_device.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/multiply_finish.h"
#include "engine/sparse/multiply_kernels.h"
#include "engine/sparse/multiply_transpose.h"
#include "engine/sparse/tiles.h"

namespace intrawarp::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLanesPerRow = 8;  // of the analysis

constexpr int kTinyEntries = 8, kTinyProducts = 64;  // of a row that one thread merges
constexpr int kGroup = 3;                            // rows with one pattern that are made together
constexpr int kRunLength = 64;                       // rows after which a run of equal patterns is cut

// Words of the bitmap of a warp, of a block.
constexpr int kNearWords = 256, kMiddleWords = 1280, kFarWords = 16384;
constexpr int64_t kFarColumns = int64_t{kFarWords} * 32;

enum PatternClass { kNone, kTiny, kNear, kMiddle, kFar, kTiled, kPatternClasses };
// Of a row's kind. kSame: A's row has the pattern of the row before. kHeavy: it has kHeavyEntries entries or more.
constexpr uint8_t kClassMask = 15, kSame = 16, kHeavy = 32;
constexpr int kHeavyEntries = 192;

// Who makes the values of a row. Bits*: a bitmap and sums in so many bytes a warp. Table*: a hash table of so many
// entries. kSplit: segments, each as in kBitsLargest. kSplitHeavy:
// segments, a block each. kTableBlock: a hash table of kBlockTableEntries, of a block. Group*: as Bits*, for rows that
// share their pattern.
enum ValueClass {
  kBits4096,
  kBits6144,
  kBits10240,
  kBitsLargest,
  kTable128,
  kTable512,
  kTable1024,
  kSplit,
  kSplitHeavy,
  kTableBlock,
  kGroup6144,
  kGroup10240,
  kGroupLargest,
  kValueClasses
};
// Also among a plan's lengths.
enum { kTinyRows = kValueClasses, kProductTiles, kATiles, kBTiles, kIsSquare, kLengths };
static_assert(kLengths <= MultiplyPlanAccess::kLengths);
constexpr int kLargestBytes = 22528;
constexpr int kSplitWords = 2048;
constexpr INTRAWARP_HD int BitsBytes(int of_class) {
  switch (of_class) {
    case kBits4096:
      return 4096;
    case kBits6144:
    case kGroup6144:
      return 6144;
    case kBits10240:
    case kGroup10240:
      return 10240;
    default:
      return kLargestBytes;
  }
}
constexpr INTRAWARP_HD int TableEntries(int of_class) {
  return of_class == kTable128 ? 128 : of_class == kTable512 ? 512 : 1024;
}
constexpr INTRAWARP_HD int64_t BytesOfBits(int64_t words, int64_t sums, int value_bytes) {
  return (words * 6 + 7) / 8 * 8 + sums * value_bytes;
}
constexpr int64_t SplitEntries(int value_bytes) {
  return (kLargestBytes - BytesOfBits(kSplitWords, 0, 0)) / value_bytes;
}

constexpr int kBlockTableEntries = 4096;  // half of it in float64

// Totals and list lengths, on the device.
struct Counters {
  unsigned long long products;
  unsigned long long max_entries;
  unsigned long long entries;
  unsigned pattern_rows[kPatternClasses];
  unsigned value_rows[kValueClasses];
  TileCounters tiles;
};

struct Span {
  int first, last;  // columns of a row of C: the first and the last
};

// `rows` consecutive rows, from `row`, that have one pattern.
struct Task {
  int32_t row;
  int32_t rows;
};

// Entries [skipped, skipped + count) of a row of C.
struct Segment {
  int32_t row;
  int32_t skipped;
  int32_t count;
};

__device__ int64_t LowerBound(const int32_t* values, int64_t begin, int64_t end, int32_t value) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (values[middle] < value) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The places in [*begin, *end) of the first value that is not less than `first`, and than `last`; both searched for at
// once.
__device__ void Narrow(const int32_t* values, int32_t first, int32_t last, int64_t* begin, int64_t* end) {
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

__device__ int InclusiveScan(int value) {
  const int lane = threadIdx.x % 32;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

__device__ int WarpSum(int value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAll, value, offset);
  return value;
}

// Appends to lists by class (-1: none): a place for each thread of the block, with one atomic a block and class.
template <int kClasses>
__device__ unsigned Reserve(int of_class, unsigned amount, unsigned* lengths) {
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

__device__ uint8_t ClassOf(unsigned long long products, int64_t a_entries, Span span) {
  if (products == 0) return kNone;
  if (products <= kTinyProducts && a_entries <= kTinyEntries) return kTiny;
  if (a_entries >= kHeavyEntries) return kFar;
  const int words = span.last / 32 - span.first / 32 + 1;
  return words <= kNearWords ? kNear : words <= kMiddleWords ? kMiddle : kFar;
}

// Products, span and kind of each row; eight lanes a row. `spans` and `kinds` may be null.
__global__ void AnalyseKernel(ConstPatternView a, ConstPatternView b, Counters* counters, Span* spans, uint8_t* kinds) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanesPerRow;
  const int lane = threadIdx.x % kLanesPerRow;
  unsigned long long products = 0;
  Span span = {INT_MAX, -1};
  int64_t begin = 0, end = 0, before = 0;
  bool same = false;
  if (row < a.rows) {
    begin = a.row_offsets[row];
    end = a.row_offsets[row + 1];
    if (row % kRunLength != 0) {
      before = a.row_offsets[row - 1];
      same = begin - before == end - begin;
    }
  }
  for (int64_t i = begin + lane; i < end; i += kLanesPerRow) {
    const int32_t k = a.column_indices[i];
    const int64_t from = b.row_offsets[k], to = b.row_offsets[k + 1];
    same = same && a.column_indices[before + (i - begin)] == k;
    if (from == to) continue;
    products += to - from;
    span.first = min(span.first, b.column_indices[from]);
    span.last = max(span.last, b.column_indices[to - 1]);
  }
  for (int offset = kLanesPerRow / 2; offset > 0; offset /= 2) {
    products += __shfl_xor_sync(kAll, products, offset);
    span.first = min(span.first, __shfl_xor_sync(kAll, span.first, offset));
    span.last = max(span.last, __shfl_xor_sync(kAll, span.last, offset));
    same = __shfl_xor_sync(kAll, same, offset) && same;
  }
  __shared__ unsigned long long block_products, block_entries;
  if (threadIdx.x == 0) block_products = block_entries = 0;
  __syncthreads();
  if (lane == 0 && products > 0) {
    const unsigned long long columns = b.columns;
    atomicAdd(&block_products, products);
    atomicAdd(&block_entries, products < columns ? products : columns);
  }
  __syncthreads();
  if (threadIdx.x == 0 && block_products > 0) {
    atomicAdd(&counters->products, block_products);
    atomicAdd(&counters->max_entries, block_entries);
  }
  if (kinds == nullptr || lane != 0 || row >= a.rows) return;
  spans[row] = span;
  kinds[row] = ClassOf(products, end - begin, span) | (same ? kSame : 0) | (end - begin >= kHeavyEntries ? kHeavy : 0);
}

// The rows that are made with this one: 0 when it is made with one before it. `kinds` of rows with one pattern agree.
__device__ int GroupFrom(const uint8_t* kinds, int32_t row, int32_t rows) {
  int into_run = 0;
  while ((kinds[row - into_run] & kSame) && (kinds[row - into_run - 1] & kClassMask) != kTiled) ++into_run;
  if (into_run % kGroup != 0) return 0;
  int group = 1;
  while (group < kGroup && row + group < rows && (kinds[row + group] & kSame)) ++group;
  return group;
}

// Lists of the rows of the pattern's classes: near ones from the front of `near`, middle ones from its back.
__global__ void ClassifyKernel(const uint8_t* kinds, int32_t rows, Counters* counters, Task* near, int32_t* far) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  int of_class = row < rows ? kinds[row] & kClassMask : kNone, group = 1;
  if (of_class == kNear || of_class == kMiddle) group = GroupFrom(kinds, static_cast<int32_t>(row), rows);
  if (of_class == kNone || of_class == kTiled || group == 0) of_class = -1;
  const unsigned place = Reserve<kPatternClasses>(of_class, 1, counters->pattern_rows);
  const Task task = {static_cast<int32_t>(row), group};
  if (of_class == kNear) near[place] = task;
  if (of_class == kMiddle) near[rows - 1 - place] = task;
  if (of_class == kFar) far[place] = task.row;
}

enum class Make { kCount, kColumns, kValues };

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

constexpr int kMergeThreads = 128;
constexpr int kStaged = 16 * kMergeThreads;

// Rows of few products, a thread each, kMergeThreads consecutive rows a block. What a block of such rows alone makes is
// staged in shared memory, to be written in order.
template <typename T, typename Ring, Make kMake>
__global__ void MergeKernel(ConstCsrView a, ConstCsrView b, const uint8_t* kinds, int64_t* offsets, T alpha, T* out) {
  const int64_t first = int64_t{blockIdx.x} * kMergeThreads, row = first + threadIdx.x;
  const bool mine = row < a.rows && (kinds[row] & kClassMask) == kTiny;
  if constexpr (kMake == Make::kCount) {
    if (!mine) return;
    int count = 0;
    MergeRow<T, Ring, false>(a, b, row, [&](int, T) { ++count; });
    offsets[row] = count;
  } else {
    __shared__ T stage[kStaged];
    const int64_t begin = offsets[first], end = offsets[min(first + kMergeThreads, int64_t{a.rows})];
    const bool others = row < a.rows && !mine && (kinds[row] & kClassMask) != kNone;
    const bool staged = !__syncthreads_or(others) && end - begin <= kStaged;
    if (mine) {
      T* to = staged ? stage + (offsets[row] - begin) : out + offsets[row];
      MergeRow<T, Ring, kMake == Make::kValues>(a, b, row, [&](int column, T sum) {
        if constexpr (kMake == Make::kColumns) {
          *to++ = column;
        } else {
          *to++ = alpha == T{1} ? sum : alpha * sum;
        }
      });
    }
    __syncthreads();
    if (!staged) return;
    const int count = static_cast<int>(end - begin);
    for (int i = threadIdx.x; i < count; i += kMergeThreads) out[begin + i] = stage[i];
  }
}

// Writes the columns of a word of each lane, those of the lanes in order; `rows` times, `stride` apart. Returns their
// number. Lane l's word begins at column first + 32 l.
__device__ int EmitWords(uint32_t word, int32_t first, int rows, int64_t stride, int32_t* out) {
  const int lane = threadIdx.x % 32, count = __popc(word), ends = InclusiveScan(count);
  const int total = __shfl_sync(kAll, ends, 31);
  unsigned in_use = __ballot_sync(kAll, word != 0);
  if (total >= 4 * __popc(in_use)) {
    for (; in_use != 0; in_use &= in_use - 1) {
      const int s = __ffs(in_use) - 1;
      const uint32_t bits = __shfl_sync(kAll, word, s);
      const int before = __shfl_sync(kAll, ends - count, s);
      if ((bits >> lane & 1) == 0) continue;
      int32_t* to = out + before + __popc(bits & ((1u << lane) - 1));
      for (int r = 0; r < rows; ++r) to[r * stride] = first + s * 32 + lane;
    }
    return total;
  }
  for (int32_t* to = out + ends - count; word != 0; word &= word - 1, ++to) {
    for (int r = 0; r < rows; ++r) to[r * stride] = first + lane * 32 + __ffs(word) - 1;
  }
  return total;
}

// Calls set(column) for rows of B, that start `from` and have `length` entries for each lane in `rows`: four of them at
// a time, so that loads are on their way together.
template <typename Set>
__device__ __forceinline__ void MarkRows(const int32_t* b_columns, int64_t from, int length, unsigned rows,
                                         const Set& set) {
  constexpr int kTogether = 4;
  const int lane = threadIdx.x % 32;
  while (rows != 0) {
    const int32_t* columns[kTogether];
    int stop[kTogether], column[kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      const int s = rows != 0 ? __ffs(rows) - 1 : 0;
      columns[t] = b_columns + __shfl_sync(kAll, from, s);
      stop[t] = __shfl_sync(kAll, length, s);
      if (rows == 0) stop[t] = 0;
      rows &= rows - 1;
    }
#pragma unroll
    for (int t = 0; t < kTogether; ++t) column[t] = lane < stop[t] ? columns[t][lane] : -1;
#pragma unroll
    for (int t = 0; t < kTogether; ++t) {
      if (column[t] >= 0) set(column[t]);
      for (int j = lane + 32; j < stop[t]; j += 32) set(columns[t][j]);
    }
  }
}

constexpr int kStagedColumns = 256;  // of a row, which are put together in shared memory
template <int kWords>
constexpr int kNearMemory = kWords + kStagedColumns;

// The columns of `words` words, the first of which begins at `first`, in `columns`; by a warp, each lane its own words.
__device__ void StageColumns(const uint32_t* bits, int words, int first, int32_t* columns) {
  const int lane = threadIdx.x % 32, each = (words + 31) / 32 | 1;  // odd: lanes meet different banks
  const int begin = min(lane * each, words), end = min(begin + each, words);
  int mine = 0;
  for (int w = begin; w < end; ++w) mine += __popc(bits[w]);
  int place = InclusiveScan(mine) - mine;
  for (int w = begin; w < end; ++w) {
    for (uint32_t word = bits[w]; word != 0; word &= word - 1) columns[place++] = first + w * 32 + __ffs(word) - 1;
  }
  __syncwarp();
}

// Rows whose columns lie within kWords words, a warp each.
template <int kWords, bool kFill>
__global__ void __launch_bounds__(kThreads, 5)
    NearKernel(ConstPatternView a, ConstPatternView b, const Span* spans, const Task* list, int step,
               const unsigned* length, int64_t* offsets, int32_t* indices) {
  extern __shared__ uint32_t bitmaps[];
  const int lane = threadIdx.x % 32;
  uint32_t* bits = bitmaps + threadIdx.x / 32 * kNearMemory<kWords>;
  const unsigned warps = gridDim.x * kWarps, tasks = *length;
  for (unsigned t = blockIdx.x * kWarps + threadIdx.x / 32; t < tasks; t += warps) {
    const Task task = list[static_cast<int64_t>(t) * step];
    const Span span = spans[task.row];
    const int base = span.first / 32 * 32, words = (span.last - base) / 32 + 1;
    for (int w = lane; w < words; w += 32) bits[w] = 0;
    __syncwarp();
    const int64_t end = a.row_offsets[task.row + 1];
    for (int64_t i = a.row_offsets[task.row]; i < end; i += 32) {
      int64_t from = 0;
      int length = 0;
      if (i + lane < end) {
        const int32_t k = a.column_indices[i + lane];
        from = b.row_offsets[k];
        length = static_cast<int>(b.row_offsets[k + 1] - from);
      }
      const auto set = [&](int column) { atomicOr(&bits[(column - base) / 32], 1u << (column - base) % 32); };
      MarkRows(b.column_indices, from, length, __ballot_sync(kAll, length > 0), set);
    }
    __syncwarp();
    if (kFill) {
      const int64_t stride = offsets[task.row + 1] - offsets[task.row];
      int32_t* out = indices + offsets[task.row];
      if (stride <= kStagedColumns) {
        StageColumns(bits, words, base, reinterpret_cast<int32_t*>(bits + kWords));
        for (int r = 0; r < task.rows; ++r) {
          for (int i = lane; i < stride; i += 32) out[r * stride + i] = static_cast<int32_t>(bits[kWords + i]);
        }
      } else {
        for (int w = 0; w < words; w += 32) {
          out += EmitWords(w + lane < words ? bits[w + lane] : 0, base + w * 32, task.rows, stride, out);
        }
      }
    } else {
      int entries = 0;
      for (int w = lane; w < words; w += 32) entries += __popc(bits[w]);
      entries = WarpSum(entries);
      if (lane < task.rows) offsets[task.row + lane] = entries;
    }
    __syncwarp();
  }
}

// A block's bitmap with a summary of the words that are not 0. The words of a group of 32 are stored in an order that
// lets 32 threads walk a group each.
struct FarBits {
  uint32_t words[kFarWords];
  uint32_t summary[kFarWords / 32];
  int sums[kWarps];

  static __device__ int Place(int group, int word) { return group * 32 + ((word ^ group) & 31); }
  __device__ void Set(int column) {
    const int group = column / 1024, word = column / 32 % 32;
    if (atomicOr(&words[Place(group, word)], 1u << column % 32) == 0) atomicOr(&summary[group], 1u << word);
  }
};
constexpr int kGroupsPerThread = kFarWords / 32 / kThreads;
constexpr int kLongRow = 512;  // of B, which the whole block walks

// Sets the bits of the columns in [first, last] of a row of the product.
__device__ void MarkWindow(const ConstPatternView& a, const ConstPatternView& b, int32_t row, int64_t first,
                           int64_t last, bool whole, FarBits& bits) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t end = a.row_offsets[row + 1];
  int turn = 0;
  for (int64_t i = a.row_offsets[row]; i < end; i += 32) {
    int64_t from = 0, to = 0;
    if (i + lane < end) {
      const int32_t k = a.column_indices[i + lane];
      from = b.row_offsets[k];
      to = b.row_offsets[k + 1];
      if (!whole) {
        Narrow(b.column_indices, static_cast<int32_t>(first), static_cast<int32_t>(last) + 1, &from, &to);
      }
    }
    const int length = static_cast<int>(to - from);
    for (unsigned m = __ballot_sync(kAll, length >= kLongRow); m != 0; m &= m - 1) {
      const int32_t* columns = b.column_indices + __shfl_sync(kAll, from, __ffs(m) - 1);
      const int stop = __shfl_sync(kAll, length, __ffs(m) - 1);
      for (int j = threadIdx.x; j < stop; j += kThreads) bits.Set(static_cast<int>(columns[j] - first));
    }
    unsigned mine = 0;
    for (unsigned m = __ballot_sync(kAll, length > 0 && length < kLongRow); m != 0; m &= m - 1) {
      if (turn++ % kWarps == warp) mine |= m & -m;
    }
    MarkRows(b.column_indices, from, length, mine, [&](int column) { bits.Set(static_cast<int>(column - first)); });
  }
}

// Calls use(word, its first column in the window) for the words of this thread's groups that are not 0, in order.
template <typename Use>
__device__ void ForOwnWords(const FarBits& bits, const Use& use) {
  const int begin = threadIdx.x * kGroupsPerThread;
  for (int group = begin; group < begin + kGroupsPerThread; ++group) {
    for (uint32_t m = bits.summary[group]; m != 0; m &= m - 1) {
      const int word = __ffs(m) - 1;
      use(bits.words[FarBits::Place(group, word)], group * 1024 + word * 32);
    }
  }
}

// Calls use(word of this lane, first column of lane 0's in the window) for the groups of this warp's threads that are
// not all 0, in order. All lanes take part.
template <typename Use>
__device__ void ForWarpWords(const FarBits& bits, const Use& use) {
  constexpr int kEach = 32 * kGroupsPerThread;
  const int lane = threadIdx.x % 32, begin = threadIdx.x / 32 * kEach;
  for (int g = begin; g < begin + kEach; g += 32) {
    for (unsigned m = __ballot_sync(kAll, bits.summary[g + lane] != 0); m != 0; m &= m - 1) {
      const int group = g + __ffs(m) - 1;
      use(bits.words[FarBits::Place(group, lane)], group * 1024);
    }
  }
}

__device__ void ClearOwnWords(FarBits& bits) {
  const int begin = threadIdx.x * kGroupsPerThread;
  for (int group = begin; group < begin + kGroupsPerThread; ++group) {
    for (uint32_t m = bits.summary[group]; m != 0; m &= m - 1) bits.words[FarBits::Place(group, __ffs(m) - 1)] = 0;
    bits.summary[group] = 0;
  }
}

constexpr int kFewEntries = 8192;  // of a window, up to which each thread writes its own

// A row of one entry of A: a row of B.
template <bool kFill>
__device__ void CopyRow(const ConstPatternView& a, const ConstPatternView& b, int32_t row, int64_t* offsets,
                        int32_t* indices) {
  const int32_t k = a.column_indices[a.row_offsets[row]];
  const int64_t from = b.row_offsets[k], count = b.row_offsets[k + 1] - from;
  if (!kFill) {
    if (threadIdx.x == 0) offsets[row] = count;
    return;
  }
  int32_t* const out = indices + offsets[row];
  for (int64_t j = threadIdx.x; j < count; j += kThreads) out[j] = b.column_indices[from + j];
}

// Any row, a block each, a window of kFarColumns columns at a time.
template <bool kFill>
__global__ void FarKernel(ConstPatternView a, ConstPatternView b, const Span* spans, const int32_t* list,
                          const unsigned* length, int64_t* offsets, int32_t* indices) {
  extern __shared__ uint32_t far_memory[];
  const unsigned tasks = *length;
  if (blockIdx.x >= tasks) return;
  FarBits& bits = *reinterpret_cast<FarBits*>(far_memory);
  const int warp = threadIdx.x / 32;
  for (int w = threadIdx.x; w < kFarWords; w += kThreads) bits.words[w] = 0;
  for (int w = threadIdx.x; w < kFarWords / 32; w += kThreads) bits.summary[w] = 0;
  __syncthreads();
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    const int32_t row = list[t];
    if (a.row_offsets[row + 1] - a.row_offsets[row] == 1) {
      CopyRow<kFill>(a, b, row, offsets, indices);
      continue;
    }
    const Span span = spans[row];
    const int64_t base = span.first / 32 * 32;
    const bool whole = span.last - base < kFarColumns;
    int64_t done = 0;
    for (int64_t first = base; first <= span.last; first += kFarColumns) {
      MarkWindow(a, b, row, first, min(first + kFarColumns - 1, int64_t{span.last}), whole, bits);
      __syncthreads();
      int mine = 0;
      ForOwnWords(bits, [&](uint32_t word, int) { mine += __popc(word); });
      const int ends = InclusiveScan(mine);
      if (threadIdx.x % 32 == 31) bits.sums[warp] = ends;
      __syncthreads();
      int before = ends - mine, total = 0;
      for (int w = 0; w < kWarps; ++w) {
        before += w < warp ? bits.sums[w] : 0;
        total += bits.sums[w];
      }
      if (kFill && total <= kFewEntries) {
        int32_t* out = indices + offsets[row] + done + before;
        ForOwnWords(bits, [&](uint32_t word, int column) {
          for (; word != 0; word &= word - 1) *out++ = static_cast<int32_t>(first + column) + __ffs(word) - 1;
        });
      } else if (kFill) {
        int32_t* out = indices + offsets[row] + done + __shfl_sync(kAll, before, 0);
        ForWarpWords(bits, [&](uint32_t word, int column) {
          out += EmitWords(word, static_cast<int32_t>(first + column), 1, 0, out);
        });
        __syncwarp();
      }
      ClearOwnWords(bits);
      done += total;
      __syncthreads();
    }
    if (!kFill && threadIdx.x == 0) offsets[row] = done;
  }
}

// Lists of the value classes: two to an array, from its front and from its back. A row is in one list at most.
struct Route {
  int32_t* lists;  // five arrays of `rows`
  int32_t rows;
  Task* groups[2];  // of two rows and more: arrays of rows / 2
  uint8_t* kinds;

  INTRAWARP_HD int32_t* RowAt(int of_class, unsigned place) const {
    return lists + of_class / 2 * int64_t{rows} + (of_class % 2 == 0 ? int64_t{place} : int64_t{rows} - 1 - place);
  }
  INTRAWARP_HD Task* GroupAt(int of_class, unsigned place) const {
    if (of_class == kGroupLargest) return groups[1] + place;
    return groups[0] + (of_class == kGroup6144 ? int64_t{place} : int64_t{rows / 2} - 1 - place);
  }
};

int64_t RouteBytes(int64_t rows) {
  return Arena::Rounded(5 * rows * sizeof(int32_t)) + 2 * Arena::Rounded(rows / 2 * sizeof(Task)) +
         Arena::Rounded(rows);
}
Route RouteIn(const Buffer& buffer, int32_t rows) {
  char* p = buffer.as<char>();
  const auto take = [&p](size_t bytes) {
    char* const taken = p;
    p += Arena::Rounded(bytes);
    return taken;
  };
  Route route;
  route.rows = rows;
  route.lists = reinterpret_cast<int32_t*>(take(int64_t{rows} * 5 * sizeof(int32_t)));
  for (Task*& list : route.groups) list = reinterpret_cast<Task*>(take(rows / 2 * sizeof(Task)));
  route.kinds = reinterpret_cast<uint8_t*>(take(rows));
  return route;
}

// A row in segments has more than 1024 entries or more bits than kLargestBytes; each segment but its last is full of
// entries or of columns.
int64_t MaxSegments(int64_t split_rows, int64_t columns, int64_t entries, int value_bytes) {
  return split_rows * (columns / (kSplitWords * int64_t{32} - 31) + 2) + entries / SplitEntries(value_bytes) + 1;
}

__device__ int ValueClassOf(int64_t words, int64_t entries, int rows, int value_bytes) {
  if (words > kMiddleWords && entries <= kBlockTableEntries * 4 / value_bytes) {
    if (entries > TableEntries(kTable1024)) return kTableBlock;
    return entries <= TableEntries(kTable128) ? kTable128 : entries <= TableEntries(kTable512) ? kTable512 : kTable1024;
  }
  const int64_t bytes = BytesOfBits(words, entries * rows, value_bytes);
  if (rows > 1) return bytes <= 6144 ? kGroup6144 : bytes <= 10240 ? kGroup10240 : kGroupLargest;
  if (bytes <= 6144) return bytes <= 4096 ? kBits4096 : kBits6144;
  return bytes <= 10240 ? kBits10240 : bytes <= kLargestBytes ? kBitsLargest : kSplit;
}

__global__ void RouteKernel(const int64_t* offsets, const Span* spans, int32_t rows, int value_bytes,
                            Counters* counters, Route route) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row == 0) counters->entries = offsets[rows];
  const int kind = row < rows ? route.kinds[row] & kClassMask : kNone;
  int of_class = -1, group = 1;
  if (kind == kNear || kind == kMiddle || kind == kFar) {
    const int64_t entries = offsets[row + 1] - offsets[row];
    const int64_t words = spans[row].last / 32 - spans[row].first / 32 + 1;
    of_class = route.kinds[row] & kHeavy ? kSplitHeavy : ValueClassOf(words, entries, 1, value_bytes);
    if (kind != kFar && BytesOfBits(words, kGroup * entries, value_bytes) <= kLargestBytes) {
      group = GroupFrom(route.kinds, static_cast<int32_t>(row), rows);
      of_class = group == 0 ? -1 : ValueClassOf(words, entries, group == 1 ? 1 : kGroup, value_bytes);
    }
  }
  const unsigned place = Reserve<kValueClasses>(of_class, 1, counters->value_rows);
  const Task task = {static_cast<int32_t>(row), group};
  if (of_class < 0) return;
  if (group > 1) {
    *route.GroupAt(of_class, place) = task;
  } else {
    *route.RowAt(of_class, place) = task.row;
  }
}

// Cuts rows into segments.
__global__ void SplitKernel(ConstPatternView c, Route route, int of_class, unsigned split_rows, int max_entries,
                            unsigned* length, Segment* segments) {
  const unsigned task = blockIdx.x * kThreads + threadIdx.x;
  const int32_t row = task < split_rows ? *route.RowAt(of_class, task) : 0;
  const int64_t begin = c.row_offsets[row], end = task < split_rows ? c.row_offsets[row + 1] : begin;
  const auto next = [&](int64_t from) {
    const int64_t stop = min(from + max_entries, end);
    const int64_t last = c.column_indices[from] / 32 * 32 + int64_t{kSplitWords} * 32 - 1;
    return last >= c.column_indices[stop - 1]
               ? stop
               : LowerBound(c.column_indices, from, stop, static_cast<int32_t>(last + 1));
  };
  unsigned count = 0;
  for (int64_t i = begin; i < end; i = next(i)) ++count;
  unsigned place = Reserve<1>(count > 0 ? 0 : -1, count, length);
  for (int64_t i = begin; i < end;) {
    const int64_t stop = next(i);
    segments[place++] = {row, static_cast<int32_t>(i - begin), static_cast<int32_t>(stop - i)};
    i = stop;
  }
}

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

// Adds the products of entries [begin, end) of A, and of those of the rows after it with the same pattern (`rows` of
// them, kRows at most; then it is all of a row), in columns [first, last] when not whole, to sums[g * count + rank];
// find(column) is the rank.
template <typename T, typename Ring, int kRows, typename Find>
__device__ __forceinline__ void AddProducts(const ConstCsrView& a, const ConstCsrView& b, int64_t begin, int64_t end,
                                            int rows, bool whole, int32_t first, int32_t last, const Find& find,
                                            int count, T* sums) {
  const int lane = threadIdx.x % 32;
  const T* a_values = static_cast<const T*>(a.values);
  const T* b_values = static_cast<const T*>(b.values);
  const int64_t a_stride = end - begin;
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
  for (int64_t i = begin; i < end; i += 32) {
    int64_t from = 0;
    int length = 0;
    T a_value[kRows] = {};
    if (i + lane < end) {
      const int32_t k = a.column_indices[i + lane];
#pragma unroll
      for (int g = 0; g < kRows; ++g) {
        if (g < rows) a_value[g] = a_values[i + lane + g * a_stride];
      }
      from = b.row_offsets[k];
      int64_t to = b.row_offsets[k + 1];
      if (!whole) {
        Narrow(b.column_indices, first, last + 1, &from, &to);
      }
      length = static_cast<int>(to - from);
    }
    unsigned m = __ballot_sync(kAll, length > 0);
    if (m == 0) continue;
    // The first 64 entries of the next row of B are on their way while this one is added.
    int64_t at = __shfl_sync(kAll, from, __ffs(m) - 1);
    int stop = __shfl_sync(kAll, length, __ffs(m) - 1);
    int32_t column[2] = {};
    T value[2] = {};
    const auto load = [&](int64_t row_begin, int row_length, int j, int32_t* columns, T* values) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (j + h * 32 >= row_length) continue;
        columns[h] = b.column_indices[row_begin + j + h * 32];
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
__global__ void __launch_bounds__(kBitsWarps * 32, (kRows == 1 ? 10 : 9) - (sizeof(T) - 4) / 2)
    BitsKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, Route route, int of_class, unsigned tasks, T alpha,
               T* values) {
  extern __shared__ double bits_memory[];
  char* memory = reinterpret_cast<char*>(bits_memory) + threadIdx.x / 32 * BitsBytes(of_class);
  const unsigned warps = gridDim.x * kBitsWarps;
  for (unsigned t = blockIdx.x * kBitsWarps + threadIdx.x / 32; t < tasks; t += warps) {
    const Task task = kRows == 1 ? Task{*route.RowAt(of_class, t), 1} : *route.GroupAt(of_class, t);
    const int64_t begin = c.row_offsets[task.row];
    const int count = static_cast<int>(c.row_offsets[task.row + 1] - begin);
    BitsScratch<T> scratch;
    scratch.Init(memory, c.column_indices + begin, count, kRows * count, Ring::Identity());
    AddProducts<T, Ring, kRows>(
        a, b, a.row_offsets[task.row], a.row_offsets[task.row + 1], task.rows, true, 0, 0,
        [scratch](int32_t column) { return scratch.Find(column); }, count, scratch.sums);
    WriteSums(scratch.sums, task.rows * count, alpha, values + begin);
  }
}

// Segments, by bitmaps.
template <typename T, typename Ring>
__global__ void SegmentKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, const Segment* segments,
                              const unsigned* length, T alpha, T* values) {
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
    AddProducts<T, Ring, 1>(
        a, b, a.row_offsets[segment.row], a.row_offsets[segment.row + 1], 1, false, columns[0],
        columns[segment.count - 1], [scratch](int32_t column) { return scratch.Find(column); }, segment.count,
        scratch.sums);
    WriteSums(scratch.sums, segment.count, alpha, values + begin);
  }
}

constexpr int HeavyBytes(int value_bytes) {
  return static_cast<int>(BytesOfBits(kSplitWords, kWarps * SplitEntries(value_bytes), value_bytes));
}

// Segments of rows of many entries of A, a block each: its warps take equal parts of them, with sums of their own,
// which are joined in order.
template <typename T, typename Ring>
__global__ void __launch_bounds__(kThreads)
    HeavyKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, const Segment* segments, const unsigned* length,
                T alpha, T* values) {
  extern __shared__ double bits_memory[];
  const int warp = threadIdx.x / 32;
  const unsigned tasks = *length;
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    const Segment segment = segments[t];
    const int64_t begin = c.row_offsets[segment.row] + segment.skipped;
    const int32_t* columns = c.column_indices + begin;
    const int count = segment.count;
    BitsScratch<T> scratch;
    scratch.Place(reinterpret_cast<char*>(bits_memory), columns, count, kWarps * count);
    scratch.Clear(threadIdx.x, kThreads, kWarps * count, Ring::Identity());
    __syncthreads();
    scratch.Fill(threadIdx.x, kThreads, columns, count);
    __syncthreads();
    const int64_t from = a.row_offsets[segment.row], entries = a.row_offsets[segment.row + 1] - from;
    AddProducts<T, Ring, 1>(
        a, b, from + entries * warp / kWarps, from + entries * (warp + 1) / kWarps, 1, false, columns[0],
        columns[count - 1], [scratch](int32_t column) { return scratch.Find(column); }, count,
        scratch.sums + warp * count);
    __syncthreads();
    for (int r = threadIdx.x; r < count; r += kThreads) {
      T sum = scratch.sums[r];
      for (int w = 1; w < kWarps; ++w) sum = Ring::Join(sum, scratch.sums[w * count + r]);
      values[begin + r] = alpha == T{1} ? sum : alpha * sum;
    }
    __syncthreads();
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
    AddProducts<T, Ring, 1>(
        a, b, a.row_offsets[row], a.row_offsets[row + 1], 1, true, 0, 0,
        [&scratch](int32_t column) { return scratch.table.Find(column); }, count, scratch.sums);
    WriteSums(scratch.sums, count, alpha, values + begin);
  }
}

constexpr int kTableBlockWarps = 4;
template <typename T>
struct TableBlockScratch {
  static constexpr int kEntries = kBlockTableEntries * 4 / sizeof(T);
  T sums[kTableBlockWarps * kEntries];
  Table<2 * kEntries> table;
};

// Whole rows, by a hash table of a block; its warps take equal parts of the entries of A, as in HeavyKernel.
template <typename T, typename Ring>
__global__ void __launch_bounds__(kTableBlockWarps * 32)
    TableBlockKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, Route route, unsigned tasks, T alpha,
                     T* values) {
  extern __shared__ double table_memory[];
  TableBlockScratch<T>& scratch = *reinterpret_cast<TableBlockScratch<T>*>(table_memory);
  constexpr int kBlock = kTableBlockWarps * 32;
  const int warp = threadIdx.x / 32;
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    const int32_t row = *route.RowAt(kTableBlock, t);
    const int64_t begin = c.row_offsets[row];
    const int count = static_cast<int>(c.row_offsets[row + 1] - begin);
    if (ScaleRow<T, Ring>(a, b, row, 0, count, threadIdx.x, kBlock, alpha, values + begin)) continue;
    scratch.table.Clear(threadIdx.x, kBlock);
    for (int r = threadIdx.x; r < kTableBlockWarps * count; r += kBlock) scratch.sums[r] = Ring::Identity();
    __syncthreads();
    for (int r = threadIdx.x; r < count; r += kBlock) scratch.table.Insert(c.column_indices[begin + r], r);
    __syncthreads();
    const int64_t from = a.row_offsets[row], entries = a.row_offsets[row + 1] - from;
    AddProducts<T, Ring, 1>(
        a, b, from + entries * warp / kTableBlockWarps, from + entries * (warp + 1) / kTableBlockWarps, 1, true, 0, 0,
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

// Blocks that fill the device `each` times over, or as many as there is work for.
absl::StatusOr<unsigned> Grid(int64_t blocks, int each) {
  int device = 0, multiprocessors = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  return static_cast<unsigned>(std::max<int64_t>(std::min<int64_t>(blocks, int64_t{multiprocessors} * each), 1));
}

// Launches blocks of `threads` for `tasks` of `per_block`, with dynamic shared memory beyond 48 KiB where asked.
template <typename... Parameters, typename... Arguments>
absl::Status Launch(const ExecContext& ctx, void (*kernel)(Parameters...), int64_t tasks, int per_block, int threads,
                    int shared_bytes, Arguments... arguments) {
  if (tasks == 0) return absl::OkStatus();
  if (shared_bytes > 48 << 10) {
    INTRAWARP_CUDA_RETURN_IF_ERROR(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const unsigned grid, Grid((tasks + per_block - 1) / per_block, 32));
  kernel<<<grid, threads, shared_bytes, CudaStream(ctx)>>>(arguments...);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

absl::StatusOr<size_t> ScanBytes(int64_t rows) {
  size_t bytes = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<int64_t*>(nullptr),
                                                               static_cast<int64_t*>(nullptr), rows + 1));
  return bytes;
}

// To nearest, ties to even, with `dropped` bits less of significand; the exponent is float32's. The largest values,
// which have no neighbour above, stay.
__device__ float RoundSignificand(float x, int dropped) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  const uint32_t rounded = (bits + (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1)) & ~((1u << dropped) - 1);
  return (rounded & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float(rounded);
}

__global__ void RoundKernel(const float* from, int64_t count, int dropped, float* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = RoundSignificand(from[i], dropped);
}

// 0 for those that take values as they are.
int DroppedBits(MultiplyPrecision precision) {
  switch (precision) {
    case MultiplyPrecision::kFp16:
    case MultiplyPrecision::kTf32:
      return 13;
    case MultiplyPrecision::kBf16:
      return 16;
    default:
      return 0;
  }
}

// The matrix with rounded values, in the arena.
absl::StatusOr<ConstCsrView> Rounded(const ExecContext& ctx, ConstCsrView m, int dropped) {
  if (m.entries == 0) return m;
  INTRAWARP_ASSIGN_OR_RETURN(float* const values, ctx.arena().Allocate<float>(m.entries));
  RoundKernel<<<BlocksFor(m.entries), kThreads, 0, CudaStream(ctx)>>>(static_cast<const float*>(m.values), m.entries,
                                                                      dropped, values);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  m.values = values;
  return m;
}

// What the pattern is made with, in the arena.
struct Workspace {
  Counters* counters;
  Span* spans;
  Task* near;
  int32_t* far;
  void* scan;
  size_t scan_bytes;
};

absl::StatusOr<Workspace> MakeWorkspace(const ExecContext& ctx, int64_t rows) {
  Workspace w;
  INTRAWARP_ASSIGN_OR_RETURN(w.scan_bytes, ScanBytes(rows));
  INTRAWARP_ASSIGN_OR_RETURN(w.counters, ctx.arena().Allocate<Counters>(1));
  INTRAWARP_ASSIGN_OR_RETURN(w.spans, ctx.arena().Allocate<Span>(rows));
  INTRAWARP_ASSIGN_OR_RETURN(w.near, ctx.arena().Allocate<Task>(rows));
  INTRAWARP_ASSIGN_OR_RETURN(w.far, ctx.arena().Allocate<int32_t>(rows));
  INTRAWARP_ASSIGN_OR_RETURN(w.scan, ctx.arena().AllocateBytes(w.scan_bytes));
  return w;
}

int64_t WorkspaceBytes(int64_t rows, size_t scan_bytes) {
  return Arena::Rounded(sizeof(Counters)) + Arena::Rounded(rows * sizeof(Span)) + Arena::Rounded(rows * sizeof(Task)) +
         Arena::Rounded(rows * sizeof(int32_t)) + Arena::Rounded(scan_bytes);
}

template <typename T, typename Ring, Make kMake>
absl::Status LaunchMerge(const ExecContext& ctx, const ConstCsrView& a, const ConstCsrView& b, const uint8_t* kinds,
                         int64_t* offsets, T alpha, T* out) {
  const unsigned blocks = static_cast<unsigned>((int64_t{a.rows} + kMergeThreads - 1) / kMergeThreads);
  MergeKernel<T, Ring, kMake><<<blocks, kMergeThreads, 0, CudaStream(ctx)>>>(a, b, kinds, offsets, alpha, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

ConstCsrView WithoutValues(const ConstPatternView& m) { return {m, ValueType::kFloat32, nullptr}; }

// Counts into offsets or fills indices. `rows` bounds the lengths of the lists.
template <bool kFill>
absl::Status MakePattern(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                         const Workspace& w, const unsigned* rows, const uint8_t* kinds, int64_t* offsets,
                         int32_t* indices) {
  const unsigned* lengths = w.counters->pattern_rows;
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, FarKernel<kFill>, rows[kFar], 1, kThreads, sizeof(FarBits), a, b, w.spans,
                                   w.far, lengths + kFar, offsets, indices));
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, NearKernel<kMiddleWords, kFill>, rows[kMiddle], kWarps, kThreads,
                                   kWarps * kNearMemory<kMiddleWords> * 4, a, b, w.spans, w.near + (a.rows - 1), -1,
                                   lengths + kMiddle, offsets, indices));
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, NearKernel<kNearWords, kFill>, rows[kNear], kWarps, kThreads,
                                   kWarps * kNearMemory<kNearWords> * 4, a, b, w.spans, w.near, 1, lengths + kNear,
                                   offsets, indices));
  if (rows[kTiny] == 0) return absl::OkStatus();
  return LaunchMerge < int32_t, PlusTimes<int32_t>,
         kFill ? Make::kColumns : Make::kCount > (ctx, WithoutValues(a), WithoutValues(b), kinds, offsets, 1, indices);
}

// A plan's route, with the lengths of its lists on the host.
Route RouteOf(const MultiplyPlan& plan) { return RouteIn(MultiplyPlanAccess::Route(plan), plan.pattern().rows); }
const auto ProductPattern = MultiplyPlanAccess::ProductPattern;

constexpr size_t kSegmentsAt = Arena::kAlignment;  // in their buffer, behind their numbers

// The segments of a plan: of kSplit, of kSplitHeavy.
struct Segments {
  unsigned* lengths;
  Segment* lists[2];
  int64_t most[2];
};

Segments SegmentsIn(const MultiplyPlan& plan) {
  const auto& lengths = MultiplyPlanAccess::Lengths(plan);
  const ConstPatternView c = ProductPattern(plan);
  const int value_bytes = static_cast<int>(BytesPerValue(plan.value_type()));
  char* const memory = MultiplyPlanAccess::Segments(plan).as<char>();
  Segments s = {reinterpret_cast<unsigned*>(memory), {}, {}};
  for (int i = 0; i < 2; ++i) {
    const int64_t rows = lengths[kSplit + i];
    s.most[i] = rows == 0 ? 0 : MaxSegments(rows, c.columns, c.entries, value_bytes);
  }
  s.lists[0] = reinterpret_cast<Segment*>(memory + kSegmentsAt);
  s.lists[1] = s.lists[0] + s.most[0];
  return s;
}

// `a` and `b` have the patterns of the plan; `counters` may be null.
TilePlan TilePlanOf(const MultiplyOptions& options, const ConstPatternView& a, const ConstPatternView& b, bool square,
                    const Buffer& tiles, TileCounters* counters) {
  const bool forced = options.path == MultiplyPath::kTiles;
  TilePlan plan = {a, b, {}, {}, square, forced, counters};
  plan.a_tiles = TileMatrixIn(tiles.as<char>(), a, forced);
  plan.b_tiles = square ? plan.a_tiles : TileMatrixIn(tiles.as<char>() + TileMatrixBytes(a, forced), b, forced);
  return plan;
}

template <typename T>
absl::Status LaunchTiles(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                         T* values) {
  const auto& lengths = MultiplyPlanAccess::Lengths(plan);
  if (lengths[kProductTiles] == 0) return absl::OkStatus();
  const TilePlan tiles =
      TilePlanOf(plan.options(), a, b, lengths[kIsSquare] != 0, MultiplyPlanAccess::Tiles(plan), nullptr);
  return ExecuteTiles(ctx, tiles, {lengths[kATiles], lengths[kBTiles], lengths[kProductTiles]}, a.values, b.values,
                      plan.value_type(), DroppedBits(plan.options().precision) > 0, plan.options().alpha,
                      ProductPattern(plan).row_offsets, MultiplyPlanAccess::ProductTiles(plan).as<char>(), values);
}

template <typename T, typename Ring>
absl::Status LaunchValues(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                          const ConstCsrView& b, T* values) {
  const ConstPatternView c = ProductPattern(plan);
  const Route route = RouteOf(plan);
  const auto& lengths = MultiplyPlanAccess::Lengths(plan);
  const T alpha = static_cast<T>(plan.options().alpha);
  const Segments segments = SegmentsIn(plan);
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, HeavyKernel<T, Ring>, segments.most[1], 1, kThreads, HeavyBytes(sizeof(T)), a,
                                   b, c, segments.lists[1], segments.lengths + 1, alpha, values));
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, SegmentKernel<T, Ring>, segments.most[0], kBitsWarps, kBitsWarps * 32,
                                   kBitsWarps * kLargestBytes, a, b, c, segments.lists[0], segments.lengths, alpha,
                                   values));
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, TableBlockKernel<T, Ring>, lengths[kTableBlock], 1, kTableBlockWarps * 32,
                                   sizeof(TableBlockScratch<T>), a, b, c, route, lengths[kTableBlock], alpha, values));
  for (int of_class = kGroupLargest; of_class >= kGroup6144; --of_class) {
    INTRAWARP_RETURN_IF_ERROR(Launch(ctx, BitsKernel<T, Ring, kGroup>, lengths[of_class], kBitsWarps, kBitsWarps * 32,
                                     kBitsWarps * BitsBytes(of_class), a, b, c, route, of_class, lengths[of_class],
                                     alpha, values));
  }
  for (int of_class = kBitsLargest; of_class >= kBits4096; --of_class) {
    INTRAWARP_RETURN_IF_ERROR(Launch(ctx, BitsKernel<T, Ring, 1>, lengths[of_class], kBitsWarps, kBitsWarps * 32,
                                     kBitsWarps * BitsBytes(of_class), a, b, c, route, of_class, lengths[of_class],
                                     alpha, values));
  }
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, TableKernel<T, Ring, kTable1024>, lengths[kTable1024], TableWarps(kTable1024),
                                   TableWarps(kTable1024) * 32, 0, a, b, c, route, lengths[kTable1024], alpha, values));
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, TableKernel<T, Ring, kTable512>, lengths[kTable512], TableWarps(kTable512),
                                   TableWarps(kTable512) * 32, 0, a, b, c, route, lengths[kTable512], alpha, values));
  INTRAWARP_RETURN_IF_ERROR(Launch(ctx, TableKernel<T, Ring, kTable128>, lengths[kTable128], TableWarps(kTable128),
                                   TableWarps(kTable128) * 32, 0, a, b, c, route, lengths[kTable128], alpha, values));
  if (lengths[kTinyRows] == 0) return absl::OkStatus();
  return LaunchMerge<T, Ring, Make::kValues>(ctx, a, b, route.kinds, const_cast<int64_t*>(c.row_offsets), alpha,
                                             values);
}

template <typename T>
absl::Status ExecuteAs(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                       T* values) {
  switch (plan.options().semiring) {
    case Semiring::kPlusTimes:
      INTRAWARP_RETURN_IF_ERROR(LaunchTiles<T>(ctx, plan, a, b, values));
      return LaunchValues<T, PlusTimes<T>>(ctx, plan, a, b, values);
    case Semiring::kOrAnd:
      return LaunchValues<T, OrAnd<T>>(ctx, plan, a, b, values);
    case Semiring::kMinPlus:
      return LaunchValues<T, MinPlus<T>>(ctx, plan, a, b, values);
  }
  return absl::UnimplementedError("semiring: not on CUDA yet");
}

// Makes the segments of a plan whose columns are known.
absl::Status MakeSegments(const ExecContext& ctx, const MultiplyPlan& plan, Buffer* buffer) {
  const auto& lengths = MultiplyPlanAccess::Lengths(plan);
  if (lengths[kSplit] + lengths[kSplitHeavy] == 0) return absl::OkStatus();
  const int value_bytes = static_cast<int>(BytesPerValue(plan.value_type()));
  const Segments sizes = SegmentsIn(plan);
  INTRAWARP_ASSIGN_OR_RETURN(
      *buffer, ctx.device().Allocate(kSegmentsAt + (sizes.most[0] + sizes.most[1]) * sizeof(Segment), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(buffer->as<void>(), 0, kSegmentsAt, ctx.stream()));
  const Segments segments = SegmentsIn(plan);
  for (int i = 0; i < 2; ++i) {
    const unsigned rows = static_cast<unsigned>(lengths[kSplit + i]);
    if (rows == 0) continue;
    SplitKernel<<<BlocksFor(rows), kThreads, 0, CudaStream(ctx)>>>(ProductPattern(plan), RouteOf(plan), kSplit + i,
                                                                   rows, static_cast<int>(SplitEntries(value_bytes)),
                                                                   segments.lengths + i, segments.lists[i]);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  return absl::OkStatus();
}

absl::StatusOr<MultiplyEstimate> EstimateProduct(const ExecContext& ctx, const ConstPatternView& a,
                                                 const ConstPatternView& b, const MultiplyOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer counters, ctx.device().Allocate(sizeof(Counters), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(counters.as<void>(), 0, sizeof(Counters), ctx.stream()));
  if (a.rows > 0) {
    AnalyseKernel<<<BlocksFor(int64_t{a.rows} * kLanesPerRow), kThreads, 0, CudaStream(ctx)>>>(
        a, b, counters.as<Counters>(), nullptr, nullptr);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  Counters totals;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(&totals, counters.as<void>(), sizeof(totals), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(const size_t scan_bytes, ScanBytes(a.rows));
  const int value_bytes = static_cast<int>(BytesPerValue(ValueTypeOf(options.precision)));
  MultiplyEstimate e;
  const auto counted = [](uint64_t n) {
    return static_cast<int64_t>(std::min<uint64_t>(n, MultiplyEstimate::kMostCounted));
  };
  e.products = counted(totals.products);
  e.max_entries = counted(totals.max_entries);
  const bool tiles = TilesArePossible(a, b, options), forced = options.path == MultiplyPath::kTiles;
  const int64_t rounded = DroppedBits(options.precision) == 0
                              ? 0
                              : Arena::Rounded(a.entries * value_bytes) + Arena::Rounded(b.entries * value_bytes);
  const int64_t to_execute =
      rounded + (tiles ? TileWorkspaceBytes(a.entries, b.entries, ValueTypeOf(options.precision), forced) : 0);
  e.workspace_bytes = std::max(WorkspaceBytes(a.rows, scan_bytes), to_execute);
  const int64_t split_rows = std::min<int64_t>(a.rows, e.max_entries / TableEntries(kTable1024));
  const int64_t heavy_rows = std::min<int64_t>(a.rows, a.entries / kHeavyEntries);
  const int64_t segments = MaxSegments(split_rows, b.columns, e.max_entries, value_bytes) +
                           MaxSegments(heavy_rows, b.columns, e.max_entries, value_bytes);
  e.plan_bytes = (int64_t{a.rows} + 1) * sizeof(int64_t) + e.max_entries * sizeof(int32_t) + RouteBytes(a.rows) +
                 (split_rows + heavy_rows == 0 ? 0 : kSegmentsAt + segments * sizeof(Segment));
  if (tiles) {
    const int64_t pairs = forced ? counted(a.entries * (b.columns / 8 + uint64_t{1})) : e.products / kTileProducts;
    e.plan_bytes += TileMatrixBytes(a, forced) + TileMatrixBytes(b, forced) + TileProductBytes(pairs, pairs);
  }
  e.value_bytes = e.max_entries * value_bytes;
  return e;
}

absl::Status PlanProduct(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                         MultiplyPlan& plan) {
  Device& device = ctx.device();
  MultiplyPlanAccess access(plan);
  const MultiplyOptions& options = plan.options();
  const int64_t rows = a.rows, offsets_bytes = (rows + 1) * sizeof(int64_t);
  INTRAWARP_ASSIGN_OR_RETURN(access.offsets, device.Allocate(offsets_bytes, ctx.stream()));
  int64_t* offsets = access.offsets.as<int64_t>();
  INTRAWARP_RETURN_IF_ERROR(device.Fill(offsets, 0, offsets_bytes, ctx.stream()));
  if (rows == 0) return absl::OkStatus();

  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(Workspace w, MakeWorkspace(ctx, rows));
  INTRAWARP_ASSIGN_OR_RETURN(access.route, device.Allocate(RouteBytes(rows), ctx.stream()));
  const Route route = RouteIn(access.route, a.rows);
  INTRAWARP_RETURN_IF_ERROR(device.Fill(w.counters, 0, sizeof(Counters), ctx.stream()));
  AnalyseKernel<<<BlocksFor(rows * kLanesPerRow), kThreads, 0, CudaStream(ctx)>>>(a, b, w.counters, w.spans,
                                                                                  route.kinds);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  TilePlan tiles = {};
  const bool try_tiles = TilesArePossible(a, b, options);
  if (try_tiles) {
    const bool forced = options.path == MultiplyPath::kTiles, square = SamePattern(a, b);
    const int64_t bytes = TileMatrixBytes(a, forced) + (square ? 0 : TileMatrixBytes(b, forced));
    INTRAWARP_ASSIGN_OR_RETURN(access.tiles, device.Allocate(bytes, ctx.stream()));
    tiles = TilePlanOf(options, a, b, square, access.tiles, &w.counters->tiles);
    INTRAWARP_RETURN_IF_ERROR(CountTiles(ctx, tiles, kTiled, route.kinds, offsets));
  }
  ClassifyKernel<<<BlocksFor(rows), kThreads, 0, CudaStream(ctx)>>>(route.kinds, a.rows, w.counters, w.near, w.far);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  const unsigned at_most = static_cast<unsigned>(rows);
  const unsigned any[kPatternClasses] = {0, at_most, at_most, at_most, at_most, 0};
  INTRAWARP_RETURN_IF_ERROR(MakePattern<false>(ctx, a, b, w, any, route.kinds, offsets, nullptr));
  INTRAWARP_CUDA_RETURN_IF_ERROR(
      cub::DeviceScan::ExclusiveSum(w.scan, w.scan_bytes, offsets, offsets, rows + 1, CudaStream(ctx)));
  const int value_bytes = static_cast<int>(BytesPerValue(plan.value_type()));
  RouteKernel<<<BlocksFor(rows), kThreads, 0, CudaStream(ctx)>>>(offsets, w.spans, a.rows, value_bytes, w.counters,
                                                                 route);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  Counters counters;
  INTRAWARP_RETURN_IF_ERROR(device.Copy(&counters, w.counters, sizeof(counters), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Synchronize(ctx.stream()));

  access.entries = static_cast<int64_t>(counters.entries);
  for (int c = 0; c < kValueClasses; ++c) access.lengths[c] = counters.value_rows[c];
  access.lengths[kTinyRows] = counters.pattern_rows[kTiny];
  access.lengths[kProductTiles] = static_cast<int64_t>(counters.tiles.product_tiles);
  access.lengths[kATiles] = counters.tiles.tiles[0];
  access.lengths[kBTiles] = counters.tiles.tiles[1];
  access.lengths[kIsSquare] = tiles.square;
  if (counters.tiles.product_tiles == 0) access.tiles = Buffer();
  INTRAWARP_ASSIGN_OR_RETURN(access.indices, device.Allocate(access.entries * sizeof(int32_t), ctx.stream()));
  if (access.entries == 0) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(
      MakePattern<true>(ctx, a, b, w, counters.pattern_rows, route.kinds, offsets, access.indices.as<int32_t>()));
  if (counters.tiles.product_tiles > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(
        access.product_tiles,
        device.Allocate(TileProductBytes(counters.tiles.product_tiles, counters.tiles.pairs), ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(FillTiles(ctx, tiles, kTiled, route.kinds, offsets, access.indices.as<int32_t>(),
                                        counters.tiles.product_tiles, access.product_tiles.as<char>()));
  }
  return MakeSegments(ctx, plan, &access.segments);
}

absl::Status ExecuteProduct(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                            const ConstCsrView& b, void* values) {
  if (plan.value_type() == ValueType::kFloat64) return ExecuteAs(ctx, plan, a, b, static_cast<double*>(values));
  const int dropped = DroppedBits(plan.options().precision);
  if (dropped == 0) return ExecuteAs(ctx, plan, a, b, static_cast<float*>(values));
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const ConstCsrView rounded_a, Rounded(ctx, a, dropped));
  ConstCsrView rounded_b = b;
  rounded_b.values = rounded_a.values;
  if (b.values != a.values) {
    INTRAWARP_ASSIGN_OR_RETURN(rounded_b, Rounded(ctx, b, dropped));
  }
  return ExecuteAs(ctx, plan, rounded_a, rounded_b, static_cast<float*>(values));
}

absl::StatusOr<MultiplyEstimate> EstimateTransposed(const ExecContext& ctx, const ConstPatternView& a,
                                                    const ConstPatternView& b, const MultiplyOptions& options) {
  if (!options.transpose_a) return EstimateProduct(ctx, a, b, options);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t workspace, TransposeWorkspaceBytes(a));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer transposed, ctx.device().Allocate(TransposeBytes(a), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer memory, ctx.device().Allocate(workspace, ctx.stream()));
  Arena arena(std::move(memory));
  const ExecContext own(ctx.device(), ctx.stream(), arena);
  INTRAWARP_RETURN_IF_ERROR(MakeTranspose(own, a, transposed.as<char>()));
  INTRAWARP_ASSIGN_OR_RETURN(MultiplyEstimate e,
                             EstimateProduct(own, TransposeIn(transposed.as<char>(), a), b, options));
  e.plan_bytes += TransposeBytes(a);
  e.workspace_bytes = std::max<int64_t>(
      workspace, e.workspace_bytes + Arena::Rounded(a.entries * BytesPerValue(ValueTypeOf(options.precision))));
  return e;
}

absl::Status PlanTransposed(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                            MultiplyPlan& plan) {
  if (!plan.options().transpose_a) return PlanProduct(ctx, a, b, plan);
  MultiplyPlanAccess access(plan);
  INTRAWARP_ASSIGN_OR_RETURN(access.transposed, ctx.device().Allocate(TransposeBytes(a), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(MakeTranspose(ctx, a, access.transposed.as<char>()));
  return PlanProduct(ctx, TransposeIn(access.transposed.as<char>(), a), b, plan);
}

absl::Status ExecuteTransposed(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                               const ConstCsrView& b, void* values) {
  if (ProductPattern(plan).entries == 0) return absl::OkStatus();
  if (!plan.options().transpose_a) return ExecuteProduct(ctx, plan, a, b, values);
  ArenaScope scope(ctx.arena());
  const char* const transposed = MultiplyPlanAccess::Transposed(plan).as<char>();
  INTRAWARP_ASSIGN_OR_RETURN(void* const a_values,
                             ctx.arena().AllocateBytes(a.entries * BytesPerValue(plan.value_type())));
  INTRAWARP_RETURN_IF_ERROR(TransposeValues(ctx, a, transposed, a_values));
  return ExecuteProduct(ctx, plan, {TransposeIn(transposed, a), a.type, a_values}, b, values);
}

}  // namespace

absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(MultiplyEstimate e, EstimateTransposed(ctx, a, b, options));
  if (!NeedsFinish(options)) return e;
  // A product of its own, whose values go through the workspace.
  const int64_t rows = options.transpose_a ? a.columns : a.rows;
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t workspace, FinishWorkspaceBytes(rows));
  e.workspace_bytes = std::max(e.workspace_bytes + static_cast<int64_t>(Arena::Rounded(e.value_bytes)), workspace);
  e.plan_bytes += FinishBytes(e.max_entries, options);
  if (options.addend) e.max_entries = std::min(e.max_entries + options.addend->entries, MultiplyEstimate::kMostCounted);
  e.plan_bytes += (rows + 1) * sizeof(int64_t) + e.max_entries * sizeof(int32_t);
  e.value_bytes = e.max_entries * BytesPerValue(ValueTypeOf(options.precision));
  return e;
}

absl::Status PlanMultiply(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          MultiplyPlan& plan) {
  INTRAWARP_RETURN_IF_ERROR(PlanTransposed(ctx, a, b, plan));
  if (!NeedsFinish(plan.options())) return absl::OkStatus();
  MultiplyPlanAccess access(plan);
  access.KeepProduct();
  const ConstPatternView product = ProductPattern(plan);
  INTRAWARP_ASSIGN_OR_RETURN(access.finish,
                             ctx.device().Allocate(FinishBytes(product.entries, plan.options()), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(access.offsets,
                             ctx.device().Allocate((product.rows + int64_t{1}) * sizeof(int64_t), ctx.stream()));
  return PlanFinish(ctx, product, plan.options(), FinishIn(access.finish.as<char>(), product.entries),
                    access.offsets.as<int64_t>(), &access.indices, &access.entries);
}

absl::Status ExecuteMultiply(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                             const ConstCsrView& b, void* values) {
  if (!NeedsFinish(plan.options())) return ExecuteTransposed(ctx, plan, a, b, values);
  ArenaScope scope(ctx.arena());
  const int64_t entries = ProductPattern(plan).entries;
  INTRAWARP_ASSIGN_OR_RETURN(void* const product,
                             ctx.arena().AllocateBytes(entries * BytesPerValue(plan.value_type())));
  INTRAWARP_RETURN_IF_ERROR(ExecuteTransposed(ctx, plan, a, b, product));
  return ExecuteFinish(ctx, FinishIn(MultiplyPlanAccess::Finish(plan).as<char>(), entries), entries, product,
                       plan.options(), values);
}

}  // namespace intrawarp::cuda
