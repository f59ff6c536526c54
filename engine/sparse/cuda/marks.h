// SPDX-License-Identifier: Apache-2.0
// The entries of a mask that are entries of C, one bit each, and the pattern that they make. Internal to
// engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_MARKS_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_MARKS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"

namespace intrawarp::cuda::spgemm {

// In the arena. The bits are by entries of the mask; `before` is the number of marks before each word of bits, once
// MakeMarkedPattern has counted them.
struct Marks {
  uint32_t* bits;
  int64_t* before;
  int64_t words;

  // A word more than full ones, so that the end of the mask has a rank, too.
  static int64_t WordsFor(int64_t mask_entries) { return mask_entries / 32 + 1; }
};

// Arena bytes of AllocateMarks, and of MakeMarkedPattern beside them.
int64_t MarksBytes(int64_t mask_entries);
absl::StatusOr<int64_t> MarkedPatternBytes(int64_t mask_entries);

// The bits are undefined.
absl::StatusOr<Marks> AllocateMarks(const ExecContext& ctx, const ConstPatternView& mask);

// The pattern of the marked entries. RESOURCE_EXHAUSTED. Waits for the device once.
absl::StatusOr<CsrPattern> MakeMarkedPattern(const ExecContext& ctx, const ConstPatternView& mask, const Marks& marks);

// A pattern without entries.
absl::StatusOr<CsrPattern> MakeEmptyPattern(const ExecContext& ctx, int32_t rows, int32_t columns);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_MARKS_H_
