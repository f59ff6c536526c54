// SPDX-License-Identifier: Apache-2.0
// The transpose of a pattern on CUDA, with the way of values into it. Internal to multiply_cuda.cu.
#ifndef INTRAWARP_ENGINE_SPARSE_MULTIPLY_TRANSPOSE_H_
#define INTRAWARP_ENGINE_SPARSE_MULTIPLY_TRANSPOSE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"

namespace intrawarp::cuda {

// Memory of the transpose of `m`, and arena bytes while it is made.
int64_t TransposeBytes(const ConstPatternView& m);
absl::StatusOr<int64_t> TransposeWorkspaceBytes(const ConstPatternView& m);

// Makes it in `memory`; stable, so that columns come out sorted. UNIMPLEMENTED above 2^31 - 1 entries. Does not wait.
absl::Status MakeTranspose(const ExecContext& ctx, const ConstPatternView& m, char* memory);

// The pattern in `memory`.
ConstPatternView TransposeIn(const char* memory, const ConstPatternView& m);

// Puts the values of `m` into `values`, in the order of the transpose in `memory`.
absl::Status TransposeValues(const ExecContext& ctx, const ConstCsrView& m, const char* memory, void* values);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_MULTIPLY_TRANSPOSE_H_
