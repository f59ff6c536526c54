// SPDX-License-Identifier: Apache-2.0
#include "engine/sparse/multiply_analysis.h"

namespace intrawarp::cuda {
namespace {

__device__ uint8_t ClassOf(const Span& span, int64_t a_entries, unsigned tiny_products) {
  if (span.products == 0) return kNone;
  if (span.products <= tiny_products && a_entries <= kTinyEntries) return kTiny;
  const int words = span.last / 32 - span.first / 32 + 1;
  return words <= kNearWords ? kNear : words <= kMiddleWords ? kMiddle : kFar;
}

// The work of a row, or of a part of it. `same`: it has the pattern of the row before.
struct RowWork {
  unsigned long long products;
  int first, last;
  bool same;
  unsigned runs;  // of entries of A in one tile, where it is asked

  __device__ void Join(const RowWork& other) {
    products += other.products;
    first = min(first, other.first);
    last = max(last, other.last);
    same = same && other.same;
    runs += other.runs;
  }
  // Over kLanes lanes, which are a power of two; all lanes of the warp take part.
  template <int kLanes>
  __device__ void JoinLanes() {
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      RowWork other;
      other.products = __shfl_xor_sync(kAll, products, offset);
      other.first = __shfl_xor_sync(kAll, first, offset);
      other.last = __shfl_xor_sync(kAll, last, offset);
      other.same = __shfl_xor_sync(kAll, same, offset);
      other.runs = __shfl_xor_sync(kAll, runs, offset);
      Join(other);
    }
  }
};

// That of every `step`-th entry of A of the row, from the `skip`-th.
__device__ RowWork WorkOf(const ConstPatternView& a, const ConstPatternView& b, int64_t row, int64_t begin, int64_t end,
                          int skip, int step, bool count_runs) {
  RowWork w = {0, INT_MAX, -1, false, 0};
  // Of no entries, `row` may be none of A.
  const bool follows = row % kRunLength != 0 && begin < end;
  const int64_t before = follows ? a.row_offsets[row - 1] : begin;
  w.same = follows && begin - before == end - begin;
  for (int64_t i = begin + skip; i < end; i += step) {
    const int32_t k = a.column_indices[i];
    const int64_t from = b.row_offsets[k], to = b.row_offsets[k + 1];
    w.same = w.same && a.column_indices[before + (i - begin)] == k;
    if (count_runs) w.runs += i == begin || a.column_indices[i - 1] / 8 != k / 8;
    if (from == to) continue;
    w.products += to - from;
    w.first = min(w.first, b.column_indices[from]);
    w.last = max(w.last, b.column_indices[to - 1]);
  }
  return w;
}

// Products, span and kind of each row; eight lanes a row, a block a long one. `spans`, `kinds` and `offsets` may be
// null.
__global__ void __launch_bounds__(kThreads, 5)
    AnalyseKernel(ConstPatternView a, ConstPatternView b, RowLimits limits, Counters* counters, Span* spans,
                  uint8_t* kinds, int64_t* offsets, bool count_runs) {
  constexpr int kRows = kThreads / kLanesPerRow, kSums = 3;
  __shared__ int32_t long_rows[kRows];
  __shared__ int long_count;
  __shared__ RowWork parts[kWarps];
  const int lane = threadIdx.x % kLanesPerRow;
  const unsigned long long columns = b.columns;
  unsigned long long sum[kSums] = {};  // of this thread's rows: products, entries at most, runs
  const auto note = [&](int64_t row, int64_t a_entries, const RowWork& w) {
    sum[0] += w.products;
    sum[1] += min(w.products, columns);
    sum[2] += w.runs;
    if (kinds == nullptr) return;
    const Span span = {w.first, w.last,
                       static_cast<unsigned>(min(w.products, static_cast<unsigned long long>(UINT_MAX)))};
    if (w.products == 0) offsets[row] = 0;
    spans[row] = span;
    kinds[row] = ClassOf(span, a_entries, limits.tiny_products) | (w.same ? kSame : 0);
  };
  for (int64_t first = int64_t{blockIdx.x} * kRows; first < a.rows; first += int64_t{gridDim.x} * kRows) {
    const int64_t row = first + threadIdx.x / kLanesPerRow;
    const int64_t begin = row < a.rows ? a.row_offsets[row] : 0, end = row < a.rows ? a.row_offsets[row + 1] : 0;
    const bool is_long = end - begin > limits.long_entries;
    RowWork w = WorkOf(a, b, row, begin, is_long ? begin : end, lane, kLanesPerRow, count_runs);
    w.JoinLanes<kLanesPerRow>();
    if (lane == 0 && !is_long && row < a.rows) note(row, end - begin, w);
    if (threadIdx.x == 0) long_count = 0;
    if (!__syncthreads_or(is_long)) continue;
    if (lane == 0 && is_long) long_rows[atomicAdd(&long_count, 1)] = static_cast<int32_t>(row);
    __syncthreads();
    const int count = long_count;
    for (int n = 0; n < count; ++n) {
      const int64_t row_begin = a.row_offsets[long_rows[n]], row_end = a.row_offsets[long_rows[n] + 1];
      RowWork part = WorkOf(a, b, long_rows[n], row_begin, row_end, threadIdx.x, kThreads, count_runs);
      part.JoinLanes<32>();
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int p = 1; p < kWarps; ++p) part.Join(parts[p]);
        note(long_rows[n], row_end - row_begin, part);
      }
      __syncthreads();
    }
  }
  __shared__ unsigned long long sums[kSums][kWarps];
