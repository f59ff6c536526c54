// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/cuda/carver.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/row_bins.h"
#include "engine/sparse/cuda/row_lists.cuh"
#include "engine/sparse/cuda/row_scan.cuh"

namespace intrawarp::cuda::spgemm {
namespace {

RowBinsView Carve(Carver& carver, int32_t rows) {
  RowBinsView view;
  view.rows = rows;
  view.lists = carver.Take<int32_t>(int64_t{rows} * RowBinsView::kLists);
  for (RowGroup*& list : view.groups) list = carver.Take<RowGroup>(rows / 2);
  view.kinds = carver.Take<uint8_t>(rows);
  return view;
}

// The larger class that can take the rows of `of_class`, too: few rows are computed faster in one launch.
__device__ int JointClass(int of_class) {
  switch (of_class) {
    case kBits6144:
      return kBits10240;
    case kGroup6144:
      return kGroup10240;
    case kTable128:
      return kTable512;
    case kHeavy640:
      return kHeavy1280;
    default:
      return of_class;
  }
}

// `far`: whether the columns are too far apart for a bitmap.
__device__ int ValueClassOf(int64_t words, int64_t entries, int rows, int value_bytes, bool far) {
  if (far && entries <= BlockEntries(kTableBlock4096, value_bytes)) {
    if (entries > BlockEntries(kTableBlock2048, value_bytes)) return kTableBlock4096;
    if (entries > TableEntries(kTable1024)) return kTableBlock2048;
    return entries <= TableEntries(kTable128) ? kTable128 : entries <= TableEntries(kTable512) ? kTable512 : kTable1024;
  }
  const int64_t bytes = BytesOfBits(words, entries * rows, value_bytes);
  if (rows > 1) return bytes <= 6144 ? kGroup6144 : bytes <= 10240 ? kGroup10240 : kGroupLargest;
  if (bytes <= 6144) return bytes <= 4096 ? kBits4096 : kBits6144;
  return bytes <= 10240 ? kBits10240 : bytes <= kLargestBytes ? kBitsLargest : kSplit;
}

__device__ int HeavyClassOf(int64_t words, int64_t entries, int value_bytes) {
  if (words > kMiddleWords || entries > BlockEntries(kHeavy1280, value_bytes)) return kSplitHeavy;
  return entries <= BlockEntries(kHeavy640, value_bytes) ? kHeavy640 : kHeavy1280;
}

// Turns the entries of each row into offsets. Returns this thread's row, with its number of entries. `counts`, unless
// it is null, has the entries of rows that are tiny or short.
__device__ int64_t ScanRows(int32_t rows, const uint8_t* kinds, const uint16_t* counts, Counters* counters,
                            int64_t* offsets, int64_t* entries) {
  const unsigned block = TakeBlock(&counters->next_scan);
  const int64_t row = int64_t{block} * kThreads + threadIdx.x;
  *entries = row < rows ? offsets[row] : 0;
  if (counts != nullptr && row < rows) {
    const int kind = kinds[row] & kClassMask;
    if (kind == kNone || kind == kTiny || kind == kShort) *entries = counts[row];
  }
  const int64_t before = SumBeforeThread(*entries, block, reinterpret_cast<unsigned long long*>(counters + 1));
  if (row < rows) offsets[row] = before;
  if (row == rows - 1) counters->entries = offsets[rows] = before + *entries;
  return row;
}

__global__ void BinKernel(const RowExtent* extents, const uint16_t* counts, int32_t rows, int value_bytes,
                          Accumulators accumulators, Counters* counters, RowBinsView bins, int64_t* offsets,
                          HostCounters* on_host) {
  int64_t entries = 0;
  const int64_t row = ScanRows(rows, bins.kinds, counts, counters, offsets, &entries);
  const int kind = row < rows ? bins.kinds[row] & kClassMask : kNone;
  int of_class = -1, group = 1;
  if (kind == kNear || kind == kMiddle || kind == kBlock || kind == kFar) {
    const int64_t words = extents[row].last / 32 - extents[row].first / 32 + 1;
    const bool far =
        accumulators == Accumulators::kBySize ? words > kMiddleWords : accumulators == Accumulators::kTables;
    of_class = bins.kinds[row] & kHeavy ? HeavyClassOf(words, entries, value_bytes)
                                        : ValueClassOf(words, entries, 1, value_bytes, far);
    const bool in_groups = !far && (kind == kNear || kind == kMiddle);
    if (in_groups && BytesOfBits(words, kGroupRows * entries, value_bytes) <= kLargestBytes) {
      group = GroupSize(bins.kinds, static_cast<int32_t>(row), rows);
      of_class = group == 0 ? -1 : ValueClassOf(words, entries, group == 1 ? 1 : kGroupRows, value_bytes, far);
    }
  }
  constexpr int kFewRows = 12000;
  if (rows <= kFewRows) of_class = JointClass(of_class);
  const unsigned place = ReservePlaces<kValueClasses>(of_class, 1, counters->value_rows);
  CountersToHost(counters, &counters->binned, on_host);
  if (of_class < 0) return;
  if (group > 1) {
    *bins.GroupAt(of_class, place) = {static_cast<int32_t>(row), group};
  } else {
    *bins.RowAt(of_class, place) = static_cast<int32_t>(row);
  }
}

}  // namespace

int64_t RowBins::Bytes(int32_t rows) {
  Carver carver;
  Carve(carver, rows);
  return carver.bytes();
}

absl::StatusOr<RowBins> RowBins::Allocate(const ExecContext& ctx, int32_t rows) {
  RowBins bins;
  bins.rows = rows;
  INTRAWARP_ASSIGN_OR_RETURN(bins.memory, ctx.device().Allocate(Bytes(rows), ctx.stream()));
  return bins;
}

void RowBins::SetLengths(const Counters& counters) {
  std::copy_n(counters.value_rows, kValueClasses, lengths.begin());
  tiny_rows = counters.pattern_rows[kTiny];
}

RowBinsView RowBins::view() const {
  Carver carver(memory);
  return Carve(carver, rows);
}

int64_t RowBins::GroupedRows() const {
  return kGroupRows * (int64_t{lengths[kGroup6144]} + lengths[kGroup10240] + lengths[kGroupLargest]);
}

absl::Status BinRows(const ExecContext& ctx, const RowBinsView& bins, const RowExtent* extents, const uint16_t* counts,
                     ValueType type, Accumulators accumulators, Counters* counters, int64_t* offsets,
                     HostCounters* on_host) {
  BinKernel<<<BlocksFor(bins.rows), kThreads, 0, CudaStream(ctx)>>>(extents, counts, bins.rows,
                                                                    static_cast<int>(BytesPerValue(type)), accumulators,
                                                                    counters, bins, offsets, on_host);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda::spgemm
