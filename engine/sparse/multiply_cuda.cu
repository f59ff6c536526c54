// SPDX-License-Identifier: Apache-2.0
// The product on CUDA: rows by their work, scalar products, no atomics on values.
//
// Pattern. A row with at most 32 products is sorted in the registers of a warp; one whose columns lie close together is
// a bitmap of a warp in shared memory, any other a bitmap of a block, window of columns by window. Bitmaps are counted,
// scanned over all rows, and filled in again, sorted as they are.
//
// Values. A warp owns a row of C, or a segment of a long one: its columns, known, in a hash table in shared memory that
// gives an entry's rank. It walks the rows of B one at a time, k ascending; the columns of one row are distinct, so no
// two lanes ever add to the same entry, and sums have one order.
#include <climits>
#include <cub/device/device_scan.cuh>

#include "absl/strings/str_cat.h"
#include "engine/base/host_device.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/multiply_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLanesPerRow = 8;    // of the analysis
constexpr int kWarpWords = 512;    // of a warp's bitmap
constexpr int kBlockWords = 8192;  // of a block's bitmap

enum PatternClass { kTiny, kNear, kFar, kPatternClasses };

// Totals and list lengths, on the device.
struct Counters {
  unsigned long long products;
  unsigned long long max_entries;
  unsigned pattern_rows[kPatternClasses];
};

