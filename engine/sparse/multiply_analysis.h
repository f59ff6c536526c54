// SPDX-License-Identifier: Apache-2.0
// How much work the rows of a product are on CUDA, and in which class of rows each is. Internal to multiply_*_cuda.cu.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_ANALYSIS_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_ANALYSIS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/multiply_device.cuh"

namespace intrawarp::cuda {

// What the pattern is made with, in the arena. `near` holds near rows' tasks from its front, middle ones' from its
// back, `far` far rows from its front, blocks' from its back.
struct PatternWorkspace {
  Counters* counters;
  Span* spans;
  Task* near;
  int32_t* far;
};
int64_t PatternWorkspaceBytes(int64_t rows);
absl::StatusOr<PatternWorkspace> MakePatternWorkspace(const ExecContext& ctx, int64_t rows, Counters* counters);

// Products; spans and kinds of rows, and 0 entries of those without products, where those are not null; runs of entries
// of A in one tile where they are asked for. Counters must be 0. Nothing here waits.
absl::Status Analyse(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b, Counters* counters,
                     Span* spans, uint8_t* kinds, int64_t* entries, bool count_runs);

// Makes kinds final and fills the lists of classes, but for rows that have become kTiled.
absl::Status ClassifyRows(const ExecContext& ctx, const ConstPatternView& a, const PatternWorkspace& w, uint8_t* kinds);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_ANALYSIS_H_
