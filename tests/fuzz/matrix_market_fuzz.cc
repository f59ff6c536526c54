// SPDX-License-Identifier: Apache-2.0
// Matrix Market files: the indices of what is read lie within the matrix.
#include "io/format/matrix_market.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using intrawarp::fuzz::Require;
  const intrawarp::fuzz::MemoryFile file(data, size);
  const auto matrix = intrawarp::io::ReadMatrixMarket(file.path(), int64_t{4} << 20);
  intrawarp::fuzz::RequireRefusal(matrix.status());
  if (!matrix.ok()) return 0;
  Require(matrix->row_indices.size() == matrix->values.size(), "a row for each value");
  Require(matrix->column_indices.size() == matrix->values.size(), "a column for each value");
  for (size_t i = 0; i < matrix->values.size(); ++i) {
    Require(matrix->row_indices[i] >= 0 && matrix->row_indices[i] < matrix->rows, "a row of the matrix");
    Require(matrix->column_indices[i] >= 0 && matrix->column_indices[i] < matrix->columns, "a column of the matrix");
  }
  return 0;
}