struct Span {
  int first, last;  // columns of a row of C lie in between
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

__device__ int InclusiveScan(int value) {
  const int lane = threadIdx.x % 32;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

// Appends to lists by class (-1: none): a place for each thread of the block, with one atomic a block and class.
template <int kClasses>
__device__ unsigned Reserve(int of_class, unsigned* lengths) {
  __shared__ unsigned counts[kClasses], starts[kClasses];
  if (threadIdx.x < kClasses) counts[threadIdx.x] = 0;
  __syncthreads();
  const unsigned mine = of_class >= 0 ? atomicAdd(&counts[of_class], 1u) : 0;
  __syncthreads();
  if (threadIdx.x < kClasses && counts[threadIdx.x] > 0) {
    starts[threadIdx.x] = atomicAdd(&lengths[threadIdx.x], counts[threadIdx.x]);
  }
  __syncthreads();
  return of_class >= 0 ? starts[of_class] + mine : 0;
}

__device__ int ClassOf(int64_t products, int64_t a_entries, Span span) {
  if (products == 0) return -1;
  if (products <= 32 && a_entries <= 32) return kTiny;
  return span.last - span.first / 32 * 32 < kWarpWords * 32 ? kNear : kFar;
}

// Products, span and class of each row; eight lanes a row. `spans` and `lists` (rows entries a class) may be null.
__global__ void AnalyseKernel(ConstPatternView a, ConstPatternView b, Counters* counters, Span* spans, int32_t* lists) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanesPerRow;
  const int lane = threadIdx.x % kLanesPerRow;
  unsigned long long products = 0;
  Span span = {INT_MAX, -1};
  int64_t begin = 0, end = 0;
  if (row < a.rows) {
    begin = a.row_offsets[row];
    end = a.row_offsets[row + 1];
  }
  for (int64_t i = begin + lane; i < end; i += kLanesPerRow) {
    const int32_t k = a.column_indices[i];
    const int64_t from = b.row_offsets[k], to = b.row_offsets[k + 1];
    if (from == to) continue;
    products += to - from;
    span.first = min(span.first, b.column_indices[from]);
    span.last = max(span.last, b.column_indices[to - 1]);
  }
  for (int offset = kLanesPerRow / 2; offset > 0; offset /= 2) {
    products += __shfl_xor_sync(kAll, products, offset);
    span.first = min(span.first, __shfl_xor_sync(kAll, span.first, offset));
    span.last = max(span.last, __shfl_xor_sync(kAll, span.last, offset));
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
  if (lists == nullptr) return;
  const int of_class = lane == 0 && row < a.rows ? ClassOf(products, end - begin, span) : -1;
  const unsigned place = Reserve<kPatternClasses>(of_class, counters->pattern_rows);
  if (of_class < 0) return;
  spans[row] = span;
  lists[int64_t{of_class} * a.rows + place] = static_cast<int32_t>(row);
}

__device__ void CompareExchange(int& value, int partner_distance, bool ascending) {
  const int other = __shfl_xor_sync(kAll, value, partner_distance);
  const bool lower = (threadIdx.x & partner_distance) == 0;
  value = lower == ascending ? min(value, other) : max(value, other);
}

__device__ int SortWarp(int value) {
  const int lane = threadIdx.x % 32;
  for (int size = 2; size <= 32; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      CompareExchange(value, distance, (lane & size) == 0 || size == 32);
    }
  }
  return value;
}

// The column of this lane's product of a row with at most 32 products; INT_MAX beyond them.
__device__ int ColumnOfProduct(const ConstPatternView& a, const ConstPatternView& b, int32_t row) {
  const int lane = threadIdx.x % 32;
  const int64_t i = a.row_offsets[row] + lane;
  int64_t begin = 0;
  int length = 0;
  if (i < a.row_offsets[row + 1]) {
    const int32_t k = a.column_indices[i];
    begin = b.row_offsets[k];
    length = static_cast<int>(b.row_offsets[k + 1] - begin);
  }
  const int ends = InclusiveScan(length);
  int source = 0;
  for (int step = 16; step > 0; step /= 2) {
    if (__shfl_sync(kAll, ends, source + step - 1) <= lane) source += step;
  }
  const int64_t from = __shfl_sync(kAll, begin, source);
  const int start = __shfl_sync(kAll, ends - length, source);
  return lane < __shfl_sync(kAll, ends, 31) ? b.column_indices[from + lane - start] : INT_MAX;
}

// Rows with at most 32 products, a warp each. Counts into offsets, or fills indices.
template <bool kFill>
__global__ void TinyKernel(ConstPatternView a, ConstPatternView b, const int32_t* list, const unsigned* length,
                           int64_t* offsets, int32_t* indices) {
  const int lane = threadIdx.x % 32;
  const unsigned warps = gridDim.x * kWarps, rows = *length;
  for (unsigned task = blockIdx.x * kWarps + threadIdx.x / 32; task < rows; task += warps) {
    const int32_t row = list[task];
    const int column = SortWarp(ColumnOfProduct(a, b, row));
    const int before = __shfl_up_sync(kAll, column, 1);
    const bool is_new = column != INT_MAX && (lane == 0 || column != before);
    const unsigned mask = __ballot_sync(kAll, is_new);
    if (kFill) {
      if (is_new) indices[offsets[row] + __popc(mask & ((1u << lane) - 1))] = column;
    } else if (lane == 0) {
      offsets[row] = __popc(mask);
    }
  }
}

__device__ void WriteColumns(uint32_t word, int32_t first_column, int32_t* out) {
  for (; word != 0; word &= word - 1) *out++ = first_column + __ffs(word) - 1;
}

// Rows whose columns lie within kWarpWords words, a warp each.
template <bool kFill>
__global__ void NearKernel(ConstPatternView a, ConstPatternView b, const Span* spans, const int32_t* list,
                           const unsigned* length, int64_t* offsets, int32_t* indices) {
  __shared__ uint32_t bitmaps[kWarps][kWarpWords];
  const int lane = threadIdx.x % 32;
  uint32_t* bits = bitmaps[threadIdx.x / 32];
  const unsigned warps = gridDim.x * kWarps, rows = *length;
  for (unsigned task = blockIdx.x * kWarps + threadIdx.x / 32; task < rows; task += warps) {
    const int32_t row = list[task];
    const Span span = spans[row];
    const int base = span.first / 32 * 32, words = (span.last - base) / 32 + 1;
    for (int w = lane; w < words; w += 32) bits[w] = 0;
    __syncwarp();
    const int64_t end = a.row_offsets[row + 1];
    for (int64_t i = a.row_offsets[row]; i < end; i += 32) {
      int64_t from = 0, to = 0;
      if (i + lane < end) {
        const int32_t k = a.column_indices[i + lane];
        from = b.row_offsets[k];
        to = b.row_offsets[k + 1];
      }
      const int count = static_cast<int>(end - i < 32 ? end - i : 32);
      for (int s = 0; s < count; ++s) {
        const int64_t stop = __shfl_sync(kAll, to, s);
        for (int64_t j = __shfl_sync(kAll, from, s) + lane; j < stop; j += 32) {
          const int c = b.column_indices[j] - base;
          atomicOr(&bits[c / 32], 1u << c % 32);
        }
      }
    }
    __syncwarp();
    int64_t done = 0;
    for (int w = 0; w < words; w += 32) {
      const uint32_t word = w + lane < words ? bits[w + lane] : 0;
      const int ends = InclusiveScan(__popc(word));
      if (kFill) WriteColumns(word, base + (w + lane) * 32, indices + offsets[row] + done + ends - __popc(word));
      done += __shfl_sync(kAll, ends, 31);
    }
    if (!kFill && lane == 0) offsets[row] = done;
    __syncwarp();
  }
}

// Sets the bits of the columns in [first, last] of a row of the product.
__device__ void MarkWindow(const ConstPatternView& a, const ConstPatternView& b, int32_t row, int64_t first,
                           int64_t last, bool whole, uint32_t* bits) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t end = a.row_offsets[row + 1];
  for (int64_t i = a.row_offsets[row] + warp * 32; i < end; i += kThreads) {
    int64_t from = 0, to = 0;
    if (i + lane < end) {
      const int32_t k = a.column_indices[i + lane];
      from = b.row_offsets[k];
      to = b.row_offsets[k + 1];
      if (!whole) {
        from = LowerBound(b.column_indices, from, to, static_cast<int32_t>(first));
        to = LowerBound(b.column_indices, from, to, static_cast<int32_t>(last + 1));
      }
    }
    const int count = static_cast<int>(end - i < 32 ? end - i : 32);
    for (int s = 0; s < count; ++s) {
      const int64_t stop = __shfl_sync(kAll, to, s);
      for (int64_t j = __shfl_sync(kAll, from, s) + lane; j < stop; j += 32) {
        const int c = static_cast<int>(b.column_indices[j] - first);
        atomicOr(&bits[c / 32], 1u << c % 32);
      }
    }
  }
}

