// SPDX-License-Identifier: Apache-2.0
// The pattern of a product by scalars: how many entries each row of C has, and in which columns. Internal to
// engine/sparse/cuda.
//
// One thread merges the rows of B for a row with few multiplications. For any other row, a warp or a block sets the
// bits of a bitmap over the columns between the row's first and last. A warp does it in shared memory when these
// columns lie close together; a block when they don't, window of columns by window, or when the row is heavy. A summary
// says which words of a large bitmap are in use. The bits are counted as they are set; once the offsets are known, the
// bitmap is made again and written out as columns, which come out sorted. Up to three consecutive rows of A with one
// pattern (unknowns of one node) have one pattern in C, which is made once.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_PATTERN_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_PATTERN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/cuda/analysis.h"

namespace intrawarp::cuda::spgemm {

// Writes the number of entries of each row that has multiplications, is not kTiled and is not counted yet to `entries`;
// makes the kinds final (ClassifyRows). `counted`: tiny and short rows are. Does not wait.
absl::Status CountPattern(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          const PatternWorkspace& w, bool counted, uint8_t* kinds, int64_t* entries);

// Writes the columns of these rows. `rows` is the number of rows of each pattern class; a class of 0 is left out. Does
// not wait.
absl::Status FillPattern(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                         const PatternWorkspace& w, const unsigned* rows, const uint8_t* kinds, const int64_t* offsets,
                         int32_t* indices);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_PATTERN_H_
