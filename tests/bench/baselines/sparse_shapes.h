// SPDX-License-Identifier: Apache-2.0
// The matrices of Zachariadis (2020), table 3.1, or, where the file is not at hand, matrices of their shape.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_SHAPES_H_
#define INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_SHAPES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/sparse/csr.h"

namespace intrawarp::baselines {

// A row of table 3.1; products, C and tiles are of A A.
struct PaperMatrix {
  std::string name;
  int64_t rows, entries, c_entries, products, c_tiles, tasks;
  // Makes a matrix of the same shape; null where only the file will do.
  std::function<HostCsr<double>()> make;
  // The made matrix has the published pattern, up to a permutation of the indices.
  bool same_pattern = false;
};
// In the table's order.
const std::vector<PaperMatrix>& PaperMatrices();

// The file name.mtx or name.mtx.gz in the folder; without a file the matrix that `make` makes, and *from_file is false.
// NOT_FOUND when there is neither. Values of made matrices are uniform in (0.5, 1.5).
absl::StatusOr<HostCsr<double>> LoadPaperMatrix(const PaperMatrix& matrix, const std::string& folder, bool* from_file);

}  // namespace intrawarp::baselines

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_SPARSE_SHAPES_H_
