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

// Whether the columns of rows of few products are left to the plan's one execution.
inline bool LeavesColumns(const MultiplyPlan& plan) {
  return MultiplyPlanAccess::Once(plan) && !NeedsFinish(plan.options());
}

// The values of rows that do not go by tiles, and the columns that were left.
absl::Status ExecuteRows(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                         void* values);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_VALUES_H_