#pragma unroll
  for (int n = 0; n < kSums; ++n) {
    for (int offset = 16; offset > 0; offset /= 2) sum[n] += __shfl_xor_sync(kAll, sum[n], offset);
    if (threadIdx.x % 32 == 0) sums[n][threadIdx.x / 32] = sum[n];
  }
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  unsigned long long of_block = 0;
  for (int w = 0; w < kWarps; ++w) of_block += sums[threadIdx.x][w];
  unsigned long long* const to = threadIdx.x == 0   ? &counters->products
                                 : threadIdx.x == 1 ? &counters->max_entries
                                                    : &counters->tiles.runs[0];
  if (of_block > 0) atomicAdd(to, of_block);
}

// Lists of the rows of the pattern's classes: near ones from the front of `near`, middle ones from its back, far ones
// and those for blocks from those of `far`. Marks the heavy ones, of a run of equal patterns all or none.
__global__ void ClassifyKernel(ConstPatternView a, const Span* spans, RowLimits limits, Counters* counters,
                               uint8_t* kinds, Task* near, int32_t* far) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  int of_class = row < a.rows ? kinds[row] & kClassMask : kNone, group = 1;
  if (of_class == kNear || of_class == kMiddle || of_class == kFar) {
    const bool in_run = kinds[row] & kSame || (row + 1 < a.rows && kinds[row + 1] & kSame);
    if (spans[row].products >= (in_run ? limits.heavy_products_in_run : limits.heavy_products) ||
        a.row_offsets[row + 1] - a.row_offsets[row] >= kHeavyEntries) {
      if (of_class != kFar) of_class = kBlock;
      kinds[row] = (kinds[row] & ~kClassMask) | of_class | kHeavy;
    } else if (of_class != kFar) {
      group = GroupFrom(kinds, static_cast<int32_t>(row), a.rows);
    }
  }
  if (of_class == kNone || of_class == kTiled || group == 0) of_class = -1;
  const unsigned place = Reserve<kPatternClasses>(of_class, 1, counters->pattern_rows);
  const Task task = {static_cast<int32_t>(row), group};
  if (of_class == kNear) near[place] = task;
  if (of_class == kMiddle) near[a.rows - 1 - place] = task;
  if (of_class == kFar) far[place] = task.row;
  if (of_class == kBlock) far[a.rows - 1 - place] = task.row;
}

}  // namespace

int64_t PatternWorkspaceBytes(int64_t rows) {
  return Arena::Rounded(rows * sizeof(Span)) + Arena::Rounded(rows * sizeof(Task)) +
         Arena::Rounded(rows * sizeof(int32_t));
}

absl::StatusOr<PatternWorkspace> MakePatternWorkspace(const ExecContext& ctx, int64_t rows, Counters* counters) {
  PatternWorkspace w;
  w.counters = counters;
  INTRAWARP_ASSIGN_OR_RETURN(w.spans, ctx.arena().Allocate<Span>(rows));
  INTRAWARP_ASSIGN_OR_RETURN(w.near, ctx.arena().Allocate<Task>(rows));
  INTRAWARP_ASSIGN_OR_RETURN(w.far, ctx.arena().Allocate<int32_t>(rows));
  return w;
}

absl::Status Analyse(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b, Counters* counters,
                     Span* spans, uint8_t* kinds, int64_t* offsets, bool count_runs) {
  constexpr int kRows = kThreads / kLanesPerRow;
  return Launcher(ctx).AtMost(16, AnalyseKernel, a.rows, kRows, kThreads, 0, a, b, RowLimitsOf(a), counters, spans,
                              kinds, offsets, count_runs);
}

absl::Status ClassifyRows(const ExecContext& ctx, const ConstPatternView& a, const PatternWorkspace& w,
                          uint8_t* kinds) {
  ClassifyKernel<<<BlocksFor(a.rows), kThreads, 0, CudaStream(ctx)>>>(a, w.spans, RowLimitsOf(a), w.counters, kinds,
                                                                      w.near, w.far);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
