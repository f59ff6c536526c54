// SPDX-License-Identifier: Apache-2.0
// Small obvious float64 references for tests of sparse operators.
#ifndef INTRAWARP_TESTS_ENGINE_SPARSE_REFERENCE_H_
#define INTRAWARP_TESTS_ENGINE_SPARSE_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "engine/sparse/csr.h"
#include "engine/sparse/multiply.h"

namespace intrawarp {

// An entry of a product: its value, the sum of the magnitudes of its terms, and the number of terms.
struct ReferenceEntry {
  double value = 0;
  double magnitude = 0;
  int terms = 0;
};
using ReferenceRow = std::map<int32_t, ReferenceEntry>;

// Row i of a b, by Gustavson's algorithm in float64, k ascending; entries that cancel stay.
template <typename T>
ReferenceRow ReferenceProductRow(const HostCsr<T>& a, const HostCsr<T>& b, int32_t i) {
  ReferenceRow row;
  for (int64_t p = a.row_offsets[i]; p < a.row_offsets[i + 1]; ++p) {
    const int32_t k = a.column_indices[p];
    for (int64_t q = b.row_offsets[k]; q < b.row_offsets[k + 1]; ++q) {
      ReferenceEntry& e = row[b.column_indices[q]];
      const double term = static_cast<double>(a.values[p]) * static_cast<double>(b.values[q]);
      e.value += term;
      e.magnitude += std::abs(term);
      ++e.terms;
    }
  }
  return row;
}

// The entries (i, j) of alpha a b over the semiring for which keeps(i, j), by a map for each row and ascending k, in T.
template <typename T, typename Keeps>
HostCsr<T> OrderedProduct(const HostCsr<T>& a, const HostCsr<T>& b, Semiring semiring, T alpha, const Keeps& keeps) {
  HostCsr<T> c;
  c.rows = a.rows;
  c.columns = b.columns;
  for (int32_t r = 0; r < a.rows; ++r) {
    std::map<int32_t, T> row;
    for (int64_t p = a.row_offsets[r]; p < a.row_offsets[r + 1]; ++p) {
      const int32_t k = a.column_indices[p];
      for (int64_t q = b.row_offsets[k]; q < b.row_offsets[k + 1]; ++q) {
        if (!keeps(r, b.column_indices[q])) continue;
        const T x = a.values[p], y = b.values[q];
        const auto [entry, is_new] = row.try_emplace(b.column_indices[q], T{0});
        T& sum = entry->second;
        if (semiring == Semiring::kPlusTimes) sum = std::fma(x, y, sum);
        if (semiring == Semiring::kOrAnd) sum = static_cast<T>(sum != 0 || (x != 0 && y != 0));
        if (semiring == Semiring::kMinPlus) sum = is_new ? x + y : std::min(sum, x + y);
      }
    }
    for (const auto& [column, value] : row) {
      c.column_indices.push_back(column);
      c.values.push_back(alpha == T{1} ? value : alpha * value);
    }
    c.row_offsets.push_back(c.entries());
  }
  return c;
}

// Each entry present with probability `density`; values uniform in (low, high), small integers when asked.
inline HostCsr<double> RandomMatrix(int32_t rows, int32_t columns, double density, uint32_t seed,
                                    bool integers = false) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> chance(0, 1), real(-1.5, 1.5);
  std::uniform_int_distribution<int> integer(-4, 4);
  HostCsr<double> m;
  m.rows = rows;
  m.columns = columns;
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t c = 0; c < columns; ++c) {
      if (chance(engine) >= density) continue;
      m.column_indices.push_back(c);
      m.values.push_back(integers ? integer(engine) : real(engine));
    }
    m.row_offsets.push_back(m.entries());
  }
  return m;
}

template <typename To, typename From>
HostCsr<To> CastValues(const HostCsr<From>& m) {
  return {m.rows, m.columns, m.row_offsets, m.column_indices, std::vector<To>(m.values.begin(), m.values.end())};
}

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_SPARSE_REFERENCE_H_