// The sum over the block of the values of lower threads; *total is that of all. `sums` holds kWarps.
__device__ int BlockExclusiveScan(int value, int* sums, int* total) {
  const int ends = InclusiveScan(value);
  if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = ends;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < threadIdx.x / 32) before += sums[w];
    all += sums[w];
  }
  __syncthreads();
  *total = all;
  return before + ends - value;
}

// Any row, a block each, a window of kBlockWords words at a time.
template <bool kFill>
__global__ void FarKernel(ConstPatternView a, ConstPatternView b, const Span* spans, const int32_t* list,
                          const unsigned* length, int64_t* offsets, int32_t* indices) {
  __shared__ uint32_t bits[kBlockWords];
  __shared__ int sums[kWarps];
  const unsigned rows = *length;
  for (unsigned task = blockIdx.x; task < rows; task += gridDim.x) {
    const int32_t row = list[task];
    const Span span = spans[row];
    const int64_t base = span.first / 32 * 32;
    const bool whole = span.last - base < int64_t{kBlockWords} * 32;
    int64_t done = 0;
    for (int64_t first = base; first <= span.last; first += int64_t{kBlockWords} * 32) {
      const int64_t window_end = first + int64_t{kBlockWords} * 32 - 1, last = min(window_end, int64_t{span.last});
      const int words = static_cast<int>((last - first) / 32 + 1), each = (words + kThreads - 1) / kThreads;
      for (int w = threadIdx.x; w < words; w += kThreads) bits[w] = 0;
      __syncthreads();
      MarkWindow(a, b, row, first, last, whole, bits);
      __syncthreads();
      const int begin = min(static_cast<int>(threadIdx.x) * each, words), end = min(begin + each, words);
      int mine = 0, total = 0;
      for (int w = begin; w < end; ++w) mine += __popc(bits[w]);
      const int before = BlockExclusiveScan(mine, sums, &total);
      if (kFill) {
        int32_t* out = indices + offsets[row] + done + before;
        for (int w = begin; w < end; ++w) {
          WriteColumns(bits[w], static_cast<int32_t>(first) + w * 32, out);
          out += __popc(bits[w]);
        }
      }
      done += total;
      __syncthreads();
    }
    if (!kFill && threadIdx.x == 0) offsets[row] = done;
  }
}

