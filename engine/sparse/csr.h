// SPDX-License-Identifier: Apache-2.0
// A sparse matrix (CSR, as engine/base/csr.h defines it) in the memory of a device.
//
// Thread safety: CsrMatrix is a plain owner; the functions are thread-safe.
#ifndef INTRAWARP_ENGINE_SPARSE_CSR_H_
#define INTRAWARP_ENGINE_SPARSE_CSR_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/csr.h"
#include "engine/device/device.h"

namespace intrawarp {

// Owns a sparsity pattern in device memory.
struct CsrPattern {
  int32_t rows = 0;
  int32_t columns = 0;
  int64_t entries = 0;
  Buffer row_offsets;     // rows + 1 int64
  Buffer column_indices;  // entries int32

  ConstPatternView view() const {
    return {rows, columns, entries, row_offsets.as<int64_t>(), column_indices.as<int32_t>()};
  }
  int64_t bytes() const { return static_cast<int64_t>(row_offsets.bytes() + column_indices.bytes()); }
};

// A matrix in the memory of a device, in the order of the stream it was made on. It owns its values; several matrices
// may share one pattern, which is freed with the last of them.
class CsrMatrix {
 public:
  CsrMatrix() = default;
  // Takes over device memory that holds the arrays of a valid matrix. Only the sizes of `shape` count.
  CsrMatrix(const ConstPatternView& shape, ValueType type, Buffer row_offsets, Buffer column_indices, Buffer values)
      : CsrMatrix(std::make_shared<const CsrPattern>(CsrPattern{shape.rows, shape.columns, shape.entries,
                                                                std::move(row_offsets), std::move(column_indices)}),
                  type, std::move(values)) {}
  // With one value of `type` for each entry of `pattern`, which is not null. Nobody writes the pattern afterwards.
  CsrMatrix(std::shared_ptr<const CsrPattern> pattern, ValueType type, Buffer values)
      : pattern_(std::move(pattern)), type_(type), values_(std::move(values)) {}

  // Memory for a matrix of this shape, with a pattern of its own; its contents are undefined. OUT_OF_RANGE when the
  // size overflows, INVALID_ARGUMENT for negative sizes, RESOURCE_EXHAUSTED.
  static absl::StatusOr<CsrMatrix> Allocate(Device& device, StreamView stream, int32_t rows, int32_t columns,
                                            int64_t entries, ValueType type);
  // Checks a matrix of the host by ValidateCsr, then copies it to the device. Waits.
  template <typename T>
  static absl::StatusOr<CsrMatrix> Upload(Device& device, StreamView stream, const HostCsr<T>& matrix);

  ConstCsrView view() const;
  // Two matrices with the same pointer have the same pattern. Null for a default-constructed matrix.
  const std::shared_ptr<const CsrPattern>& pattern() const { return pattern_; }
  // For filling what Allocate gave.
  int64_t* row_offsets() { return pattern_->row_offsets.as<int64_t>(); }
  int32_t* column_indices() { return pattern_->column_indices.as<int32_t>(); }
  void* values() { return values_.as<void>(); }
  // Pattern and values.
  int64_t bytes() const { return (pattern_ ? pattern_->bytes() : 0) + static_cast<int64_t>(values_.bytes()); }

  // A copy on the host. INVALID_ARGUMENT when T is not the type of the values. Waits.
  template <typename T>
  absl::StatusOr<HostCsr<T>> Download(Device& device, StreamView stream) const;

 private:
  std::shared_ptr<const CsrPattern> pattern_;
  ValueType type_ = ValueType::kFloat32;
  Buffer values_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SPARSE_CSR_H_
