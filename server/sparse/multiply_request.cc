// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/multiply_request.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/context/limits.h"
#include "server/object/new_object.h"
#include "server/sparse/matrix_messages.h"
#include "server/store/find_object.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

absl::Status PrecisionFromProto(v1::Precision from, ProductTask& task) {
  task.resolved.set_precision(from == v1::PRECISION_UNSPECIFIED ? v1::PRECISION_FP32 : from);
  switch (task.resolved.precision()) {
    case v1::PRECISION_FP16:
      task.options.precision = MultiplyPrecision::kFp16;
      return absl::OkStatus();
    case v1::PRECISION_BF16:
      task.options.precision = MultiplyPrecision::kBf16;
      return absl::OkStatus();
    case v1::PRECISION_TF32:
      task.options.precision = MultiplyPrecision::kTf32;
      return absl::OkStatus();
    case v1::PRECISION_FP32:
      task.options.precision = MultiplyPrecision::kFp32;
      return absl::OkStatus();
    case v1::PRECISION_FP64:
      task.options.precision = MultiplyPrecision::kFp64;
      return absl::OkStatus();
    default:
      return FieldError(absl::StatusCode::kUnimplemented, "options.precision", "is not one of this version");
  }
}

absl::Status SemiringFromProto(v1::Semiring from, ProductTask& task) {
  task.resolved.set_semiring(from == v1::SEMIRING_UNSPECIFIED ? v1::SEMIRING_PLUS_TIMES : from);
  switch (task.resolved.semiring()) {
    case v1::SEMIRING_PLUS_TIMES:
      task.options.semiring = Semiring::kPlusTimes;
      return absl::OkStatus();
    case v1::SEMIRING_OR_AND:
      task.options.semiring = Semiring::kOrAnd;
      return absl::OkStatus();
    case v1::SEMIRING_MIN_PLUS:
      task.options.semiring = Semiring::kMinPlus;
      return absl::OkStatus();
    default:
      return FieldError(absl::StatusCode::kUnimplemented, "options.semiring", "is not one of this version");
  }
}

absl::Status CheckType(absl::string_view field, const StoredMatrix& matrix, const ProductTask& task) {
  const bool is_double = matrix.matrix.view().type == ValueType::kFloat64;
  const bool takes_double = ValueTypeOf(task.options.precision) == ValueType::kFloat64;
  if (is_double == takes_double) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("has ", is_double ? "float64" : "float32",
                                          " values; FP64 takes float64, the other precisions float32"));
}

absl::Status ResolveScalars(const v1::MultiplyOptions& from, ProductTask& task) {
  if (from.has_alpha()) task.options.alpha = from.alpha();
  if (from.has_beta()) task.options.beta = from.beta();
  if (!std::isfinite(task.options.alpha)) return InvalidField("options.alpha", "must be finite");
  if (!std::isfinite(task.options.beta)) return InvalidField("options.beta", "must be finite");
  if (from.has_beta() && from.addend().empty()) return InvalidField("options.beta", "there is no addend");
  return absl::OkStatus();
}

absl::Status ResolveOptions(const v1::MultiplyOptions& from, const MatrixStore& matrices, const Identity& caller,
                            ProductTask& task) {
  task.resolved = from;
  INTRAWARP_RETURN_IF_ERROR(PrecisionFromProto(from.precision(), task));
  INTRAWARP_RETURN_IF_ERROR(SemiringFromProto(from.semiring(), task));
  INTRAWARP_RETURN_IF_ERROR(ResolveScalars(from, task));
  task.options.transpose_a = from.transpose_a();
  task.reuse_plan = from.reuse_plan();
  task.options.complement_mask = from.complement_mask();
  if (!from.mask().empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(task.mask, FindMatrix(matrices, from.mask(), "options.mask", caller));
    task.options.mask = task.mask->matrix.view();
  }
  task.resolved.set_transpose_a(task.options.transpose_a);
  task.resolved.set_complement_mask(task.options.complement_mask);
  task.resolved.set_alpha(task.options.alpha);
  task.resolved.set_reuse_plan(task.reuse_plan);
  if (!from.addend().empty()) {
    task.resolved.set_beta(task.options.beta);
    INTRAWARP_ASSIGN_OR_RETURN(task.addend, FindMatrix(matrices, from.addend(), "options.addend", caller));
    task.options.addend = task.addend->matrix.view();
  }
  if (task.reuse_plan && (task.mask != nullptr || task.addend != nullptr)) {
    return InvalidField("options.reuse_plan", "does not go with a mask or an addend");
  }
  return absl::OkStatus();
}