// Who makes which values: rows with few entries from the front of `rows`, with more from its back, segments of long
// ones.
enum ValueClass { kShort, kMiddle, kLong, kValueClasses };
constexpr INTRAWARP_HD int MaxEntries(int of_class) {
  return of_class == kShort ? 128 : of_class == kMiddle ? 512 : 1024;
}
constexpr INTRAWARP_HD int Slots(int of_class) { return 2 * MaxEntries(of_class); }
constexpr INTRAWARP_HD int ValueWarps(int of_class) { return of_class == kShort ? 8 : of_class == kMiddle ? 4 : 2; }

struct Segment {
  int32_t row;
  int32_t index;
};

struct Route {
  unsigned* lengths;  // kValueClasses
  int32_t* rows;
  Segment* segments;
};

// A long row has more than MaxEntries(kMiddle) entries, hence at most one segment each so many of them.
int64_t MaxSegments(int64_t entries) { return entries / MaxEntries(kMiddle) + 1; }
int64_t RouteBytes(int64_t rows, int64_t entries) {
  return Arena::kAlignment + Arena::Rounded(rows * sizeof(int32_t)) + MaxSegments(entries) * sizeof(Segment);
}
Route RouteIn(const Buffer& buffer, int64_t rows) {
  char* p = buffer.as<char>();
  return {reinterpret_cast<unsigned*>(p), reinterpret_cast<int32_t*>(p + Arena::kAlignment),
          reinterpret_cast<Segment*>(p + Arena::kAlignment + Arena::Rounded(rows * sizeof(int32_t)))};
}

__global__ void RouteKernel(const int64_t* offsets, int32_t rows, Route route) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t entries = row < rows ? offsets[row + 1] - offsets[row] : 0;
  int of_class = -1;
  if (entries > 0) of_class = entries <= MaxEntries(kShort) ? kShort : entries <= MaxEntries(kMiddle) ? kMiddle : -1;
  const unsigned place = Reserve<kLong>(of_class, route.lengths);
  if (of_class == kShort) route.rows[place] = static_cast<int32_t>(row);
  if (of_class == kMiddle) route.rows[rows - 1 - place] = static_cast<int32_t>(row);
  if (entries <= MaxEntries(kMiddle)) return;
  const int count = static_cast<int>((entries + MaxEntries(kLong) - 1) / MaxEntries(kLong));
  const unsigned start = atomicAdd(&route.lengths[kLong], static_cast<unsigned>(count));
  for (int s = 0; s < count; ++s) route.segments[start + s] = {static_cast<int32_t>(row), s};
}

template <typename T>
struct PlusTimes {
  static __device__ T Identity() { return 0; }
  static __device__ T Add(T sum, T a, T b) { return fma(a, b, sum); }
};
template <typename T>
struct OrAnd {
  static __device__ T Identity() { return 0; }
  static __device__ T Add(T sum, T a, T b) { return sum != 0 || (a != 0 && b != 0); }
};
template <typename T>
struct MinPlus {
  static __device__ T Identity() { return static_cast<T>(INFINITY); }
  static __device__ T Add(T sum, T a, T b) { return fmin(sum, a + b); }
};

