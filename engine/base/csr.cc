// SPDX-License-Identifier: Apache-2.0
#include "engine/base/csr.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();

absl::Status CheckIndices(const char* name, const std::vector<int32_t>& indices, int32_t size) {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= size) {
      return FieldError(absl::StatusCode::kInvalidArgument, name,
                        absl::StrCat("entry ", i, " has index ", indices[i], ", which is not in 0 to ", size - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRow(int64_t row, absl::Span<const int32_t> indices, int64_t columns) {
  int64_t before = -1;
  for (int32_t column : indices) {
    if (column < 0 || column >= columns) {
      return FieldError(absl::StatusCode::kInvalidArgument, "column_indices",
                        absl::StrCat("row ", row, " has column ", column, " of ", columns));
    }
    if (column <= before) {
      return FieldError(absl::StatusCode::kInvalidArgument, "column_indices",
                        absl::StrCat("row ", row, " is not strictly increasing at column ", column));
    }
    before = column;
  }
  return absl::OkStatus();
}

// Offsets of the rows from counts shifted by one: counts[r + 1] is the size of row r.
void SumCounts(std::vector<int64_t>& counts) { std::partial_sum(counts.begin(), counts.end(), counts.begin()); }

struct Entry {
  int32_t column;
  double value;
};

// The entries of all rows, each row in the order of the list.
std::vector<Entry> BucketByRow(const HostCoo& coo, const std::vector<int64_t>& offsets) {
  std::vector<int64_t> next(offsets.begin(), offsets.end() - 1);
  std::vector<Entry> entries(coo.entries());
  for (int64_t i = 0; i < coo.entries(); ++i) {
    entries[next[coo.row_indices[i]]++] = {coo.column_indices[i], coo.values[i]};
  }
  return entries;
}

// Sorts a row and sums its duplicates in place; returns its new length.
int64_t SortRow(Entry* begin, Entry* end) {
  const auto less = [](const Entry& a, const Entry& b) { return a.column < b.column; };
  if (!std::is_sorted(begin, end, less)) std::stable_sort(begin, end, less);
  Entry* out = begin;
  for (Entry* e = begin; e != end; ++e) {
    if (out != begin && out[-1].column == e->column) {
      out[-1].value += e->value;
    } else {
      *out++ = *e;
    }
  }
  return out - begin;
}

}  // namespace

absl::Status ValidateCsrSize(const char* name, int64_t size) {
  if (size >= 0 && size <= kMaxIndex) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, name, absl::StrCat(size, " is not in 0 to ", kMaxIndex));
}

absl::Status ValidateCsr(int64_t rows, int64_t columns, absl::Span<const int64_t> row_offsets,
                         absl::Span<const int32_t> column_indices) {
  INTRAWARP_RETURN_IF_ERROR(ValidateCsrSize("rows", rows));
  INTRAWARP_RETURN_IF_ERROR(ValidateCsrSize("columns", columns));
  const int64_t entries = static_cast<int64_t>(column_indices.size());
  if (static_cast<int64_t>(row_offsets.size()) != rows + 1) {
    return FieldError(absl::StatusCode::kInvalidArgument, "row_offsets",
                      absl::StrCat(row_offsets.size(), " offsets for ", rows, " rows; there must be one more"));
  }
  if (row_offsets.front() != 0)
    return FieldError(absl::StatusCode::kInvalidArgument, "row_offsets", "the first is not 0");
  for (int64_t r = 0; r < rows; ++r) {
    if (row_offsets[r + 1] < row_offsets[r]) {
      return FieldError(absl::StatusCode::kInvalidArgument, "row_offsets", absl::StrCat("decrease after row ", r));
    }
  }
  if (row_offsets.back() != entries) {
    return FieldError(absl::StatusCode::kInvalidArgument, "row_offsets",
                      absl::StrCat("the last is ", row_offsets.back(), ", but there are ", entries, " entries"));
  }
  for (int64_t r = 0; r < rows; ++r) {
    INTRAWARP_RETURN_IF_ERROR(
        CheckRow(r, column_indices.subspan(row_offsets[r], row_offsets[r + 1] - row_offsets[r]), columns));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ValidateCsr(const HostCsr<T>& matrix) {
  if (matrix.values.size() != matrix.column_indices.size()) {
    return FieldError(
        absl::StatusCode::kInvalidArgument, "values",
        absl::StrCat(matrix.values.size(), " values for ", matrix.column_indices.size(), " column indices"));
  }
  return ValidateCsr(matrix.rows, matrix.columns, matrix.row_offsets, matrix.column_indices);
}

template <typename T>
absl::StatusOr<HostCsr<T>> CsrFromCoo(const HostCoo& coo) {
  INTRAWARP_RETURN_IF_ERROR(ValidateCsrSize("rows", coo.rows));
  INTRAWARP_RETURN_IF_ERROR(ValidateCsrSize("columns", coo.columns));
  if (coo.column_indices.size() != coo.row_indices.size()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "column_indices", "not as many as row_indices");
  }
  if (coo.values.size() != coo.row_indices.size()) {
    return FieldError(absl::StatusCode::kInvalidArgument, "values", "not as many as row_indices");
  }
  INTRAWARP_RETURN_IF_ERROR(CheckIndices("row_indices", coo.row_indices, coo.rows));
  INTRAWARP_RETURN_IF_ERROR(CheckIndices("column_indices", coo.column_indices, coo.columns));

  std::vector<int64_t> bucket(coo.rows + size_t{1});
  for (int32_t r : coo.row_indices) ++bucket[r + size_t{1}];
  SumCounts(bucket);
  std::vector<Entry> entries = BucketByRow(coo, bucket);

  HostCsr<T> csr;
  csr.rows = coo.rows;
  csr.columns = coo.columns;
  csr.row_offsets.assign(coo.rows + size_t{1}, 0);
  for (int64_t r = 0; r < coo.rows; ++r) {
    csr.row_offsets[r + 1] = SortRow(entries.data() + bucket[r], entries.data() + bucket[r + 1]);
  }
  SumCounts(csr.row_offsets);
  csr.column_indices.resize(csr.row_offsets.back());
  csr.values.resize(csr.row_offsets.back());
  for (int64_t r = 0; r < coo.rows; ++r) {
    const Entry* from = entries.data() + bucket[r];
    for (int64_t i = csr.row_offsets[r]; i < csr.row_offsets[r + 1]; ++i, ++from) {
      csr.column_indices[i] = from->column;
      csr.values[i] = static_cast<T>(from->value);
    }
  }
  return csr;
}

template <typename T>
HostCsr<T> Transposed(const HostCsr<T>& matrix) {
  HostCsr<T> out;
  out.rows = matrix.columns;
  out.columns = matrix.rows;
  out.row_offsets.assign(matrix.columns + size_t{1}, 0);
  for (int32_t column : matrix.column_indices) ++out.row_offsets[column + size_t{1}];
  SumCounts(out.row_offsets);
  out.column_indices.resize(matrix.column_indices.size());
  out.values.resize(matrix.values.size());
  std::vector<int64_t> next(out.row_offsets.begin(), out.row_offsets.end() - 1);
  for (int32_t r = 0; r < matrix.rows; ++r) {
    for (int64_t i = matrix.row_offsets[r]; i < matrix.row_offsets[r + 1]; ++i) {
      const int64_t to = next[matrix.column_indices[i]]++;
      out.column_indices[to] = r;
      out.values[to] = matrix.values[i];
    }
  }
  return out;
}

absl::StatusOr<int64_t> CsrBytes(int64_t rows, int64_t entries, ValueType type) {
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t of_entries, CheckedMultiply(entries, 4 + BytesPerValue(type)));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t of_rows, CheckedMultiply(rows + 1, sizeof(int64_t)));
  int64_t bytes = 0;
  if (__builtin_add_overflow(of_entries, of_rows, &bytes)) return absl::OutOfRangeError("size overflows 64 bits");
  return bytes;
}

#define INTRAWARP_INSTANTIATE(T)                                     \
  template absl::Status ValidateCsr(const HostCsr<T>&);              \
  template absl::StatusOr<HostCsr<T>> CsrFromCoo<T>(const HostCoo&); \
  template HostCsr<T> Transposed(const HostCsr<T>&)
INTRAWARP_INSTANTIATE(float);
INTRAWARP_INSTANTIATE(double);
#undef INTRAWARP_INSTANTIATE

}  // namespace intrawarp
