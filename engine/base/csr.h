// SPDX-License-Identifier: Apache-2.0
// Sparse matrices on the host: compressed rows (CSR), the common form, and lists of entries (COO), as they come from
// outside.
//
// A CSR matrix has rows + 1 ascending offsets of 64 bits, from 0 to the number of entries; the columns of each row are
// strictly increasing int32, so that there are no duplicates. Empty rows, no rows and no columns are normal. An entry
// whose value is 0 is an entry. Rows and columns are at most 2^31 - 1.
//
// Thread safety: plain values; the functions are thread-safe.
#ifndef INTRAWARP_ENGINE_BASE_CSR_H_
#define INTRAWARP_ENGINE_BASE_CSR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

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

// INVALID_ARGUMENT, beginning with `name`, unless a number of rows or columns is in 0 to 2^31 - 1.
absl::Status ValidateCsrSize(const char* name, int64_t size);

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

// Bytes that the three arrays of a matrix take; OUT_OF_RANGE when they overflow.
absl::StatusOr<int64_t> CsrBytes(int64_t rows, int64_t entries, ValueType type);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_CSR_H_