absl::Status ResolveKeep(const v1::KeepProduct& keep, const MatrixStore& matrices, const Identity& caller,
                         ProductTask& task) {
  INTRAWARP_RETURN_IF_ERROR(CheckCount(matrices));
  task.resident_id = keep.id();
  if (keep.has_ttl()) {
    INTRAWARP_ASSIGN_OR_RETURN(task.ttl, DurationFromProto(keep.ttl(), "keep.ttl", kMaxTtl));
  }
  if (keep.id().empty()) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(ValidateId(keep.id(), "keep.id"));
  return CheckIdIsFree(matrices, keep.id(), caller.name);
}

struct Shape {
  int32_t rows = 0;
  int32_t columns = 0;
};

Shape ShapeOf(const StoredMatrix& matrix) {
  const ConstCsrView view = matrix.matrix.view();
  return {view.rows, view.columns};
}

Shape Transposed(const Shape& shape) { return {shape.columns, shape.rows}; }

// The rows of a factor, and the columns of the one before it.
absl::Status CheckInner(absl::string_view field, absl::string_view factor, int32_t rows, absl::string_view before,
                        int32_t columns) {
  if (rows == columns) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(factor, " has ", rows, " rows, but ", before, " has ", columns, " columns"));
}

absl::Status CheckShapeOfC(absl::string_view field, const StoredMatrix* matrix, const Shape& c) {
  if (matrix == nullptr) return absl::OkStatus();
  const Shape shape = ShapeOf(*matrix);
  if (shape.rows == c.rows && shape.columns == c.columns) return absl::OkStatus();
  return InvalidField(
      field, absl::StrCat("is ", shape.rows, "x", shape.columns, ", but the product is ", c.rows, "x", c.columns));
}

absl::Status CheckTripleShapes(const ProductTask& task) {
  const Shape p = ShapeOf(*task.b), a = task.options.transpose_a ? Transposed(ShapeOf(*task.a)) : ShapeOf(*task.a),
              r = task.r == nullptr ? Transposed(p) : ShapeOf(*task.r);
  INTRAWARP_RETURN_IF_ERROR(CheckInner("p", "P", p.rows, "op(A)", a.columns));
  INTRAWARP_RETURN_IF_ERROR(CheckInner("a", "op(A)", a.rows, task.r == nullptr ? "P^T" : "R", r.columns));
  INTRAWARP_RETURN_IF_ERROR(CheckShapeOfC("options.mask", task.mask.get(), {r.rows, p.columns}));
  return CheckShapeOfC("options.addend", task.addend.get(), {r.rows, p.columns});
}

