// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/sparse/cuda/carver.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/row_bins.h"
#include "engine/sparse/cuda/row_lists.cuh"

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

__device__ int ValueClassOf(int64_t words, int64_t entries, int rows, int value_bytes) {
  if (words > kMiddleWords && entries <= BlockEntries(kTableBlock4096, value_bytes)) {
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

// The sum over all blocks before `block`, by decoupled look-back (Merrill and Garland 2016): each block publishes its
// own sum, then the whole sum up to its end. One warp calls it.
constexpr unsigned long long kOwnSum = 1ull << 62, kWholeSum = 2ull << 62, kSumMask = kOwnSum - 1;
__device__ int64_t SumBefore(volatile unsigned long long* states, int64_t block) {
  const int lane = threadIdx.x % 32;
  int64_t sum = 0;
  for (int64_t last = block - 1; last >= 0; last -= 32) {
    const int64_t mine = last - lane;
    unsigned long long state = mine >= 0 ? 0 : kWholeSum;
    while (mine >= 0 && state == 0) state = states[mine];
    __syncwarp();
    const unsigned whole = __ballot_sync(kAllLanes, state >= kWholeSum);
    const int stop = whole == 0 ? 31 : __ffs(whole) - 1;
    const int64_t part = lane <= stop ? static_cast<int64_t>(state & kSumMask) : 0;
    sum += WarpSumAll(part);
    if (whole != 0) break;
  }
  return sum;
}

// Turns the entries of each row into offsets. A block takes the next kThreads rows when it starts, so that the blocks
// that it looks back at have started, too. Returns this thread's row, with its number of entries.
__device__ int64_t ScanRows(int32_t rows, Counters* counters, int64_t* offsets, int64_t* entries) {
  __shared__ int64_t before_block, sums[kWarps];
  __shared__ unsigned block;
  volatile unsigned long long* const states = reinterpret_cast<unsigned long long*>(counters + 1);
  if (threadIdx.x == 0) block = atomicAdd(&counters->next_scan, 1u);
  __syncthreads();
  const int64_t row = int64_t{block} * kThreads + threadIdx.x;
  *entries = row < rows ? offsets[row] : 0;
  int64_t total = 0;
  const int64_t before = BlockExclusiveScan<kWarps>(*entries, sums, &total);
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0 && block > 0) states[block] = kOwnSum | static_cast<unsigned long long>(total);
    const int64_t sum = SumBefore(states, block);
    if (threadIdx.x == 0) {
      states[block] = kWholeSum | static_cast<unsigned long long>(sum + total);
      before_block = sum;
    }
  }
  __syncthreads();
  if (row < rows) offsets[row] = before_block + before;
  if (row == rows - 1) counters->entries = offsets[rows] = before_block + before + *entries;
  return row;
}

// The last block that calls it writes the counters to the host's memory.
__device__ void CountersToHost(Counters* counters, HostCounters* on_host) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&counters->binned, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  constexpr int kWords = sizeof(Counters) / sizeof(unsigned);
  const auto* const from = reinterpret_cast<const unsigned*>(counters);
  auto* const to = reinterpret_cast<unsigned*>(&on_host->counters);
  for (int w = threadIdx.x; w < kWords; w += kThreads) to[w] = __ldcg(from + w);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *static_cast<volatile unsigned*>(&on_host->ready) = 1;
}

__global__ void BinKernel(const RowExtent* extents, int32_t rows, int value_bytes, Counters* counters, RowBinsView bins,
                          int64_t* offsets, HostCounters* on_host) {
  int64_t entries = 0;
  const int64_t row = ScanRows(rows, counters, offsets, &entries);
  const int kind = row < rows ? bins.kinds[row] & kClassMask : kNone;
  int of_class = -1, group = 1;
  if (kind == kNear || kind == kMiddle || kind == kBlock || kind == kFar) {
    const int64_t words = extents[row].last / 32 - extents[row].first / 32 + 1;
    of_class = bins.kinds[row] & kHeavy ? HeavyClassOf(words, entries, value_bytes)
                                        : ValueClassOf(words, entries, 1, value_bytes);
    if ((kind == kNear || kind == kMiddle) && BytesOfBits(words, kGroupRows * entries, value_bytes) <= kLargestBytes) {
      group = GroupSize(bins.kinds, static_cast<int32_t>(row), rows);
      of_class = group == 0 ? -1 : ValueClassOf(words, entries, group == 1 ? 1 : kGroupRows, value_bytes);
    }
  }
  constexpr int kFewRows = 12000;
  if (rows <= kFewRows) of_class = JointClass(of_class);
  const unsigned place = ReservePlaces<kValueClasses>(of_class, 1, counters->value_rows);
  CountersToHost(counters, on_host);
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

int64_t RowBins::MergedAndGroupedRows() const {
  const int64_t groups = int64_t{lengths[kGroup6144]} + lengths[kGroup10240] + lengths[kGroupLargest];
  return tiny_rows + kGroupRows * groups;
}

absl::Status BinRows(const ExecContext& ctx, const RowBinsView& bins, const RowExtent* extents, ValueType type,
                     Counters* counters, int64_t* offsets, HostCounters* on_host) {
  BinKernel<<<BlocksFor(bins.rows), kThreads, 0, CudaStream(ctx)>>>(
      extents, bins.rows, static_cast<int>(BytesPerValue(type)), counters, bins, offsets, on_host);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda::spgemm
