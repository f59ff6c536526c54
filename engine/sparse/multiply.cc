// SPDX-License-Identifier: Apache-2.0
#include "engine/sparse/multiply.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/sparse/multiply_kernels.h"

namespace intrawarp {
namespace {

absl::Status Invalid(absl::string_view operand, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, operand, what);
}

absl::Status CheckShape(const char* name, const ConstPatternView& m, int32_t rows, int32_t columns) {
  if (m.rows == rows && m.columns == columns) return absl::OkStatus();
  return Invalid(name, absl::StrCat(m.rows, "x", m.columns, ", but the product is ", rows, "x", columns));
}

absl::Status CheckValues(const char* name, const ConstCsrView& m, MultiplyPrecision precision) {
  if (m.type == ValueTypeOf(precision)) return absl::OkStatus();
  return Invalid(name, "values must be float64 for fp64 and float32 otherwise");
}

absl::Status CheckAddend(const MultiplyOptions& options, int32_t rows, int32_t columns) {
  if (options.semiring != Semiring::kPlusTimes) {
    if (options.alpha != 1) return Invalid("alpha", "only plus-times takes a factor");
    if (options.addend) return Invalid("addend", "only plus-times takes an addend");
  }
  if (!options.addend) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(CheckShape("addend", *options.addend, rows, columns));
  return CheckValues("addend", *options.addend, options.precision);
}

absl::Status CheckOperands(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options) {
  const int32_t rows = options.transpose_a ? a.columns : a.rows, inner = options.transpose_a ? a.rows : a.columns;
  if (b.rows != inner) {
    return Invalid("b",
                   absl::StrCat(b.rows, " rows, but ", options.transpose_a ? "a^T" : "a", " has ", inner, " columns"));
  }
  if (options.mask) INTRAWARP_RETURN_IF_ERROR(CheckShape("mask", *options.mask, rows, b.columns));
  if (options.complement_mask && !options.mask) return Invalid("mask", "complement_mask needs one");
  INTRAWARP_RETURN_IF_ERROR(CheckAddend(options, rows, b.columns));
  return absl::OkStatus();
}

absl::StatusOr<MultiplyPlan> MakePlan(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                      const MultiplyOptions& options, Executions executions) {
  INTRAWARP_RETURN_IF_ERROR(CheckOperands(a, b, options));
  INTRAWARP_ASSIGN_OR_RETURN(PlannedProduct planned, INTRAWARP_DISPATCH(ctx, PlanMultiply, a, b, options, executions));
  return MultiplyPlan(a, b, options, std::move(planned.c), std::move(planned.device_plan));
}

}  // namespace

absl::StatusOr<Buffer> AllocateForEntries(const ExecContext& ctx, absl::string_view what, int64_t entries,
                                          int64_t bytes_each) {
  const absl::StatusOr<int64_t> bytes = CheckedMultiply(entries, bytes_each);
  absl::StatusOr<Buffer> memory =
      bytes.ok() ? ctx.device().Allocate(*bytes, ctx.stream()) : absl::ResourceExhaustedError(bytes.status().message());
  if (memory.ok() || !absl::IsResourceExhausted(memory.status())) return memory;
  return absl::ResourceExhaustedError(absl::StrCat("C has ", entries, " entries, whose ", what, " take ", bytes_each,
                                                   " bytes each: ", memory.status().message()));
}

MultiplyPlan::MultiplyPlan(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options,
                           CsrPattern c, std::unique_ptr<DevicePlan> device_plan)
    : options_(options),
      a_(ShapeOf(a)),
      b_(ShapeOf(b)),
      c_(std::make_shared<const CsrPattern>(std::move(c))),
      device_plan_(std::move(device_plan)) {}

bool MultiplyPlan::Conforms(const ConstPatternView& a, const ConstPatternView& b) const {
  return device_plan_ != nullptr && ShapeOf(a) == a_ && ShapeOf(b) == b_;
}

absl::StatusOr<MultiplyEstimate> EstimateMultiply(const ExecContext& ctx, const ConstPatternView& a,
                                                  const ConstPatternView& b, const MultiplyOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckOperands(a, b, options));
  return INTRAWARP_DISPATCH(ctx, EstimateMultiply, a, b, options);
}

absl::StatusOr<MultiplyPlan> PlanMultiply(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                          const MultiplyOptions& options) {
  return MakePlan(ctx, a, b, options, Executions::kAnyNumber);
}

absl::Status ExecuteMultiply(const ExecContext& ctx, const MultiplyPlan& plan, const ConstCsrView& a,
                             const ConstCsrView& b, void* values) {
  if (!plan.Conforms(a, b)) return Invalid("plan", "made for other sizes");
  INTRAWARP_RETURN_IF_ERROR(CheckValues("a", a, plan.options().precision));
  INTRAWARP_RETURN_IF_ERROR(CheckValues("b", b, plan.options().precision));
  return plan.device_plan().Execute(ctx, plan.pattern(), a, b, values);
}

absl::StatusOr<CsrMatrix> Multiply(const ExecContext& ctx, const ConstCsrView& a, const ConstCsrView& b,
                                   const MultiplyOptions& options) {
  INTRAWARP_RETURN_IF_ERROR(CheckValues("a", a, options.precision));
  INTRAWARP_RETURN_IF_ERROR(CheckValues("b", b, options.precision));
  // A reuse plan is made from all columns, so none may be left to the execution.
  const Executions executions = options.path == MultiplyPath::kReusePlan ? Executions::kAnyNumber : Executions::kOnce;
  INTRAWARP_ASSIGN_OR_RETURN(MultiplyPlan plan, MakePlan(ctx, a, b, options, executions));
  const ConstPatternView c = plan.pattern();
  INTRAWARP_ASSIGN_OR_RETURN(Buffer values,
                             AllocateForEntries(ctx, "values", c.entries, BytesPerValue(plan.value_type())));
  INTRAWARP_RETURN_IF_ERROR(plan.device_plan().Execute(ctx, c, a, b, values.as<void>()));
  return plan.ResultWith(std::move(values));
}

}  // namespace intrawarp
