// SPDX-License-Identifier: Apache-2.0
// Which rows of a product by scalars go which way on CUDA, once their entries are counted, and the pieces that long
// rows are cut into. Internal to multiply_*_cuda.cu.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_ROUTE_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_ROUTE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/multiply_device.cuh"

namespace intrawarp::cuda {

// Lists of the value classes: two to an array, from its front and from its back. A row is in one list at most.
struct Route {
  static constexpr int kLists = (kRowLists + 1) / 2;
  int32_t* lists;  // kLists arrays of `rows`
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

// A plan's.
Route RouteOf(const MultiplyPlan& plan);

// The memory of a route: which rows go which way. `kinds` of rows are part of it.
int64_t RouteBytes(int64_t rows);
uint8_t* RowKindsIn(const Buffer& route, int32_t rows);

// From the entries of each row in `offsets`, the offsets of C, and counters->entries; the route's lists and their
// lengths, from kinds and spans. Behind the counters lie the states of CountersBytes, 0. The counters are written to
// `on_host`, page-locked memory, too. Does not wait.
absl::Status RouteRows(const ExecContext& ctx, const Span* spans, int32_t rows, ValueType type, Counters* counters,
                       const Buffer& route, int64_t* offsets, HostCounters* on_host);

// Cuts long rows of a plan whose lengths and columns are known into segments, in a buffer that it allocates where there
// are such rows; the most bytes that it takes.
absl::Status MakeSegments(const ExecContext& ctx, const MultiplyPlan& plan, Buffer* buffer);
int64_t MostSegmentBytes(const ConstPatternView& a, const ConstPatternView& b, int64_t products, int64_t entries,
                         ValueType type);

// The segments of a plan: of kSplit, of kSplitHeavy.
struct Segments {
  unsigned* lengths;
  Segment* lists[2];
  int64_t most[2];
};

Segments SegmentsIn(const MultiplyPlan& plan);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_ROUTE_H_
