// SPDX-License-Identifier: Apache-2.0
#include <climits>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/warp.cuh"
#include "engine/sparse/cuda/analysis.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/masked.h"
#include "engine/sparse/cuda/row_lists.cuh"
#include "engine/sparse/cuda/row_work.cuh"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {
namespace {

constexpr int kLanesPerRow = 8;
// Sums stop here; all blocks together then stay below 2^64 (see MultiplyEstimate).
constexpr unsigned long long kMostCounted = MultiplyEstimate::kMostCounted;
constexpr int kBlocksPerMultiprocessor = 16;

// The sums of a kernel over all rows, and where each goes.
constexpr int kRowSums = 3, kMaskSums = 4;
__device__ unsigned long long* SumOf(Counters* counters, int n) {
  switch (n) {
    case 0:
      return &counters->multiplications;
    case 1:
      return &counters->max_entries;
    case 2:
      return &counters->tiles.runs[0];
    case 3:
      return &counters->mask.tiny_multiplications;
    case 4:
      return &counters->mask.visits;
    case 5:
      return &counters->mask.pieces;
    default:
      return &counters->mask.whole_entries;
  }
}

// Puts the work of a row under a mask's row of `mask_entries` behind the kRowSums sums of the row.
__device__ void MeasureMasked(const RowWork& w, int64_t a_entries, unsigned long long mask_entries,
                              const RowLimits& limits, unsigned long long* of_row) {
  const bool is_tiny = w.multiplications <= limits.tiny_multiplications && a_entries <= kTinyEntries;
  const int most = a_entries >= kHeavyEntries ? kBlockPiece : kWarpPiece;
  const unsigned long long pieces = a_entries > 0 ? (mask_entries + most - 1) / most : 0;
  const unsigned long long span = w.multiplications > 0 ? int64_t{w.last} - w.first + 1 : 0;
  of_row[kRowSums] = is_tiny ? w.multiplications : 0;
  of_row[kRowSums + 1] = pieces * a_entries;
  of_row[kRowSums + 2] = pieces;
  of_row[kRowSums + 3] = min(w.multiplications, span);
}

// Finds multiplications, extent and kind of each row; eight lanes take a row, a block takes a long row. `extents`,
// `kinds` and `offsets` may be null; `mask_offsets` is null unless kMasked.
template <bool kMasked>
__global__ void __launch_bounds__(kThreads, 5)
    AnalyseKernel(ConstPatternView a, ConstPatternView b, RowLimits limits, Counters* counters, RowExtent* extents,
                  uint8_t* kinds, int64_t* offsets, const int64_t* mask_offsets, bool count_runs) {
  constexpr int kRows = kThreads / kLanesPerRow, kSums = kMasked ? kRowSums + kMaskSums : kRowSums;
  __shared__ int32_t long_rows[kRows];
  __shared__ int long_count;
  __shared__ RowWork parts[kWarps];
  const int lane = threadIdx.x % kLanesPerRow;
  const unsigned long long columns = b.columns;
  // The sums of this thread's rows. A row adds less than 2^62.
  unsigned long long sum[kSums] = {};
  const auto note = [&](int64_t row, int64_t a_entries, const RowWork& w) {
    const unsigned long long most = kMasked ? mask_offsets[row + 1] - mask_offsets[row] : columns;
    unsigned long long of_row[kSums] = {w.multiplications, min(w.multiplications, most), w.runs};
    if constexpr (kMasked) MeasureMasked(w, a_entries, most, limits, of_row);
#pragma unroll
    for (int n = 0; n < kSums; ++n) sum[n] = min(sum[n] + of_row[n], kMostCounted);
    if (kinds == nullptr) return;
    const RowExtent extent = {w.first, w.last,
                              static_cast<unsigned>(min(w.multiplications, static_cast<unsigned long long>(UINT_MAX)))};
    if (w.multiplications == 0) offsets[row] = 0;
    extents[row] = extent;
    kinds[row] = ClassOf(extent, a_entries, limits.tiny_multiplications) | (w.same ? kSame : 0);
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
    sum[n] = WarpSumAll(sum[n]);
    if (threadIdx.x % 32 == 0) sums[n][threadIdx.x / 32] = sum[n];
  }
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  unsigned long long of_block = 0;
  for (int w = 0; w < kWarps; ++w) of_block += sums[threadIdx.x][w];
  if (of_block > 0) atomicAdd(SumOf(counters, threadIdx.x), min(of_block, kMostCounted));
}

// Lists the rows of the pattern classes as PatternWorkspace says, tiny rows unless they are `counted`. Marks heavy
// rows; of a run of rows with one pattern, either all rows are heavy or none.
__global__ void ClassifyKernel(ConstPatternView a, const RowExtent* extents, RowLimits limits, Counters* counters,
                               uint8_t* kinds, RowGroup* near, int32_t* far, bool counted) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  int of_class = row < a.rows ? kinds[row] & kClassMask : kNone, group = 1;
  if (of_class == kNear || of_class == kMiddle || of_class == kFar) {
    const bool in_run = kinds[row] & kSame || (row + 1 < a.rows && kinds[row + 1] & kSame);
    if (extents[row].multiplications >= (in_run ? limits.heavy_multiplications_in_run : limits.heavy_multiplications) ||
        a.row_offsets[row + 1] - a.row_offsets[row] >= kHeavyEntries) {
      if (of_class != kFar) of_class = kBlock;
      kinds[row] = (kinds[row] & ~kClassMask) | of_class | kHeavy;
    } else if (of_class != kFar) {
      group = GroupSize(kinds, static_cast<int32_t>(row), a.rows);
    }
  }
  if (of_class == kNone || of_class == kTiled || of_class == kShort || group == 0) of_class = -1;
  if (counted && of_class == kTiny) of_class = -1;
  const unsigned place = ReservePlaces<kPatternClasses>(of_class, 1, counters->pattern_rows);
  const RowGroup rows = {static_cast<int32_t>(row), group};
  if (of_class == kNear) near[place] = rows;
  if (of_class == kMiddle) near[a.rows - 1 - place] = rows;
  if (of_class == kFar) far[place] = rows.row;
  if (of_class == kBlock) far[a.rows - 1 - place] = rows.row;
}

}  // namespace

