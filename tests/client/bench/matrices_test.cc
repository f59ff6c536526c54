// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/matrices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace intrawarp::cli::bench {
namespace {

// Whether row and column belong to nodes that are neighbours in a cube of n nodes, or the same.
bool AreNeighbours(int row, int column, int n) {
  const int a = row / 3, b = column / 3;
  const int apart[3] = {a % n - b % n, a / n % n - b / n % n, a / (n * n) - b / (n * n)};
  return std::all_of(std::begin(apart), std::end(apart), [](int d) { return d >= -1 && d <= 1; });
}

TEST(BenchMatrices, TheFiniteElementMatrixCouplesNeighbours) {
  for (const int n : {1, 2, 3, 5}) {
    const HostCsr<float> matrix = FiniteElementMatrix(3 * n * n * n, 7);
    ASSERT_EQ(matrix.rows, 3 * n * n * n);
    ASSERT_TRUE(ValidateCsr(matrix).ok());
    std::set<std::pair<int, int>> found;
    for (int row = 0; row < matrix.rows; ++row) {
      for (int64_t i = matrix.row_offsets[row]; i < matrix.row_offsets[row + 1]; ++i) {
        found.emplace(row, matrix.column_indices[i]);
      }
    }
    for (int row = 0; row < matrix.rows; ++row) {
      for (int column = 0; column < matrix.columns; ++column) {
        ASSERT_EQ(found.count({row, column}) == 1, AreNeighbours(row, column, n))
            << row << ", " << column << " of " << n;
      }
    }
  }
}

TEST(BenchMatrices, TheFiniteElementMatrixIsTheLargestThatFits) {
  EXPECT_EQ(FiniteElementMatrix(3, 1).rows, 3);
  EXPECT_EQ(FiniteElementMatrix(23, 1).rows, 3);
  EXPECT_EQ(FiniteElementMatrix(24, 1).rows, 24);
  EXPECT_EQ(FiniteElementMatrix(24000, 1).rows, 24000);
}

TEST(BenchMatrices, TheRandomMatrixHasItsDiagonalAndOthers) {
  for (const int rows : {3, 17, 1000}) {
    const HostCsr<float> matrix = RandomMatrix(rows, 3);
    ASSERT_EQ(matrix.rows, rows);
    ASSERT_TRUE(ValidateCsr(matrix).ok());
    for (int row = 0; row < rows; ++row) {
      const auto begin = matrix.column_indices.begin() + matrix.row_offsets[row];
      const auto end = matrix.column_indices.begin() + matrix.row_offsets[row + 1];
      EXPECT_TRUE(std::binary_search(begin, end, row));
      EXPECT_LE(end - begin, 17);
    }
  }
}

TEST(BenchMatrices, EqualSeedsGiveEqualMatrices) {
  EXPECT_EQ(RandomMatrix(100, 5), RandomMatrix(100, 5));
  EXPECT_NE(RandomMatrix(100, 5), RandomMatrix(100, 6));
  EXPECT_EQ(FiniteElementMatrix(100, 5), FiniteElementMatrix(100, 5));
  for (const float value : RandomMatrix(100, 5).values) EXPECT_TRUE(value >= 0.5f && value <= 1.5f) << value;
}

}  // namespace
}  // namespace intrawarp::cli::bench
