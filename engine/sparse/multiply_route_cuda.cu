// SPDX-License-Identifier: Apache-2.0
#include "engine/sparse/multiply_route.h"

namespace intrawarp::cuda {
namespace {

const auto ProductPattern = MultiplyPlanAccess::ProductPattern;

constexpr size_t kSegmentsAt = Arena::kAlignment;  // in their buffer, behind their numbers

Route RouteIn(const Buffer& buffer, int32_t rows) {
  char* p = buffer.as<char>();
  const auto take = [&p](size_t bytes) {
    char* const taken = p;
    p += Arena::Rounded(bytes);
    return taken;
  };
  Route route;
  route.rows = rows;
  route.lists = reinterpret_cast<int32_t*>(take(int64_t{rows} * Route::kLists * sizeof(int32_t)));
  for (Task*& list : route.groups) list = reinterpret_cast<Task*>(take(rows / 2 * sizeof(Task)));
  route.kinds = reinterpret_cast<uint8_t*>(take(rows));
  return route;
}

// A row in segments has more than 1024 entries or more bits than kLargestBytes; each segment but its last is full of
// entries or of columns.
int64_t MaxSegments(int64_t split_rows, int64_t columns, int64_t entries, int value_bytes) {
  return split_rows * (columns / (kSplitWords * int64_t{32} - 31) + 2) + entries / SplitEntries(value_bytes) + 1;
}

// The class that makes rows of `of_class`, too: few rows are better made in one launch.
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

// The sum of `value` over the block's threads before this one, and over all of them.
__device__ int64_t BlockExclusiveScan(int64_t value, int64_t* total) {
  __shared__ int64_t sums[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t ends = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int64_t below = __shfl_up_sync(kAll, ends, offset);
    if (lane >= offset) ends += below;
  }
  if (lane == 31) sums[warp] = ends;
  __syncthreads();
  int64_t before = ends - value, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += sums[w];
    all += sums[w];
  }
  *total = all;
  return before;
}

// What the blocks before `block` have, by looking back at what they published (Merrill and Garland 2016): a sum of
// theirs, or of them and all before them. A warp.
constexpr unsigned long long kOwnSum = 1ull << 62, kWholeSum = 2ull << 62, kSumMask = kOwnSum - 1;
__device__ int64_t SumBefore(volatile unsigned long long* states, int64_t block) {
  const int lane = threadIdx.x % 32;
  int64_t sum = 0;
  for (int64_t last = block - 1; last >= 0; last -= 32) {
    const int64_t mine = last - lane;
    unsigned long long state = mine >= 0 ? 0 : kWholeSum;
    while (mine >= 0 && state == 0) state = states[mine];
    __syncwarp();
    const unsigned whole = __ballot_sync(kAll, state >= kWholeSum);
    const int stop = whole == 0 ? 31 : __ffs(whole) - 1;
    int64_t part = lane <= stop ? static_cast<int64_t>(state & kSumMask) : 0;
    for (int offset = 16; offset > 0; offset /= 2) part += __shfl_xor_sync(kAll, part, offset);
    sum += part;
    if (whole != 0) break;
  }
  return sum;
}

// Turns entries of rows into offsets; one block after another takes kThreads rows, which tells it where it stands.
__device__ int64_t ScanRows(int32_t rows, Counters* counters, int64_t* offsets, int64_t* entries) {
  __shared__ int64_t before_block;
  __shared__ unsigned block;
  volatile unsigned long long* const states = reinterpret_cast<unsigned long long*>(counters + 1);
  if (threadIdx.x == 0) block = atomicAdd(&counters->next_scan, 1u);
  __syncthreads();
  const int64_t row = int64_t{block} * kThreads + threadIdx.x;
  *entries = row < rows ? offsets[row] : 0;
  int64_t total = 0;
  const int64_t before = BlockExclusiveScan(*entries, &total);
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

// The last block to come here writes the counters to the host's memory.
__device__ void CountersToHost(Counters* counters, HostCounters* on_host) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(&counters->routed, 1u) == gridDim.x - 1;
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

__global__ void RouteKernel(const Span* spans, int32_t rows, int value_bytes, Counters* counters, Route route,
                            int64_t* offsets, HostCounters* on_host) {
  int64_t entries = 0;
  const int64_t row = ScanRows(rows, counters, offsets, &entries);
  const int kind = row < rows ? route.kinds[row] & kClassMask : kNone;
  int of_class = -1, group = 1;
  if (kind == kNear || kind == kMiddle || kind == kBlock || kind == kFar) {
    const int64_t words = spans[row].last / 32 - spans[row].first / 32 + 1;
    of_class = route.kinds[row] & kHeavy ? HeavyClassOf(words, entries, value_bytes)
                                         : ValueClassOf(words, entries, 1, value_bytes);
    if ((kind == kNear || kind == kMiddle) && BytesOfBits(words, kGroup * entries, value_bytes) <= kLargestBytes) {
      group = GroupFrom(route.kinds, static_cast<int32_t>(row), rows);
      of_class = group == 0 ? -1 : ValueClassOf(words, entries, group == 1 ? 1 : kGroup, value_bytes);
    }
  }
  constexpr int kFewRows = 12000;
  if (rows <= kFewRows) of_class = JointClass(of_class);
  const unsigned place = Reserve<kValueClasses>(of_class, 1, counters->value_rows);
  CountersToHost(counters, on_host);
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

}  // namespace

Route RouteOf(const MultiplyPlan& plan) { return RouteIn(MultiplyPlanAccess::Route(plan), plan.pattern().rows); }

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

int64_t RouteBytes(int64_t rows) {
  return Arena::Rounded(Route::kLists * rows * sizeof(int32_t)) + 2 * Arena::Rounded(rows / 2 * sizeof(Task)) +
         Arena::Rounded(rows);
}
uint8_t* RowKindsIn(const Buffer& route, int32_t rows) { return RouteIn(route, rows).kinds; }

absl::Status RouteRows(const ExecContext& ctx, const Span* spans, int32_t rows, ValueType type, Counters* counters,
                       const Buffer& route, int64_t* offsets, HostCounters* on_host) {
  RouteKernel<<<BlocksFor(rows), kThreads, 0, CudaStream(ctx)>>>(spans, rows, static_cast<int>(BytesPerValue(type)),
                                                                 counters, RouteIn(route, rows), offsets, on_host);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t MostSegmentBytes(const ConstPatternView& a, const ConstPatternView& b, int64_t products, int64_t entries,
                         ValueType type) {
  const int value_bytes = static_cast<int>(BytesPerValue(type));
  const int64_t split_rows = std::min<int64_t>(a.rows, entries / TableEntries(kTable1024));
  const int64_t heavy_rows =
      std::min<int64_t>(a.rows, a.entries / kHeavyEntries + products / RowLimitsOf(a).heavy_products);
  if (split_rows + heavy_rows == 0) return 0;
  return kSegmentsAt + sizeof(Segment) * (MaxSegments(split_rows, b.columns, entries, value_bytes) +
                                          MaxSegments(heavy_rows, b.columns, entries, value_bytes));
}

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

}  // namespace intrawarp::cuda
