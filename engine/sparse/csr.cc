// SPDX-License-Identifier: Apache-2.0
#include "engine/sparse/csr.h"

#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp {

absl::StatusOr<CsrMatrix> CsrMatrix::Allocate(Device& device, StreamView stream, int32_t rows, int32_t columns,
                                              int64_t entries, ValueType type) {
  INTRAWARP_RETURN_IF_ERROR(ValidateCsrSize("rows", rows));
  INTRAWARP_RETURN_IF_ERROR(ValidateCsrSize("columns", columns));
  if (entries < 0) return FieldError(absl::StatusCode::kInvalidArgument, "entries", "negative");
  INTRAWARP_RETURN_IF_ERROR(CsrBytes(rows, entries, type).status());
  CsrPattern pattern = {rows, columns, entries, {}, {}};
  INTRAWARP_ASSIGN_OR_RETURN(pattern.row_offsets, device.Allocate((rows + size_t{1}) * sizeof(int64_t), stream));
  INTRAWARP_ASSIGN_OR_RETURN(pattern.column_indices, device.Allocate(entries * sizeof(int32_t), stream));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer values, device.Allocate(entries * BytesPerValue(type), stream));
  return CsrMatrix(std::make_shared<const CsrPattern>(std::move(pattern)), type, std::move(values));
}

template <typename T>
absl::StatusOr<CsrMatrix> CsrMatrix::Upload(Device& device, StreamView stream, const HostCsr<T>& matrix) {
  INTRAWARP_RETURN_IF_ERROR(ValidateCsr(matrix));
  INTRAWARP_ASSIGN_OR_RETURN(CsrMatrix m,
                             Allocate(device, stream, matrix.rows, matrix.columns, matrix.entries(), kValueTypeOf<T>));
  INTRAWARP_RETURN_IF_ERROR(
      device.Copy(m.row_offsets(), matrix.row_offsets.data(), matrix.row_offsets.size() * sizeof(int64_t), stream));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(m.column_indices(), matrix.column_indices.data(),
                                        matrix.column_indices.size() * sizeof(int32_t), stream));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(m.values(), matrix.values.data(), matrix.values.size() * sizeof(T), stream));
  INTRAWARP_RETURN_IF_ERROR(device.Synchronize(stream));
  return m;
}

ConstCsrView CsrMatrix::view() const {
  return {pattern_ ? pattern_->view() : ConstPatternView(), type_, values_.as<void>()};
}

template <typename T>
absl::StatusOr<HostCsr<T>> CsrMatrix::Download(Device& device, StreamView stream) const {
  if (type_ != kValueTypeOf<T>) return FieldError(absl::StatusCode::kInvalidArgument, "values", "of another type");
  const ConstPatternView from = view();
  HostCsr<T> m;
  m.rows = from.rows;
  m.columns = from.columns;
  m.row_offsets.resize(from.rows + size_t{1});
  m.column_indices.resize(from.entries);
  m.values.resize(from.entries);
  if (pattern_ != nullptr) {
    INTRAWARP_RETURN_IF_ERROR(
        device.Copy(m.row_offsets.data(), from.row_offsets, m.row_offsets.size() * sizeof(int64_t), stream));
  }
  INTRAWARP_RETURN_IF_ERROR(
      device.Copy(m.column_indices.data(), from.column_indices, from.entries * sizeof(int32_t), stream));
  INTRAWARP_RETURN_IF_ERROR(device.Copy(m.values.data(), values_.as<void>(), from.entries * sizeof(T), stream));
  INTRAWARP_RETURN_IF_ERROR(device.Synchronize(stream));
  return m;
}

#define INTRAWARP_INSTANTIATE(T)                                                                \
  template absl::StatusOr<CsrMatrix> CsrMatrix::Upload(Device&, StreamView, const HostCsr<T>&); \
  template absl::StatusOr<HostCsr<T>> CsrMatrix::Download<T>(Device&, StreamView) const
INTRAWARP_INSTANTIATE(float);
INTRAWARP_INSTANTIATE(double);
#undef INTRAWARP_INSTANTIATE

}  // namespace intrawarp
