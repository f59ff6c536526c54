// SPDX-License-Identifier: Apache-2.0
// Matrices that stand for the shapes that sparse products meet: finite elements, stencils, bands, random near and far
// couplings, power-law graphs. The pattern depends on the parameters (and the seed) alone; values are uniform in
// (0.5, 1.5) from the seed.
#ifndef INTRAWARP_TESTS_BENCH_SPARSE_GENERATORS_H_
#define INTRAWARP_TESTS_BENCH_SPARSE_GENERATORS_H_

#include <cstdint>
#include <string>

#include "engine/sparse/csr.h"

namespace intrawarp {

// The 27-point pattern of an n^3 grid, Kronecker a full d x d block.
HostCsr<double> Fem27(int d, int n, uint32_t seed);
// Linear interpolation to an n^3 grid with d unknowns a node from its every second node, beginning with the first: 1,
// 2, 4 or 8 entries a row, whose values are 1, 1/2, 1/4 or 1/8. A node beyond the last coarse one takes that one's
// value.
HostCsr<double> LinearInterpolation(int d, int n);
// All diagonals from -half_width to half_width.
HostCsr<double> Band(int n, int half_width, uint32_t seed);
// The 5-point pattern of an n^2 grid.
HostCsr<double> Laplace2d(int n, uint32_t seed);
// The diagonal and `extra` columns a row, each with equal chance within `near` or within `far` of it (clipped).
HostCsr<double> Cage(int n, int extra, int near, int far, uint32_t seed);
// R-MAT (Chakrabarti, Zhan and Faloutsos 2004) with 2^scale rows and `edges` edges before duplicates.
HostCsr<double> RMat(int scale, int64_t edges, double a, double b, double c, uint32_t seed);

// By the names of the comparison's table: fem27xD_N, stencil27_N, band_9506, lap2d_N, cage_130k, rmat_500k.
// INVALID_ARGUMENT for another.
absl::StatusOr<HostCsr<double>> MatrixByName(const std::string& name, uint32_t seed);

// Scalar products of a b: the sum over entries a_ik of the entries of row k of b.
template <typename T>
int64_t CountProducts(const HostCsr<T>& a, const HostCsr<T>& b) {
  int64_t products = 0;
  for (int32_t k : a.column_indices) products += b.row_offsets[k + size_t{1}] - b.row_offsets[k];
  return products;
}

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_BENCH_SPARSE_GENERATORS_H_
