// SPDX-License-Identifier: Apache-2.0
// The values of a product by scalars on CUDA, of rows whose columns are known. Internal to multiply_cuda.cu.
//
// Rows of few products are merged again. Any other is a warp's, whole or in segments: a bitmap of its columns with the
// rank of each word (a hash table where columns are few and far apart) leads from a column to its sum in shared memory.
// The warp walks the rows of B one at a time, whose entries never meet, or, where they are short, all products in
// order, 32 at a time: lanes that meet at one sum take turns. So sums have one order: fma(a, b, sum), from 0, k
// ascending. Rows with the same pattern share the walk. A heavy row, and one of many entries of C far apart, is a
// block's: its warps take turns with the entries of A, with sums of their own, which are added in order.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_VALUES_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_VALUES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/multiply_device.cuh"
#include "engine/sparse/multiply_finish.h"

namespace intrawarp::cuda {

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

// Whether the columns of rows of few products are left to the plan's one execution.
inline bool LeavesColumns(const MultiplyPlan& plan) {
  return MultiplyPlanAccess::Once(plan) && !NeedsFinish(plan.options());
}

// The values of rows that do not go by tiles, and the columns that were left.
absl::Status ExecuteRows(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                         void* values);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_VALUES_H_
