// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/matrix_messages.h"

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/device/exec_context.h"
#include "server/base/names.h"
#include "server/base/wire.h"

namespace intrawarp::server {

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
  to.set_owner(matrix.owner);
  *to.mutable_shape() = ShapeToProto(view, view.type);
  to.set_digest(matrix.content_digest);
  to.set_resident_bytes(matrix.reservation.resident_bytes());
  *to.mutable_create_time() = TimestampToProto(matrix.create_time);
  if (matrix.expiry) *to.mutable_expire_time() = TimestampToProto(matrix.expiry->time);
  return to;
}

int64_t MatrixResidentBytes(int64_t rows, int64_t entries, ValueType type) {
  // As a device hands memory out; also of a matrix without entries, so that there is no end of them.
  return ChargedBytes(static_cast<int64_t>(Arena::Rounded((rows + 1) * sizeof(int64_t)) +
                                           Arena::Rounded((entries + 1) * sizeof(int32_t)) +
                                           Arena::Rounded((entries + 1) * BytesPerValue(type))));
}

DeviceBytes WireBytes(const ConstCsrView& matrix) {
  return {{matrix.row_offsets, (int64_t{matrix.rows} + 1) * static_cast<int64_t>(sizeof(int64_t))},
          {matrix.column_indices, matrix.entries * static_cast<int64_t>(sizeof(int32_t))},
          {matrix.values, matrix.entries * BytesPerValue(matrix.type)}};
}

}  // namespace intrawarp::server
