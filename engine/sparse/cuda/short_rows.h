// SPDX-License-Identifier: Apache-2.0
// Short rows of a product: rows of C with few multiplications, whose pattern and values a warp makes in one go.
// Internal to engine/sparse/cuda.
//
// Where ShortRowsAreLikely, one kernel measures every row and counts the entries of those that are short
// (CountShortRows): with up to 32 multiplications each lane of a warp takes one and compares its column with the
// others; with more, the warp collects the columns in a hash table. If no row is long, this kernel is all the planning
// before the columns are written, and the host waits once. It hears of a long row while the kernel runs, so that the
// kernels for long rows follow without a gap. Then a warp or a block sorts the columns of a row in shared memory and
// adds the products: a warp by ascending k, as fma(a, b, sum) from 0; the warps of a block take turns with the entries
// of A, and their sums are added in order. A product that is planned and executed at once writes columns and values
// together. Tiny rows, where there are many rows, are merged by threads (merge.cuh).
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_SHORT_ROWS_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_SHORT_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/cuda/analysis.h"
#include "engine/sparse/cuda/row_bins.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

// Whether short rows are likely and worth a kernel of their own, judged by sizes: C has so many columns that other rows
// may be far (row_classes.h), rows have few entries, so that tiles are not tried, and a row has kLikelyMultiplications
// at most if all rows of B are alike. The path may decide instead.
constexpr int kLikelyMultiplications = 32;
bool ShortRowsAreLikely(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options);

// Counts the multiplications into the counters, which must be 0. Makes the kinds of all rows; the kinds of long rows
// are preliminary, and their extents are written (see Analyse). Lists the short rows in the bins, and writes the
// entries of all rows but the long ones to `counts`. Makes the offsets of C, as if long rows had no entries. Writes the
// counters to `on_host`, which is page-locked memory, and its long_rows as soon as there is a long row. Does not wait.
absl::Status CountShortRows(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                            const PatternWorkspace& w, const RowBinsView& bins, uint16_t* counts, int64_t* offsets,
                            HostCounters* on_host);

// Writes the columns of the short rows of C, whose offsets are known. Does not wait.
absl::Status FillShortRows(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                           const RowBins& bins, const ConstPatternView& c);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_SHORT_ROWS_H_