// From a column of C to its rank in the segment.
template <int kSize>
struct Table {
  int32_t columns[kSize];
  uint16_t ranks[kSize];

  static __device__ unsigned SlotOf(int32_t column) {
    return (static_cast<uint32_t>(column) * 2654435761u) >> (__clz(kSize) + 1);
  }
  __device__ void Clear() {
    for (int s = threadIdx.x % 32; s < kSize; s += 32) columns[s] = -1;
  }
  // Distinct columns; lanes may insert at the same time.
  __device__ void Insert(int32_t column, int rank) {
    unsigned slot = SlotOf(column);
    while (atomicCAS(&columns[slot], -1, column) != -1) slot = (slot + 1) % kSize;
    ranks[slot] = static_cast<uint16_t>(rank);
  }
  // -1 where there is none.
  __device__ int Find(int32_t column) const {
    for (unsigned slot = SlotOf(column);; slot = (slot + 1) % kSize) {
      const int32_t found = columns[slot];
      if (found == column) return ranks[slot];
      if (found == -1) return -1;
    }
  }
};

template <typename T, int kClass>
struct ValueScratch {
  Table<Slots(kClass)> table;
  T sums[MaxEntries(kClass)];
};

// One row or segment: entries [first, first + count) of C, by one warp.
template <typename T, typename Ring, int kClass>
__device__ void MakeValues(const ConstCsrView& a, const ConstCsrView& b, int32_t row, const int32_t* c_columns,
                           int count, bool whole, T alpha, ValueScratch<T, kClass>& scratch, T* out) {
  const int lane = threadIdx.x % 32;
  const T* a_values = static_cast<const T*>(a.values);
  const T* b_values = static_cast<const T*>(b.values);
  scratch.table.Clear();
  __syncwarp();
  for (int r = lane; r < count; r += 32) {
    scratch.table.Insert(c_columns[r], r);
    scratch.sums[r] = Ring::Identity();
  }
  __syncwarp();
  const int32_t first = c_columns[0], last = c_columns[count - 1];
  const int64_t end = a.row_offsets[row + 1];
  for (int64_t i = a.row_offsets[row]; i < end; i += 32) {
    int64_t from = 0, to = 0;
    T a_value = 0;
    if (i + lane < end) {
      const int32_t k = a.column_indices[i + lane];
      a_value = a_values[i + lane];
      from = b.row_offsets[k];
      to = b.row_offsets[k + 1];
      if (!whole) {
        from = LowerBound(b.column_indices, from, to, first);
        to = LowerBound(b.column_indices, from, to, last + 1);
      }
    }
    const int steps = static_cast<int>(end - i < 32 ? end - i : 32);
    for (int s = 0; s < steps; ++s) {
      const int64_t stop = __shfl_sync(kAll, to, s);
      const T factor = __shfl_sync(kAll, a_value, s);
      for (int64_t j = __shfl_sync(kAll, from, s) + lane; j < stop; j += 32) {
        const int rank = scratch.table.Find(b.column_indices[j]);
        if (rank >= 0) scratch.sums[rank] = Ring::Add(scratch.sums[rank], factor, b_values[j]);
      }
      __syncwarp();
    }
  }
  for (int r = lane; r < count; r += 32) out[r] = alpha == T{1} ? scratch.sums[r] : alpha * scratch.sums[r];
  __syncwarp();
}

