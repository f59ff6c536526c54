// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/sparse_generators.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

namespace intrawarp {
namespace {

// Bits of an engine whose output the standard fixes, made uniform without the library's distributions, which it does
// not fix.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Uniform() * n); }

 private:
  std::mt19937_64 engine_;
};

void FillValues(HostCsr<double>& m, Random& random) {
  m.values.resize(m.column_indices.size());
  for (double& v : m.values) v = 0.5 + random.Uniform();
}

// Appends a row; sorts it and drops duplicates.
void AppendRow(std::vector<int32_t>& row, HostCsr<double>& m) {
  std::sort(row.begin(), row.end());
  row.erase(std::unique(row.begin(), row.end()), row.end());
  m.column_indices.insert(m.column_indices.end(), row.begin(), row.end());
  m.row_offsets.push_back(m.entries());
  row.clear();
}

HostCsr<double> Square(int n) {
  HostCsr<double> m;
  m.rows = m.columns = n;
  return m;
}

}  // namespace

HostCsr<double> Fem27(int d, int n, uint32_t seed) {
  HostCsr<double> m = Square(n * n * n * d);
  std::vector<int32_t> row;
  for (int node = 0; node < n * n * n; ++node) {
    const int x = node % n, y = node / n % n, z = node / (n * n);
    for (int of_block = 0; of_block < d; ++of_block) {
      for (int k = std::max(z - 1, 0); k <= std::min(z + 1, n - 1); ++k) {
        for (int j = std::max(y - 1, 0); j <= std::min(y + 1, n - 1); ++j) {
          for (int i = std::max(x - 1, 0); i <= std::min(x + 1, n - 1); ++i) {
            for (int c = 0; c < d; ++c) row.push_back(((k * n + j) * n + i) * d + c);
          }
        }
      }
      AppendRow(row, m);
    }
  }
  Random random(seed);
  FillValues(m, random);
  return m;
}

HostCsr<double> LinearInterpolation(int d, int n) {
  const int coarse = (n + 1) / 2;
  HostCsr<double> m;
  m.rows = n * n * n * d;
  m.columns = coarse * coarse * coarse * d;
  std::vector<int32_t> row;
  for (int node = 0; node < n * n * n; ++node) {
    const int x = node % n, y = node / n % n, z = node / (n * n);
    for (int of_block = 0; of_block < d; ++of_block) {
      for (int k = z / 2; k <= std::min((z + 1) / 2, coarse - 1); ++k) {
        for (int j = y / 2; j <= std::min((y + 1) / 2, coarse - 1); ++j) {
          for (int i = x / 2; i <= std::min((x + 1) / 2, coarse - 1); ++i) {
            row.push_back(((k * coarse + j) * coarse + i) * d + of_block);
          }
        }
      }
      const double value = 1.0 / static_cast<double>(row.size());
      m.values.insert(m.values.end(), row.size(), value);
      AppendRow(row, m);
    }
  }
  return m;
}

HostCsr<double> Band(int n, int half_width, uint32_t seed) {
  HostCsr<double> m = Square(n);
  std::vector<int32_t> row;
  for (int r = 0; r < n; ++r) {
    for (int c = std::max(r - half_width, 0); c <= std::min(r + half_width, n - 1); ++c) row.push_back(c);
    AppendRow(row, m);
  }
  Random random(seed);
  FillValues(m, random);
  return m;
}

HostCsr<double> Laplace2d(int n, uint32_t seed) {
  HostCsr<double> m = Square(n * n);
  std::vector<int32_t> row;
  for (int y = 0; y < n; ++y) {
    for (int x = 0; x < n; ++x) {
      const int r = y * n + x;
      row.push_back(r);
      if (x > 0) row.push_back(r - 1);
      if (x < n - 1) row.push_back(r + 1);
      if (y > 0) row.push_back(r - n);
      if (y < n - 1) row.push_back(r + n);
      AppendRow(row, m);
    }
  }
  Random random(seed);
  FillValues(m, random);
  return m;
}

HostCsr<double> Cage(int n, int extra, int near, int far, uint32_t seed) {
  HostCsr<double> m = Square(n);
  Random random(seed);
  std::vector<int32_t> row;
  for (int r = 0; r < n; ++r) {
    row.push_back(r);
    for (int e = 0; e < extra; ++e) {
      const int64_t reach = random.Below(2) == 0 ? near : far;
      const int64_t c = r - reach + random.Below(2 * reach + 1);
      row.push_back(static_cast<int32_t>(std::clamp<int64_t>(c, 0, n - 1)));
    }
    AppendRow(row, m);
  }
  FillValues(m, random);
  return m;
}

HostCsr<double> RMat(int scale, int64_t edges, double a, double b, double c, uint32_t seed) {
  Random random(seed);
  std::vector<std::pair<int32_t, int32_t>> list(edges);
  for (auto& [row, column] : list) {
    for (int level = 0; level < scale; ++level) {
      const double u = random.Uniform();
      row = 2 * row + (u >= a + b);
      column = 2 * column + ((u >= a && u < a + b) || u >= a + b + c);
    }
  }
  std::sort(list.begin(), list.end());
  HostCsr<double> m = Square(1 << scale);
  std::vector<int32_t> columns;
  size_t next = 0;
  for (int32_t r = 0; r < m.rows; ++r) {
    for (; next < list.size() && list[next].first == r; ++next) columns.push_back(list[next].second);
    AppendRow(columns, m);
  }
  FillValues(m, random);
  return m;
}

absl::StatusOr<HostCsr<double>> MatrixByName(const std::string& name, uint32_t seed) {
  int d = 0, n = 0;
  if (std::sscanf(name.c_str(), "fem27x%d_%d", &d, &n) == 2 && d > 0 && n > 0) return Fem27(d, n, seed);
  if (std::sscanf(name.c_str(), "stencil27_%d", &n) == 1 && n > 0) return Fem27(1, n, seed);
  if (std::sscanf(name.c_str(), "lap2d_%d", &n) == 1 && n > 0) return Laplace2d(n, seed);
  if (name == "band_9506") return Band(9506, 61, seed);
  if (name == "cage_130k") return Cage(130228, 15, 60, 9000, seed);
  if (name == "rmat_500k") return RMat(19, 1500000, .57, .19, .19, seed);
  return absl::InvalidArgumentError("name: no such matrix");
}

}  // namespace intrawarp
