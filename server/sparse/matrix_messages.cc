// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/matrix_messages.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/device/exec_context.h"
#include "io/digest.h"
#include "server/rpc/rpc_support.h"
#include "server/rpc/wire.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max();

absl::Status ValidateSide(absl::string_view field, int64_t side) {
  if (side >= 0 && side <= kMaxSide) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", side, ", must be 0 to ", kMaxSide));
}

absl::StatusOr<ValueType> ValueTypeFromProto(v1::ValueType from) {
  if (from == v1::VALUE_TYPE_FLOAT32) return ValueType::kFloat32;
  if (from == v1::VALUE_TYPE_FLOAT64) return ValueType::kFloat64;
  return InvalidField("value_type", "must be FLOAT32 or FLOAT64");
}

absl::Status ParseShape(const v1::SparseMatrixShape& shape, MatrixSpec& spec) {
  INTRAWARP_RETURN_IF_ERROR(ValidateSide("rows", shape.rows()));
  INTRAWARP_RETURN_IF_ERROR(ValidateSide("columns", shape.columns()));
  // Less than 2^62.
  const int64_t places = shape.rows() * shape.columns();
  if (shape.entries() < 0 || shape.entries() > places) {
    return InvalidField("entries", absl::StrCat("is ", shape.entries(), ", must be 0 to ", places, " in a matrix of ",
                                                shape.rows(), " x ", shape.columns()));
  }
  INTRAWARP_ASSIGN_OR_RETURN(spec.type, ValueTypeFromProto(shape.value_type()));
  spec.rows = static_cast<int32_t>(shape.rows());
  spec.columns = static_cast<int32_t>(shape.columns());
  spec.entries = shape.entries();
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CheckedBytes(const MatrixSpec& spec) {
  absl::StatusOr<int64_t> bytes = CsrMatrix::Bytes(spec.rows, spec.entries, spec.type);
  if (!bytes.ok()) return InvalidField("shape.entries", "overflow 64 bits in bytes");
  return bytes;
}

// Tells matrices apart by content, shape and type.
std::string IdentityDigest(const MatrixSpec& spec) {
  io::Sha256 hash;
  const auto add = [&hash](const auto& value) { hash.Update(&value, sizeof(value)); };
  constexpr char kKind[] = "matrix";  // an upload of a volume is another one
  hash.Update(kKind, sizeof(kKind));
  hash.Update(spec.content_digest.data(), spec.content_digest.size());
  add(spec.rows);
  add(spec.columns);
  add(spec.entries);
  add(static_cast<int32_t>(spec.type));
  return hash.Finish();
}

// Paths relative to the header.
absl::StatusOr<MatrixSpec> ParseFields(const v1::UploadMatrixHeader& header, const ServerLimits& limits) {
  MatrixSpec spec;
  if (!header.id().empty()) INTRAWARP_RETURN_IF_ERROR(ValidateId(header.id(), "id"));
  INTRAWARP_RETURN_IF_ERROR(ValidateUploadId(header.upload_id(), "upload_id"));
  spec.id = header.id();
  spec.upload_id = header.upload_id();
  INTRAWARP_RETURN_IF_ERROR(Within("shape", ParseShape(header.shape(), spec)));
  INTRAWARP_ASSIGN_OR_RETURN(spec.total_bytes, CheckedBytes(spec));
  if (header.total_bytes() != spec.total_bytes) {
    return InvalidField("total_bytes",
                        absl::StrCat("is ", header.total_bytes(), ", the shape makes ", spec.total_bytes));
  }
  if (spec.total_bytes > limits.max_matrix_bytes) {
    return InvalidField("total_bytes",
                        absl::StrCat("is ", spec.total_bytes, ", at most ", limits.max_matrix_bytes, " are accepted"));
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateDigest(header.digest()));
  spec.content_digest = header.digest();
  spec.identity_digest = IdentityDigest(spec);
  spec.resident_bytes = MatrixResidentBytes(spec.rows, spec.entries, spec.type);
  return spec;
}

}  // namespace

v1::SparseMatrixShape ShapeToProto(const ConstPatternView& pattern, ValueType type) {
  v1::SparseMatrixShape to;
  to.set_rows(pattern.rows);
  to.set_columns(pattern.columns);
  to.set_entries(pattern.entries);
  to.set_value_type(type == ValueType::kFloat32 ? v1::VALUE_TYPE_FLOAT32 : v1::VALUE_TYPE_FLOAT64);
  return to;
}

v1::SparseMatrix SparseMatrixToProto(const StoredMatrix& matrix) {
  const ConstCsrView view = matrix.matrix.view();
  v1::SparseMatrix to;
  to.set_name(SparseMatrixName(matrix.id));
  *to.mutable_shape() = ShapeToProto(view, view.type);
  to.set_digest(matrix.content_digest);
  to.set_resident_bytes(matrix.reservation.bytes());
  *to.mutable_create_time() = TimestampToProto(matrix.create_time);
  if (matrix.expiry) *to.mutable_expire_time() = TimestampToProto(matrix.expiry->time);
  return to;
}

absl::StatusOr<MatrixSpec> ParseMatrixHeader(const v1::UploadMatrixHeader& header, const ServerLimits& limits) {
  absl::StatusOr<MatrixSpec> spec = ParseFields(header, limits);
  if (!spec.ok()) return Within("header", spec.status());
  return spec;
}

absl::Status ValidateMatrixBytes(const void* data, const MatrixSpec& spec) {
  const auto* offsets = static_cast<const int64_t*>(data);
  const auto* columns = reinterpret_cast<const int32_t*>(offsets + spec.rows + 1);
  return ValidateCsr(spec.rows, spec.columns, absl::MakeConstSpan(offsets, spec.rows + size_t{1}),
                     absl::MakeConstSpan(columns, spec.entries));
}

int64_t MatrixResidentBytes(int64_t rows, int64_t entries, ValueType type) {
  // As a device hands memory out; also of a matrix without entries, so that there is no end of them.
  return static_cast<int64_t>(Arena::Rounded((rows + 1) * sizeof(int64_t)) +
                              Arena::Rounded((entries + 1) * sizeof(int32_t)) +
                              Arena::Rounded((entries + 1) * BytesPerValue(type)));
}

DeviceBytes WireBytes(const ConstCsrView& matrix) {
  return {{matrix.row_offsets, (int64_t{matrix.rows} + 1) * static_cast<int64_t>(sizeof(int64_t))},
          {matrix.column_indices, matrix.entries * static_cast<int64_t>(sizeof(int32_t))},
          {matrix.values, matrix.entries * BytesPerValue(matrix.type)}};
}

absl::StatusOr<std::shared_ptr<const StoredMatrix>> FindMatrix(const MatrixStore& matrices, const std::string& name,
                                                               absl::string_view field) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseSparseMatrixName(name, field));
  return matrices.Find(id);
}

}  // namespace intrawarp::server
