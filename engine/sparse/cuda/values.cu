// SPDX-License-Identifier: Apache-2.0
#include <climits>

#include "engine/base/status_macros.h"
#include "engine/device/warp.cuh"
#include "engine/sparse/cuda/adder.cuh"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/merge.cuh"
#include "engine/sparse/cuda/products.cuh"
#include "engine/sparse/cuda/search.cuh"
#include "engine/sparse/cuda/semirings.cuh"
#include "engine/sparse/cuda/short_values.cuh"
#include "engine/sparse/cuda/table.cuh"
#include "engine/sparse/cuda/values.h"

namespace intrawarp::cuda::spgemm {
namespace {

// Leads from a column of a row of C, or of a piece of it, to its sum, by a bitmap.
template <typename T>
struct BitsScratch {
  uint32_t* bits;
  uint16_t* ranks;  // of the first entry of each word
  T* sums;
  int base, words;

  // Place divides `memory`, BytesOfBits bytes aligned to 8. `threads` threads, of which this is number `thread`, call
  // Place, Clear and Fill in this order, with a barrier between Clear and Fill, and after Fill.
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
  // Calls all three, by a warp.
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

constexpr int kBitsWarps = 4;

// Writes values [skipped, skipped + count) of a row of C if its row of A has one entry; false for any other row.
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

// Computes whole rows by bitmaps: single rows, or groups of kGroupRows at most that share their pattern.
template <typename T, typename Ring, int kRows>
__global__ void __launch_bounds__(kBitsWarps * 32, (kRows == 1 ? 10 : 8) - (sizeof(T) - 4) / 2)
    BitsKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, RowBinsView bins, int of_class, unsigned tasks,
               T alpha, T* values) {
  const OverlapNext overlap;
  extern __shared__ double bits_memory[];
  char* memory = reinterpret_cast<char*>(bits_memory) + threadIdx.x / 32 * BitsBytes(of_class);
  const unsigned warps = gridDim.x * kBitsWarps;
  for (unsigned t = blockIdx.x * kBitsWarps + threadIdx.x / 32; t < tasks; t += warps) {
    const RowGroup group = kRows == 1 ? RowGroup{*bins.RowAt(of_class, t), 1} : *bins.GroupAt(of_class, t);
    const int64_t begin = c.row_offsets[group.row];
    const int count = static_cast<int>(c.row_offsets[group.row + 1] - begin);
    BitsScratch<T> scratch;
    scratch.Init(memory, c.column_indices + begin, count, kRows * count, Ring::Identity());
    AddProducts<T, Ring, kRows, false>(
        a, b, a.row_offsets[group.row], a.row_offsets[group.row + 1], 1, group.rows, true, 0, 0,
        [scratch](int32_t column) { return scratch.Find(column); }, count, scratch.sums);
    WriteSums(scratch.sums, group.rows * count, alpha, values + begin);
  }
}

// Computes pieces of rows by bitmaps.
template <typename T, typename Ring>
__global__ void PieceKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, const RowPiece* pieces,
                            const unsigned* length, T alpha, T* values) {
  const OverlapNext overlap;
  extern __shared__ double bits_memory[];
  char* memory = reinterpret_cast<char*>(bits_memory) + threadIdx.x / 32 * kLargestBytes;
  const unsigned warps = gridDim.x * kBitsWarps, tasks = *length;
  for (unsigned t = blockIdx.x * kBitsWarps + threadIdx.x / 32; t < tasks; t += warps) {
    const RowPiece piece = pieces[t];
    const int64_t begin = c.row_offsets[piece.row] + piece.skipped;
    if (ScaleRow<T, Ring>(a, b, piece.row, piece.skipped, piece.count, threadIdx.x % 32, 32, alpha, values + begin)) {
      continue;
    }
    const int32_t* columns = c.column_indices + begin;
    BitsScratch<T> scratch;
    scratch.Init(memory, columns, piece.count, piece.count, Ring::Identity());
    const bool whole = piece.count == c.row_offsets[piece.row + 1] - c.row_offsets[piece.row];
    AddProducts<T, Ring, 1, true>(
        a, b, a.row_offsets[piece.row], a.row_offsets[piece.row + 1], 1, 1, whole, columns[0], columns[piece.count - 1],
        [scratch](int32_t column) { return scratch.Find(column); }, piece.count, scratch.sums);
    WriteSums(scratch.sums, piece.count, alpha, values + begin);
  }
}

constexpr int HeavyBytes(int value_bytes) {
  return static_cast<int>(BytesOfBits(kSplitWords, kWarps * SplitEntries(value_bytes), value_bytes));
}
constexpr int HeavyRowBytes(int of_class, int value_bytes) {
  return static_cast<int>(BytesOfBits(kMiddleWords, kWarps * BlockEntries(of_class, value_bytes), value_bytes));
}

// Computes a piece of a heavy row by a block: its warps take turns with the entries of A, each with sums of its own,
// which are joined in order.
template <typename T, typename Ring>
__device__ void AddHeavy(const ConstCsrView& a, const ConstCsrView& b, const ConstPatternView& c, RowPiece piece,
                         T alpha, char* memory, T* values) {
  const int warp = threadIdx.x / 32, count = piece.count;
  const int64_t begin = c.row_offsets[piece.row] + piece.skipped;
  const int32_t* columns = c.column_indices + begin;
  BitsScratch<T> scratch;
  scratch.Place(memory, columns, count, kWarps * count);
  scratch.Clear(threadIdx.x, kThreads, kWarps * count, Ring::Identity());
  __syncthreads();
  scratch.Fill(threadIdx.x, kThreads, columns, count);
  __syncthreads();
  const int64_t from = a.row_offsets[piece.row], entries = a.row_offsets[piece.row + 1] - from;
  const bool whole = count == c.row_offsets[piece.row + 1] - c.row_offsets[piece.row];
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
    HeavyKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, const RowPiece* pieces, const unsigned* length,
                T alpha, T* values) {
  const OverlapNext overlap;
  extern __shared__ double heavy_memory[];
  const unsigned tasks = *length;
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    AddHeavy<T, Ring>(a, b, c, pieces[t], alpha, reinterpret_cast<char*>(heavy_memory), values);
  }
}

