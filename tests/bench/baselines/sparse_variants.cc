// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/sparse_variants.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::baselines {
namespace {

#if INTRAWARP_WITH_CUDA
class Ours : public SparseProduct {
 public:
  Ours(const ExecContext& ctx, SparseMethod method, Buffer workspace, const ConstCsrView& a, const ConstCsrView& b,
       const MultiplyOptions& options)
      : arena_(std::move(workspace)),
        ctx_(ctx.device(), ctx.stream(), arena_),
        method_(method),
        a_(a),
        b_(b),
        options_(options) {}

  absl::Status Prepare() override {
    if (method_ != SparseMethod::kOursValues) return absl::OkStatus();
    plan_.reset();
    values_ = Buffer();
    MultiplyOptions options = options_;
    options.many_executions = true;
    INTRAWARP_ASSIGN_OR_RETURN(plan_, PlanMultiply(ctx_, a_, b_, options));
    INTRAWARP_ASSIGN_OR_RETURN(values_,
                               ctx_.device().Allocate(plan_->pattern().entries * sizeof(float), ctx_.stream()));
    return absl::OkStatus();
  }

  absl::Status Run() override {
    if (plan_) return ExecuteMultiply(ctx_, *plan_, a_, b_, values_.as<void>());
    result_.reset();
    INTRAWARP_ASSIGN_OR_RETURN(result_, Multiply(ctx_, a_, b_, options_));
    return absl::OkStatus();
  }

  absl::StatusOr<CsrMatrix> Result() override {
    const ConstPatternView c = plan_ ? plan_->pattern() : result_->view();
    INTRAWARP_ASSIGN_OR_RETURN(CsrMatrix copy, CsrMatrix::Allocate(ctx_.device(), ctx_.stream(), c.rows, c.columns,
                                                                   c.entries, ValueType::kFloat32));
    const auto copy_to = [&](void* to, const void* from, size_t bytes) {
      return ctx_.device().Copy(to, from, bytes, ctx_.stream());
    };
    INTRAWARP_RETURN_IF_ERROR(copy_to(copy.row_offsets(), c.row_offsets, (c.rows + int64_t{1}) * sizeof(int64_t)));
    INTRAWARP_RETURN_IF_ERROR(copy_to(copy.column_indices(), c.column_indices, c.entries * sizeof(int32_t)));
    INTRAWARP_RETURN_IF_ERROR(
        copy_to(copy.values(), plan_ ? values_.as<void>() : result_->values(), c.entries * sizeof(float)));
    return copy;
  }

 private:
  Arena arena_;
  const ExecContext ctx_;
  const SparseMethod method_;
  const ConstCsrView a_, b_;
  const MultiplyOptions options_;
  std::optional<MultiplyPlan> plan_;
  Buffer values_;
  std::optional<CsrMatrix> result_;
};

absl::StatusOr<std::unique_ptr<SparseProduct>> MakeOurs(const ExecContext& ctx, SparseMethod method,
                                                        const ConstCsrView& a, const ConstCsrView& b) {
  MultiplyOptions options;
  if (method == SparseMethod::kOursFp16) options.precision = MultiplyPrecision::kFp16;
  INTRAWARP_ASSIGN_OR_RETURN(const MultiplyEstimate estimate, EstimateMultiply(ctx, a, b, options));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer workspace, ctx.device().Allocate(estimate.workspace_bytes, ctx.stream()));
  return std::make_unique<Ours>(ctx, method, std::move(workspace), a, b, options);
}
#endif

}  // namespace

const char* SparseMethodName(SparseMethod method) {
  switch (method) {
    case SparseMethod::kTensorTiles:
      return "tSparse";
    case SparseMethod::kTiles:
      return "no-TCU";
    case SparseMethod::kExpandSortCompress:
      return "ESC";
    case SparseMethod::kCusparseDefault:
      return "cuSPARSE";
    case SparseMethod::kCusparse1:
      return "cu-ALG1";
    case SparseMethod::kCusparse2:
      return "cu-ALG2";
    case SparseMethod::kCusparse3:
      return "cu-ALG3";
    case SparseMethod::kCusparseReuse:
      return "cu-reuse";
    case SparseMethod::kOurs:
      return "ours";
    case SparseMethod::kOursValues:
      return "ours-plan";
    case SparseMethod::kOursFp16:
      return "ours-fp16";
  }
  return "";
}

#if INTRAWARP_WITH_CUDA
absl::StatusOr<std::unique_ptr<SparseProduct>> MakeSparseProduct(const ExecContext& ctx, SparseMethod method,
                                                                 const ConstCsrView& a, const ConstCsrView& b,
                                                                 float chunk_fraction) {
  if (!ctx.is_cuda()) return absl::UnimplementedError("device: on CUDA alone");
  if (a.columns != b.rows) return absl::InvalidArgumentError("b: as many rows as columns of a");
  switch (method) {
    case SparseMethod::kTensorTiles:
    case SparseMethod::kTiles:
      return cuda::MakeTileProduct(ctx, method == SparseMethod::kTensorTiles, a, b);
    case SparseMethod::kExpandSortCompress:
      return cuda::MakeEscProduct(ctx, a, b);
    case SparseMethod::kOurs:
    case SparseMethod::kOursValues:
    case SparseMethod::kOursFp16:
      return MakeOurs(ctx, method, a, b);
    default:
      return cuda::MakeCusparseProduct(ctx, method, a, b, chunk_fraction);
  }
}

absl::StatusOr<std::unique_ptr<SparseReference>> MakeSparseReference(const ExecContext& ctx, const ConstCsrView& a,
                                                                     const ConstCsrView& b) {
  if (!ctx.is_cuda()) return absl::UnimplementedError("device: on CUDA alone");
  return cuda::MakeSparseReference(ctx, a, b);
}

int64_t TakePoolPeakBytes() { return cuda::TakePoolPeakBytes(); }
int64_t PoolUsedBytes() { return cuda::PoolUsedBytes(); }
#else
absl::StatusOr<std::unique_ptr<SparseProduct>> MakeSparseProduct(const ExecContext&, SparseMethod, const ConstCsrView&,
                                                                 const ConstCsrView&, float) {
  return absl::UnimplementedError("device: on CUDA alone");
}

absl::StatusOr<std::unique_ptr<SparseReference>> MakeSparseReference(const ExecContext&, const ConstCsrView&,
                                                                     const ConstCsrView&) {
  return absl::UnimplementedError("device: on CUDA alone");
}

int64_t TakePoolPeakBytes() { return 0; }
int64_t PoolUsedBytes() { return 0; }
#endif

}  // namespace intrawarp::baselines
