// SPDX-License-Identifier: Apache-2.0
// The CUDA part of a plan: what each phase of planning leaves for the executions. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_PLAN_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/cuda/mask_add.h"
#include "engine/sparse/cuda/mask_selection.h"
#include "engine/sparse/cuda/masked.h"
#include "engine/sparse/cuda/reuse_plan.h"
#include "engine/sparse/cuda/row_bins.h"
#include "engine/sparse/cuda/row_pieces.h"
#include "engine/sparse/cuda/tiles.h"
#include "engine/sparse/cuda/transpose.h"
#include "engine/sparse/multiply.h"
#include "engine/sparse/multiply_kernels.h"

namespace intrawarp::cuda::spgemm {

// Each part owns its memory and is empty where the product has no use for it. multiply.cu fills the parts.
struct Plan final : DevicePlan {
  Plan(const MultiplyOptions& options, Executions executions) : options(options), executions(executions) {}

  int64_t bytes() const override {
    return transpose.bytes() + row_bins.bytes() + row_pieces.bytes() + tiles.bytes() + reuse.bytes() + masked.bytes() +
           selection.bytes() + mask_add.bytes();
  }
  absl::Status Execute(const ExecContext& ctx, const ConstPatternView& c, const ConstCsrView& a, const ConstCsrView& b,
                       void* values) const override;

  // Whether the one execution writes the columns of tiny and short rows, which planning leaves out.
  bool DefersColumns() const { return executions == Executions::kOnce && !IsMasked(options) && !NeedsMaskAdd(options); }

  MultiplyOptions options;
  Executions executions;
  Transpose transpose;
  RowBins row_bins;
  RowPieces row_pieces;
  TilePlan tiles;
  ReusePlan reuse;
  MaskedPieces masked;
  MaskSelection selection;
  MaskAdd mask_add;
};

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_PLAN_H_
