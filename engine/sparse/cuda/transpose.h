// SPDX-License-Identifier: Apache-2.0
// The transpose of a pattern, and the permutation that brings values into its order. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_TRANSPOSE_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_TRANSPOSE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"

namespace intrawarp::cuda::spgemm {

// The arrays of a Transpose, for kernels.
struct TransposeView {
  int64_t* offsets;
  int32_t* indices;
  int32_t* positions;  // the entry of the matrix that each entry of the transpose is
};

// The part of a plan that holds A^T; empty when op(A) is A.
struct Transpose {
  Buffer memory;
  int32_t rows = 0, columns = 0;  // of the transpose
  int64_t entries = 0;

  static int64_t Bytes(const ConstPatternView& m);
  // Arena bytes of MakeTranspose.
  static absl::StatusOr<int64_t> WorkspaceBytes(const ConstPatternView& m);
  TransposeView view() const;
  ConstPatternView pattern() const;
  int64_t bytes() const { return static_cast<int64_t>(memory.bytes()); }
};

// UNIMPLEMENTED above 2^31 - 1 entries, which the positions have no bits for.
absl::Status CheckTranspose(const ConstPatternView& m);

// The transpose of `m`; the sort is stable, so that columns come out sorted. The errors of CheckTranspose, before
// memory is taken; RESOURCE_EXHAUSTED. Does not wait.
absl::StatusOr<Transpose> MakeTranspose(const ExecContext& ctx, const ConstPatternView& m);

// Copies the values of `m` into `values`, in the order of its transpose. Does not wait.
absl::Status TransposeValues(const ExecContext& ctx, const Transpose& transpose, const ConstCsrView& m, void* values);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_TRANSPOSE_H_