int64_t PatternWorkspaceBytes(int64_t rows) {
  return Arena::Rounded(CountersBytes(rows)) + Arena::Rounded(rows * sizeof(RowExtent)) +
         Arena::Rounded(rows * sizeof(RowGroup)) + Arena::Rounded(rows * sizeof(int32_t)) +
         Arena::Rounded(rows * sizeof(uint16_t));
}

absl::StatusOr<PatternWorkspace> MakePatternWorkspace(const ExecContext& ctx, int64_t rows) {
  PatternWorkspace w;
  INTRAWARP_ASSIGN_OR_RETURN(void* const zeroed, ctx.arena().AllocateBytes(CountersBytes(rows)));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(zeroed, 0, CountersBytes(rows), ctx.stream()));
  w.counters = static_cast<Counters*>(zeroed);
  INTRAWARP_ASSIGN_OR_RETURN(w.extents, ctx.arena().Allocate<RowExtent>(rows));
  INTRAWARP_ASSIGN_OR_RETURN(w.near, ctx.arena().Allocate<RowGroup>(rows));
  INTRAWARP_ASSIGN_OR_RETURN(w.far, ctx.arena().Allocate<int32_t>(rows));
  return w;
}

absl::Status Analyse(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b, Counters* counters,
                     RowExtent* extents, uint8_t* kinds, int64_t* offsets, const int64_t* mask_offsets,
                     bool count_runs) {
  constexpr int kRows = kThreads / kLanesPerRow;
  auto* const kernel = mask_offsets != nullptr ? AnalyseKernel<true> : AnalyseKernel<false>;
  return Launcher(ctx).LaunchCapped(kBlocksPerMultiprocessor, kernel, a.rows, kRows, kThreads, 0, a, b, RowLimitsOf(a),
                                    counters, extents, kinds, offsets, mask_offsets, count_runs);
}

absl::Status ClassifyRows(const ExecContext& ctx, const ConstPatternView& a, const PatternWorkspace& w, bool counted,
                          uint8_t* kinds) {
  ClassifyKernel<<<BlocksFor(a.rows), kThreads, 0, CudaStream(ctx)>>>(a, w.extents, RowLimitsOf(a), w.counters, kinds,
                                                                      w.near, w.far, counted);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda::spgemm
