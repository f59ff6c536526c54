// SPDX-License-Identifier: Apache-2.0
// Measures the work of each row of a product and puts the row into a class. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ANALYSIS_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ANALYSIS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/cuda/counters.h"
#include "engine/sparse/cuda/row_classes.h"

namespace intrawarp::cuda::spgemm {

// Arena memory that the pattern is made with. `near` lists the groups of near rows from its front and of middle rows
// from its back, `far` lists far rows from its front and rows of kBlock from its back.
struct PatternWorkspace {
  Counters* counters;
  RowExtent* extents;
  RowGroup* near;
  int32_t* far;
};
// With room for the counts of CountShortRows.
int64_t PatternWorkspaceBytes(int64_t rows);
// The counters and the scan states behind them are zeroed.
absl::StatusOr<PatternWorkspace> MakePatternWorkspace(const ExecContext& ctx, int64_t rows);

// Counts multiplications and max_entries into `counters`, which must be 0. Unless `kinds` is null, also writes extents
// and kinds of rows, and 0 to `entries` of rows without multiplications. Unless `mask_offsets` is null, a row has as
// many entries as the mask's row at most, and counters->mask is counted, too. With count_runs, also counts the runs of
// entries of A in one tile. Does not wait.
absl::Status Analyse(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b, Counters* counters,
                     RowExtent* extents, uint8_t* kinds, int64_t* entries, const int64_t* mask_offsets,
                     bool count_runs);

// Marks heavy rows in `kinds` and lists the rows of each class, except kTiled and kShort rows, and tiny ones if they
// are `counted`. Does not wait.
absl::Status ClassifyRows(const ExecContext& ctx, const ConstPatternView& a, const PatternWorkspace& w, bool counted,
                          uint8_t* kinds);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ANALYSIS_H_
