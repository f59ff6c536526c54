// SPDX-License-Identifier: Apache-2.0
// The pattern of a product by scalars on CUDA: how much work rows are, how many entries they have, which columns.
// Internal to multiply_cuda.cu.
//
// A row with few products is merged from its rows of B by one thread. Any other is a bitmap over the columns between
// its first and its last: of a warp in shared memory when they lie close together, of a block when they don't or when
// the row is heavy, with a summary of the words in use, window of columns by window. Bits are counted as they are set,
// and made again, once the offsets are known, to be written as columns, sorted as they are. Up to three consecutive
// rows of A that have the same pattern (unknowns of one node) have the same pattern in C, which is made once.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_PATTERN_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_PATTERN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/multiply_analysis.h"

namespace intrawarp::cuda {

// The entries of rows with products that are not kTiled, by row; their kinds become final.
absl::Status CountPattern(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                          const PatternWorkspace& w, uint8_t* kinds, int64_t* entries);

// Their columns; `rows` by class as the counters say.
absl::Status FillPattern(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                         const PatternWorkspace& w, const unsigned* rows, const uint8_t* kinds, const int64_t* offsets,
                         int32_t* indices);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_PATTERN_H_
