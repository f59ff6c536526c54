// SPDX-License-Identifier: Apache-2.0
// The rounding of operands to reduced precisions. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ROUNDING_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ROUNDING_H_

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

// Bits of float32's significand that a precision rounds away; 0 for fp32 and fp64.
inline int DroppedBits(MultiplyPrecision precision) {
  switch (precision) {
    case MultiplyPrecision::kFp16:
    case MultiplyPrecision::kTf32:
      return 13;
    case MultiplyPrecision::kBf16:
      return 16;
    default:
      return 0;
  }
}

// The matrix with float32 values rounded to nearest, ties to even, in the arena. Does not wait.
absl::StatusOr<ConstCsrView> RoundValues(const ExecContext& ctx, ConstCsrView m, int dropped_bits);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ROUNDING_H_
