// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/matrix_receiver.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::client {
namespace {

constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max();

template <typename T>
absl::string_view Bytes(const std::vector<T>& values) {
  return absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}
template <typename T>
absl::Span<char> Bytes(std::vector<T>& values) {
  return absl::MakeSpan(reinterpret_cast<char*>(values.data()), values.size() * sizeof(T));
}

bool IsShape(const v1::SparseMatrixShape& shape) {
  return shape.rows() >= 0 && shape.rows() <= kMaxSide && shape.columns() >= 0 && shape.columns() <= kMaxSide &&
         shape.entries() >= 0 && shape.entries() <= shape.rows() * shape.columns();
}

template <typename T>
std::vector<absl::Span<char>> Resize(const v1::SparseMatrixShape& shape, SparseMatrix* to) {
  HostCsr<T>& csr = to->emplace<HostCsr<T>>();
  csr.rows = static_cast<int32_t>(shape.rows());
  csr.columns = static_cast<int32_t>(shape.columns());
  csr.row_offsets.assign(shape.rows() + 1, 0);
  csr.column_indices.resize(shape.entries());
  csr.values.resize(shape.entries());
  return {Bytes(csr.row_offsets), Bytes(csr.column_indices), Bytes(csr.values)};
}

}  // namespace

std::vector<absl::string_view> WireArrays(const SparseMatrix& matrix) {
  return std::visit(
      [](const auto& csr) -> std::vector<absl::string_view> {
        return {Bytes(csr.row_offsets), Bytes(csr.column_indices), Bytes(csr.values)};
      },
      matrix);
}

v1::SparseMatrixShape ShapeOf(const SparseMatrix& matrix) {
  v1::SparseMatrixShape shape;
  std::visit(
      [&shape](const auto& csr) {
        shape.set_rows(csr.rows);
        shape.set_columns(csr.columns);
        shape.set_entries(csr.entries());
      },
      matrix);
  const bool is_float = std::holds_alternative<HostCsr<float>>(matrix);
  shape.set_value_type(is_float ? v1::VALUE_TYPE_FLOAT32 : v1::VALUE_TYPE_FLOAT64);
  return shape;
}

absl::Status MatrixReceiver::Begin(const v1::SparseMatrixShape& shape, int64_t total_bytes) {
  if (bytes_.begun()) return absl::InternalError("the server sent a second header");
  const bool is_double = shape.value_type() == v1::VALUE_TYPE_FLOAT64;
  if (!IsShape(shape) || (!is_double && shape.value_type() != v1::VALUE_TYPE_FLOAT32)) {
    return absl::InternalError("the server sent a header that is not a matrix's");
  }
  const absl::StatusOr<int64_t> bytes =
      CsrBytes(shape.rows(), shape.entries(), is_double ? ValueType::kFloat64 : ValueType::kFloat32);
  if (!bytes.ok() || *bytes != total_bytes) {
    return absl::InternalError(absl::StrCat("the server announced ", total_bytes, " bytes, not what the shape makes"));
  }
  if (total_bytes > max_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the matrix has ", total_bytes, " bytes, at most ", max_bytes_, " are accepted"));
  }
  bytes_.Begin(is_double ? Resize<double>(shape, to_) : Resize<float>(shape, to_));
  return absl::OkStatus();
}

absl::Status MatrixReceiver::Finish() const {
  INTRAWARP_RETURN_IF_ERROR(bytes_.Finish());
  const absl::Status valid = std::visit([](const auto& csr) { return ValidateCsr(csr); }, *to_);
  if (valid.ok()) return valid;
  return absl::DataLossError(absl::StrCat("the server sent what is not a matrix: ", valid.message()));
}

}  // namespace intrawarp::client