// Computes whole heavy rows.
template <typename T, typename Ring>
__global__ void __launch_bounds__(kThreads)
    HeavyRowKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, RowBinsView bins, int of_class, unsigned tasks,
                   T alpha, T* values) {
  const OverlapNext overlap;
  extern __shared__ double heavy_memory[];
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    const int32_t row = *bins.RowAt(of_class, t);
    const RowPiece piece = {row, 0, static_cast<int32_t>(c.row_offsets[row + 1] - c.row_offsets[row])};
    AddHeavy<T, Ring>(a, b, c, piece, alpha, reinterpret_cast<char*>(heavy_memory), values);
  }
}

template <typename T, int kClass>
struct TableScratch {
  T sums[TableEntries(kClass)];
  Table<2 * TableEntries(kClass)> table;
};
constexpr int TableWarps(int of_class) { return of_class == kTable128 ? 8 : of_class == kTable512 ? 4 : 2; }

// Computes whole rows by hash tables.
template <typename T, typename Ring, int kClass>
__global__ void TableKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, RowBinsView bins, unsigned tasks,
                            T alpha, T* values) {
  const OverlapNext overlap;
  __shared__ TableScratch<T, kClass> scratches[TableWarps(kClass)];
  TableScratch<T, kClass>& scratch = scratches[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const unsigned warps = gridDim.x * TableWarps(kClass);
  for (unsigned t = blockIdx.x * TableWarps(kClass) + threadIdx.x / 32; t < tasks; t += warps) {
    const int32_t row = *bins.RowAt(kClass, t);
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

// Computes whole rows by a hash table of a block; its warps take turns with the entries of A, as in AddHeavy.
template <typename T, typename Ring, int kClass>
__global__ void __launch_bounds__(kTableBlockWarps * 32)
    TableBlockKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, RowBinsView bins, unsigned tasks, T alpha,
                     T* values) {
  const OverlapNext overlap;
  extern __shared__ double table_memory[];
  auto& scratch = *reinterpret_cast<TableBlockScratch<T, kClass>*>(table_memory);
  constexpr int kBlock = kTableBlockWarps * 32;
  const int warp = threadIdx.x / 32;
  for (unsigned t = blockIdx.x; t < tasks; t += gridDim.x) {
    const int32_t row = *bins.RowAt(kClass, t);
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

template <typename T, typename Ring, MergeOutput kMake>
__global__ void __launch_bounds__(kTinyThreads, sizeof(T) == 4 ? 9 : 7)
    TinyKernel(ConstCsrView a, ConstCsrView b, ConstPatternView c, const uint8_t* kinds, T alpha, T* values) {
  const OverlapNext overlap;
  constexpr int kStaged = kTinyThreads * kStagedPerThread;
  __shared__ T staged_values[kStaged];
  __shared__ int32_t staged_columns[kMake == MergeOutput::kBoth ? kStaged : 1];
  MergeRows<T, Ring, kMake>(a, b, kinds, const_cast<int64_t*>(c.row_offsets), int64_t{blockIdx.x} * kTinyThreads, alpha,
                            {const_cast<int32_t*>(c.column_indices), values, staged_columns, staged_values});
}

// Launches the kernels of one value type and semiring, those of the longest rows first.
template <typename T, typename Ring>
class ValueLaunches {
 public:
  ValueLaunches(const ExecContext& ctx, const ScalarRows& rows, double alpha, const ConstCsrView& a,
                const ConstCsrView& b, T* values)
      : rows_(rows),
        bins_(rows.bins.view()),
        alpha_(static_cast<T>(alpha)),
        a_(a),
        b_(b),
        values_(values),
        launcher_(ctx) {}

  absl::Status All() {
    INTRAWARP_RETURN_IF_ERROR(Pieces());
    for (int of_class : {kHeavy1280, kHeavy640}) INTRAWARP_RETURN_IF_ERROR(Heavy(of_class));
    INTRAWARP_RETURN_IF_ERROR(TableBlock<kTableBlock4096>());
    INTRAWARP_RETURN_IF_ERROR(TableBlock<kTableBlock2048>());
    for (int of_class = kGroupLargest; of_class >= kGroup6144; --of_class) {
      INTRAWARP_RETURN_IF_ERROR(Bits<kGroupRows>(of_class));
    }
    for (int of_class = kBitsLargest; of_class >= kBits4096; --of_class) {
      INTRAWARP_RETURN_IF_ERROR(Bits<1>(of_class));
    }
    INTRAWARP_RETURN_IF_ERROR(Tables<kTable1024>());
    INTRAWARP_RETURN_IF_ERROR(Tables<kTable512>());
    INTRAWARP_RETURN_IF_ERROR(Tables<kTable128>());
    INTRAWARP_RETURN_IF_ERROR(Short());
    return Tiny();
  }

 private:
  absl::Status Pieces() {
    if (rows_.pieces.memory.empty()) return absl::OkStatus();
    const RowPiecesView pieces = rows_.pieces.view();
    const auto& capacity = rows_.pieces.capacity;
    INTRAWARP_RETURN_IF_ERROR(launcher_.LaunchUneven(HeavyKernel<T, Ring>, capacity[1], 1, kThreads,
                                                     HeavyBytes(sizeof(T)), a_, b_, rows_.c, pieces.lists[1],
                                                     pieces.lengths + 1, alpha_, values_));
    return launcher_.LaunchUneven(PieceKernel<T, Ring>, capacity[0], kBitsWarps, kBitsWarps * 32,
                                  kBitsWarps * kLargestBytes, a_, b_, rows_.c, pieces.lists[0], pieces.lengths, alpha_,
                                  values_);
  }

  absl::Status Heavy(int of_class) {
    const unsigned rows = rows_.bins.lengths[of_class];
    return launcher_.LaunchUneven(HeavyRowKernel<T, Ring>, rows, 1, kThreads, HeavyRowBytes(of_class, sizeof(T)), a_,
                                  b_, rows_.c, bins_, of_class, rows, alpha_, values_);
  }

  template <int kClass>
  absl::Status TableBlock() {
    const unsigned rows = rows_.bins.lengths[kClass];
    return launcher_.LaunchUneven(TableBlockKernel<T, Ring, kClass>, rows, 1, kTableBlockWarps * 32,
                                  sizeof(TableBlockScratch<T, kClass>), a_, b_, rows_.c, bins_, rows, alpha_, values_);
  }

  template <int kRows>
  absl::Status Bits(int of_class) {
    const unsigned groups = rows_.bins.lengths[of_class];
    return launcher_.LaunchUneven(BitsKernel<T, Ring, kRows>, groups, kBitsWarps, kBitsWarps * 32,
                                  kBitsWarps * BitsBytes(of_class), a_, b_, rows_.c, bins_, of_class, groups, alpha_,
                                  values_);
  }

  template <int kClass>
  absl::Status Tables() {
    const unsigned rows = rows_.bins.lengths[kClass];
    return launcher_.LaunchUneven(TableKernel<T, Ring, kClass>, rows, TableWarps(kClass), TableWarps(kClass) * 32, 0,
                                  a_, b_, rows_.c, bins_, rows, alpha_, values_);
  }

  absl::Status Short() {
    const MergeOutput make = rows_.write_columns ? MergeOutput::kBoth : MergeOutput::kValues;
    return LaunchShortRows<T, Ring>(launcher_, rows_.bins, a_, b_, rows_.c, make, alpha_, values_);
  }

  absl::Status Tiny() {
    if (rows_.bins.tiny_rows == 0) return absl::OkStatus();
    auto* const kernel =
        rows_.write_columns ? TinyKernel<T, Ring, MergeOutput::kBoth> : TinyKernel<T, Ring, MergeOutput::kValues>;
    return launcher_.LaunchCapped(INT_MAX, kernel, a_.rows, kTinyThreads, kTinyThreads, 0, a_, b_, rows_.c, bins_.kinds,
                                  alpha_, values_);
  }

  const ScalarRows& rows_;
  const RowBinsView bins_;
  const T alpha_;
  const ConstCsrView& a_;
  const ConstCsrView& b_;
  T* const values_;
  Launcher launcher_;
};

template <typename T>
absl::Status ExecuteRowsAs(const ExecContext& ctx, const ScalarRows& rows, const MultiplyOptions& options,
                           const ConstCsrView& a, const ConstCsrView& b, T* values) {
  switch (options.semiring) {
    case Semiring::kPlusTimes:
      return ValueLaunches<T, PlusTimes<T>>(ctx, rows, options.alpha, a, b, values).All();
    case Semiring::kOrAnd:
      return ValueLaunches<T, OrAnd<T>>(ctx, rows, options.alpha, a, b, values).All();
    case Semiring::kMinPlus:
      return ValueLaunches<T, MinPlus<T>>(ctx, rows, options.alpha, a, b, values).All();
  }
  return absl::UnimplementedError("semiring: not on CUDA yet");
}

}  // namespace

absl::Status ExecuteRows(const ExecContext& ctx, const ScalarRows& rows, const MultiplyOptions& options,
                         const ConstCsrView& a, const ConstCsrView& b, void* values) {
  if (a.type == ValueType::kFloat64) return ExecuteRowsAs(ctx, rows, options, a, b, static_cast<double*>(values));
  return ExecuteRowsAs(ctx, rows, options, a, b, static_cast<float*>(values));
}

}  // namespace intrawarp::cuda::spgemm
