// SPDX-License-Identifier: Apache-2.0
// Sparse matrices: compressed rows (CSR), the common form, and lists of entries (COO), as they come from outside.
//
// A CSR matrix has rows + 1 ascending offsets of 64 bits, from 0 to the number of entries; the columns of each row are
// strictly increasing int32, so that there are no duplicates. Empty rows, no rows and no columns are normal. An entry
// whose value is 0 is an entry. Rows and columns are at most 2^31 - 1.
//
// Thread safety: plain values; the functions are thread-safe.
#ifndef INTRAWARP_ENGINE_SPARSE_CSR_H_
#define INTRAWARP_ENGINE_SPARSE_CSR_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/device/device.h"

namespace intrawarp {

enum class ValueType { kFloat32, kFloat64 };
constexpr int64_t BytesPerValue(ValueType type) { return type == ValueType::kFloat32 ? 4 : 8; }
template <typename T>
inline constexpr ValueType kValueTypeOf = sizeof(T) == 4 ? ValueType::kFloat32 : ValueType::kFloat64;

// The pattern of a matrix in device memory: where its entries are. Non-owning.
struct ConstPatternView {
  int32_t rows = 0;
  int32_t columns = 0;
  int64_t entries = 0;
  const int64_t* row_offsets = nullptr;     // rows + 1
  const int32_t* column_indices = nullptr;  // entries
};

// A matrix in device memory. Non-owning.
struct ConstCsrView : ConstPatternView {
  ValueType type = ValueType::kFloat32;
  const void* values = nullptr;  // entries
};

// A matrix on the host. T is float or double.
template <typename T>
struct HostCsr {
  int32_t rows = 0;
  int32_t columns = 0;
  std::vector<int64_t> row_offsets = {0};
  std::vector<int32_t> column_indices;
  std::vector<T> values;

  int64_t entries() const { return static_cast<int64_t>(column_indices.size()); }
  // A view of host memory, for the CPU device.
  ConstCsrView view() const {
    return {{rows, columns, entries(), row_offsets.data(), column_indices.data()}, kValueTypeOf<T>, values.data()};
  }
  friend bool operator==(const HostCsr&, const HostCsr&) = default;
};

// Entries in any order on the host, indices from 0; duplicates stand for their sum.
struct HostCoo {
  int32_t rows = 0;
  int32_t columns = 0;
  std::vector<int32_t> row_indices;
  std::vector<int32_t> column_indices;
  std::vector<double> values;

  int64_t entries() const { return static_cast<int64_t>(row_indices.size()); }
};

// INVALID_ARGUMENT, beginning "rows: ", "columns: ", "row_offsets: " or "column_indices: ", unless the arrays are
// a CSR pattern. Reads host memory. Checks every index, so that nothing checked is ever out of bounds on a device.
absl::Status ValidateCsr(int64_t rows, int64_t columns, absl::Span<const int64_t> row_offsets,
                         absl::Span<const int32_t> column_indices);

// The same; also INVALID_ARGUMENT "values: ..." unless there is one value for each column index.
template <typename T>
absl::Status ValidateCsr(const HostCsr<T>& matrix);

// Sorts and sums duplicates, in float64 in the order of the list, rounded once. INVALID_ARGUMENT "row_indices: ...",
// "column_indices: ..." or "values: ..." for indices out of range and lists of different lengths.
template <typename T>
absl::StatusOr<HostCsr<T>> CsrFromCoo(const HostCoo& coo);

// The transpose of a valid matrix.
template <typename T>
HostCsr<T> Transposed(const HostCsr<T>& matrix);

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

  // Bytes that a matrix of this shape takes; OUT_OF_RANGE when they overflow.
  static absl::StatusOr<int64_t> Bytes(int64_t rows, int64_t entries, ValueType type);

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