template <typename T, typename Ring, int kClass>
__global__ void ValuesKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, Route route, T alpha, T* values) {
  __shared__ ValueScratch<T, kClass> scratch[ValueWarps(kClass)];
  const unsigned warp = threadIdx.x / 32, warps = gridDim.x * ValueWarps(kClass), tasks = route.lengths[kClass];
  for (unsigned task = blockIdx.x * ValueWarps(kClass) + warp; task < tasks; task += warps) {
    Segment segment = {0, 0};
    if (kClass == kLong) {
      segment = route.segments[task];
    } else {
      segment.row = kClass == kShort ? route.rows[task] : route.rows[c.rows - 1 - task];
    }
    const int64_t of_row = c.row_offsets[segment.row + 1] - c.row_offsets[segment.row];
    const int64_t skipped = int64_t{segment.index} * MaxEntries(kClass), left = of_row - skipped;
    const int64_t first = c.row_offsets[segment.row] + skipped;
    const int count = static_cast<int>(left < MaxEntries(kClass) ? left : MaxEntries(kClass));
    MakeValues<T, Ring, kClass>(a, b, segment.row, c.column_indices + first, count, of_row == count, alpha,
                                scratch[warp], values + first);
  }
}

// Blocks that fill the device; kernels loop over what there is to do, which the host need not know.
absl::StatusOr<unsigned> FullGrid() {
  int device = 0, multiprocessors = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  return static_cast<unsigned>(multiprocessors) * 8;
}

unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

absl::StatusOr<size_t> ScanBytes(int64_t rows) {
  size_t bytes = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cub::DeviceScan::ExclusiveSum(nullptr, bytes, static_cast<int64_t*>(nullptr),
                                                               static_cast<int64_t*>(nullptr), rows + 1));
  return bytes;
}