// EstimateMultiply would refuse these only once the first product is made.
absl::Status CheckTripleOptions(const ProductTask& task) {
  if (task.options.complement_mask && task.mask == nullptr)
    return InvalidField("options.mask", "complement_mask needs one");
  if (task.options.semiring == Semiring::kPlusTimes) return absl::OkStatus();
  if (task.options.alpha != 1) return InvalidField("options.alpha", "only plus-times takes a factor");
  if (task.addend != nullptr) return InvalidField("options.addend", "only plus-times takes an addend");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProductTask> ResolveProduct(const v1::MultiplyRequest& request, const MatrixStore& matrices,
                                           const Identity& caller) {
  ProductTask task;
  INTRAWARP_ASSIGN_OR_RETURN(task.a, FindMatrix(matrices, request.a(), "a", caller));
  INTRAWARP_ASSIGN_OR_RETURN(task.b, FindMatrix(matrices, request.b(), "b", caller));
  INTRAWARP_RETURN_IF_ERROR(ResolveOptions(request.options(), matrices, caller, task));
  INTRAWARP_RETURN_IF_ERROR(CheckType("a", *task.a, task));
  INTRAWARP_RETURN_IF_ERROR(CheckType("b", *task.b, task));
  if (request.has_keep()) INTRAWARP_RETURN_IF_ERROR(ResolveKeep(request.keep(), matrices, caller, task));
  return task;
}

absl::StatusOr<ProductTask> ResolveProduct(const v1::MultiplyTripleRequest& request, const MatrixStore& matrices,
                                           const Identity& caller) {
  ProductTask task;
  task.is_triple = true;
  if (!request.r().empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(task.r, FindMatrix(matrices, request.r(), "r", caller));
  }
  INTRAWARP_ASSIGN_OR_RETURN(task.a, FindMatrix(matrices, request.a(), "a", caller));
  INTRAWARP_ASSIGN_OR_RETURN(task.b, FindMatrix(matrices, request.p(), "p", caller));
  INTRAWARP_RETURN_IF_ERROR(ResolveOptions(request.options(), matrices, caller, task));
  if (task.r != nullptr) INTRAWARP_RETURN_IF_ERROR(CheckType("r", *task.r, task));
  INTRAWARP_RETURN_IF_ERROR(CheckType("a", *task.a, task));
  INTRAWARP_RETURN_IF_ERROR(CheckType("p", *task.b, task));
  if (task.addend != nullptr) INTRAWARP_RETURN_IF_ERROR(CheckType("options.addend", *task.addend, task));
  INTRAWARP_RETURN_IF_ERROR(CheckTripleOptions(task));
  INTRAWARP_RETURN_IF_ERROR(CheckTripleShapes(task));
  if (request.has_keep()) INTRAWARP_RETURN_IF_ERROR(ResolveKeep(request.keep(), matrices, caller, task));
  return task;
}

std::vector<std::string> InputNames(const v1::MultiplyRequest& request) {
  return {request.a(), request.b(), request.options().mask(), request.options().addend()};
}

std::vector<std::string> InputNames(const v1::MultiplyTripleRequest& request) {
  return {request.r(), request.a(), request.p(), request.options().mask(), request.options().addend()};
}

std::vector<std::shared_ptr<const StoredMatrix>> InputsOf(const ProductTask& task) {
  if (task.is_triple) return {task.r, task.a, task.b, task.mask, task.addend};
  return {task.a, task.b, task.mask, task.addend};
}

MultiplyOptions FirstOptions(const ProductTask& task) {
  MultiplyOptions options;
  options.precision = task.options.precision;
  options.semiring = task.options.semiring;
  options.path = task.options.path;
  options.many_executions = task.options.many_executions;
  options.transpose_a = task.options.transpose_a;
  return options;
}

MultiplyOptions SecondOptions(const ProductTask& task) {
  MultiplyOptions options = task.options;
  options.transpose_a = task.r == nullptr;
  return options;
}

absl::Status InMultiplyRequest(const absl::Status& status) {
  const std::string path = FieldOf(status);
  return path == "a" || path == "b" ? status : Within("options", status);
}

int64_t TranspositionBytes(const ConstPatternView& a, const MultiplyOptions& options) {
  if (!options.transpose_a) return 0;
  // Offsets, where each row has got to, rows and places of the entries.
  return 2 * (int64_t{a.columns} + 1) * int64_t{sizeof(int64_t)} +
         a.entries * int64_t{sizeof(int32_t) + sizeof(int64_t)};
}

v1::MultiplyEstimate EstimateToProto(const MultiplyEstimate& estimate) {
  v1::MultiplyEstimate to;
  to.set_multiplications(estimate.multiplications);
  to.set_max_entries(estimate.max_entries);
  to.set_workspace_bytes(estimate.workspace_bytes);
  to.set_result_bytes(estimate.plan_bytes + estimate.value_bytes);
  return to;
}

int64_t EstimatedBytes(const MultiplyEstimate& estimate) {
  int64_t bytes = 0;
  for (int64_t part : {estimate.workspace_bytes, estimate.plan_bytes, estimate.value_bytes}) {
    if (__builtin_add_overflow(bytes, part, &bytes)) return std::numeric_limits<int64_t>::max();
  }
  return bytes;
}

}  // namespace intrawarp::server
