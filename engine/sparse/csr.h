// SPDX-License-Identifier: Apache-2.0
// A sparse matrix (CSR, as engine/base/csr.h defines it) in the memory of a device.
//
// Thread safety: CsrMatrix is a plain owner; the functions are thread-safe.
#ifndef INTRAWARP_ENGINE_SPARSE_CSR_H_
#define INTRAWARP_ENGINE_SPARSE_CSR_H_

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/csr.h"
#include "engine/device/device.h"

namespace intrawarp {

// Owns a matrix in the memory of a device, in the order of the stream it was made on.
class CsrMatrix {
 public:
  CsrMatrix() = default;
  // Takes over device memory that holds the arrays of a valid matrix. Only the sizes of `shape` count.
  CsrMatrix(const ConstPatternView& shape, ValueType type, Buffer row_offsets, Buffer column_indices, Buffer values)
      : rows_(shape.rows),
        columns_(shape.columns),
        entries_(shape.entries),
        type_(type),
        offsets_(std::move(row_offsets)),
        indices_(std::move(column_indices)),
        values_(std::move(values)) {}

  // Memory for a matrix of this shape; its contents are undefined. OUT_OF_RANGE when the size overflows,
  // INVALID_ARGUMENT for negative sizes, RESOURCE_EXHAUSTED.
  static absl::StatusOr<CsrMatrix> Allocate(Device& device, StreamView stream, int32_t rows, int32_t columns,
                                            int64_t entries, ValueType type);
  // Checks a matrix of the host by ValidateCsr, then copies it to the device. Waits.
  template <typename T>
  static absl::StatusOr<CsrMatrix> Upload(Device& device, StreamView stream, const HostCsr<T>& matrix);

  ConstCsrView view() const;
  int64_t* row_offsets() { return offsets_.as<int64_t>(); }
  int32_t* column_indices() { return indices_.as<int32_t>(); }
  void* values() { return values_.as<void>(); }
  int64_t bytes() const { return offsets_.bytes() + indices_.bytes() + values_.bytes(); }

  // A copy on the host. INVALID_ARGUMENT when T is not the type of the values. Waits.
  template <typename T>
  absl::StatusOr<HostCsr<T>> Download(Device& device, StreamView stream) const;

 private:
  int32_t rows_ = 0;
  int32_t columns_ = 0;
  int64_t entries_ = 0;
  ValueType type_ = ValueType::kFloat32;
  Buffer offsets_, indices_, values_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SPARSE_CSR_H_