template <bool kFill>
absl::Status MakePattern(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                         const Counters* counters, const Span* spans, const int32_t* lists, int64_t* offsets,
                         int32_t* indices) {
  const cudaStream_t stream = CudaStream(ctx);
  INTRAWARP_ASSIGN_OR_RETURN(const unsigned grid, FullGrid());
  const int64_t rows = a.rows;
  const unsigned* lengths = counters->pattern_rows;
  FarKernel<kFill><<<grid, kThreads, 0, stream>>>(a, b, spans, lists + kFar * rows, lengths + kFar, offsets, indices);
  NearKernel<kFill>
      <<<grid, kThreads, 0, stream>>>(a, b, spans, lists + kNear * rows, lengths + kNear, offsets, indices);
  TinyKernel<kFill><<<grid, kThreads, 0, stream>>>(a, b, lists + kTiny * rows, lengths + kTiny, offsets, indices);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

template <typename T, typename Ring>
absl::Status LaunchValues(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                          const ConstCsrView& b, T* values) {
  const cudaStream_t stream = CudaStream(ctx);
  INTRAWARP_ASSIGN_OR_RETURN(const unsigned grid, FullGrid());
  const ConstPatternView c = plan.pattern();
  const Route route = RouteIn(MultiplyPlanAccess::Route(plan), c.rows);
  const T alpha = static_cast<T>(plan.options().alpha);
  ValuesKernel<T, Ring, kLong><<<grid, ValueWarps(kLong) * 32, 0, stream>>>(a, b, c, route, alpha, values);
  ValuesKernel<T, Ring, kMiddle><<<grid, ValueWarps(kMiddle) * 32, 0, stream>>>(a, b, c, route, alpha, values);
  ValuesKernel<T, Ring, kShort><<<grid, ValueWarps(kShort) * 32, 0, stream>>>(a, b, c, route, alpha, values);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

template <typename T>
absl::Status ExecuteAs(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                       T* values) {
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

absl::Status CheckMultiplyOptions(const MultiplyOptions& options) {
  const auto missing = [](const char* what) {
    return absl::UnimplementedError(absl::StrCat(what, ": not on CUDA yet"));
  };
  if (options.precision == MultiplyPrecision::kFp16) return missing("precision fp16");
  if (options.precision == MultiplyPrecision::kBf16) return missing("precision bf16");
  if (options.precision == MultiplyPrecision::kTf32) return missing("precision tf32");
  if (options.transpose_a) return missing("transpose_a");
  if (options.mask) return missing("mask");
  if (options.addend) return missing("addend");
  return absl::OkStatus();
}

absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
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
  MultiplyEstimate e;
  e.products = static_cast<int64_t>(totals.products);
  e.max_entries = static_cast<int64_t>(totals.max_entries);
  e.workspace_bytes = Arena::Rounded(sizeof(Counters)) + Arena::Rounded(a.rows * sizeof(Span)) +
                      Arena::Rounded(int64_t{a.rows} * kPatternClasses * sizeof(int32_t)) + Arena::Rounded(scan_bytes);
  e.plan_bytes =
      (int64_t{a.rows} + 1) * sizeof(int64_t) + e.max_entries * sizeof(int32_t) + RouteBytes(a.rows, e.max_entries);
  e.value_bytes = e.max_entries * BytesPerValue(ValueTypeOf(options.precision));
  return e;
}

absl::Status PlanMultiply(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          MultiplyPlan& plan) {
  Device& device = ctx.device();
  MultiplyPlanAccess access(plan);
  const int64_t rows = a.rows, offsets_bytes = (rows + 1) * sizeof(int64_t);
  INTRAWARP_ASSIGN_OR_RETURN(access.offsets, device.Allocate(offsets_bytes, ctx.stream()));
  int64_t* offsets = access.offsets.as<int64_t>();
  INTRAWARP_RETURN_IF_ERROR(device.Fill(offsets, 0, offsets_bytes, ctx.stream()));
  if (rows == 0) return absl::OkStatus();

  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(const size_t scan_bytes, ScanBytes(rows));
  INTRAWARP_ASSIGN_OR_RETURN(Counters* const counters, ctx.arena().Allocate<Counters>(1));
  INTRAWARP_ASSIGN_OR_RETURN(Span* const spans, ctx.arena().Allocate<Span>(rows));
  INTRAWARP_ASSIGN_OR_RETURN(int32_t* const lists, ctx.arena().Allocate<int32_t>(rows * kPatternClasses));
  INTRAWARP_ASSIGN_OR_RETURN(void* const scan, ctx.arena().AllocateBytes(scan_bytes));
  INTRAWARP_RETURN_IF_ERROR(device.Fill(counters, 0, sizeof(Counters), ctx.stream()));
  AnalyseKernel<<<BlocksFor(rows * kLanesPerRow), kThreads, 0, CudaStream(ctx)>>>(a, b, counters, spans, lists);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_RETURN_IF_ERROR(MakePattern<false>(ctx, a, b, counters, spans, lists, offsets, nullptr));
  size_t bytes = scan_bytes;
  INTRAWARP_CUDA_RETURN_IF_ERROR(
      cub::DeviceScan::ExclusiveSum(scan, bytes, offsets, offsets, rows + 1, CudaStream(ctx)));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(&access.entries, offsets + rows, sizeof(int64_t), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(device.Synchronize(ctx.stream()));

  INTRAWARP_ASSIGN_OR_RETURN(access.indices, device.Allocate(access.entries * sizeof(int32_t), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(access.route, device.Allocate(RouteBytes(rows, access.entries), ctx.stream()));
  if (access.entries == 0) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(
      MakePattern<true>(ctx, a, b, counters, spans, lists, offsets, access.indices.as<int32_t>()));
  const Route route = RouteIn(access.route, rows);
  INTRAWARP_RETURN_IF_ERROR(device.Fill(route.lengths, 0, kValueClasses * sizeof(unsigned), ctx.stream()));
  RouteKernel<<<BlocksFor(rows), kThreads, 0, CudaStream(ctx)>>>(offsets, a.rows, route);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status ExecuteMultiply(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                             const ConstCsrView& b, void* values) {
  if (plan.pattern().entries == 0) return absl::OkStatus();
  if (plan.value_type() == ValueType::kFloat64) return ExecuteAs(ctx, plan, a, b, static_cast<double*>(values));
  return ExecuteAs(ctx, plan, a, b, static_cast<float*>(values));
}

}  // namespace intrawarp::cuda
