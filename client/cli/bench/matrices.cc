// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/matrices.h"

#include <algorithm>
#include <vector>

#include "client/phantom/anatomy.h"

namespace intrawarp::cli::bench {
namespace {

constexpr int kDisplacements = 3;
constexpr int kRandomColumns = 16;

void SetSquare(int64_t rows, HostCsr<float>* matrix) {
  matrix->rows = matrix->columns = static_cast<int32_t>(rows);
  matrix->row_offsets.reserve(static_cast<size_t>(rows) + 1);
}

void FillValues(uint32_t seed, HostCsr<float>* matrix) {
  phantom::UniformRandom random(seed);
  matrix->values.resize(matrix->column_indices.size());
  for (float& value : matrix->values) value = static_cast<float>(random(0.5, 1.5));
}

// The first and the last neighbour of a node along an axis of n nodes.
int First(int i) { return std::max(i - 1, 0); }
int Last(int i, int n) { return std::min(i + 1, n - 1); }

void AppendNodeRow(int x, int y, int z, int n, HostCsr<float>* matrix) {
  for (int k = First(z); k <= Last(z, n); ++k) {
    for (int j = First(y); j <= Last(y, n); ++j) {
      for (int i = First(x); i <= Last(x, n); ++i) {
        const int node = (k * n + j) * n + i;
        for (int c = 0; c < kDisplacements; ++c) matrix->column_indices.push_back(node * kDisplacements + c);
      }
    }
  }
  matrix->row_offsets.push_back(matrix->entries());
}

}  // namespace

HostCsr<float> FiniteElementMatrix(int64_t rows, uint32_t seed) {
  int n = 1;
  while (int64_t{kDisplacements} * (n + 1) * (n + 1) * (n + 1) <= rows) ++n;
  HostCsr<float> matrix;
  SetSquare(int64_t{kDisplacements} * n * n * n, &matrix);
  for (int node = 0; node < n * n * n; ++node) {
    for (int row = 0; row < kDisplacements; ++row) AppendNodeRow(node % n, node / n % n, node / (n * n), n, &matrix);
  }
  FillValues(seed, &matrix);
  return matrix;
}

HostCsr<float> RandomMatrix(int64_t rows, uint32_t seed) {
  HostCsr<float> matrix;
  SetSquare(rows, &matrix);
  phantom::UniformRandom random(uint64_t{seed} + 0x72616e64);
  std::vector<int32_t> columns;
  for (int64_t row = 0; row < rows; ++row) {
    columns.assign(1, static_cast<int32_t>(row));
    for (int i = 0; i < kRandomColumns; ++i) {
      columns.push_back(static_cast<int32_t>(random(0, static_cast<double>(rows))));
    }
    std::sort(columns.begin(), columns.end());
    columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    matrix.column_indices.insert(matrix.column_indices.end(), columns.begin(), columns.end());
    matrix.row_offsets.push_back(matrix.entries());
  }
  FillValues(seed, &matrix);
  return matrix;
}

}  // namespace intrawarp::cli::bench
