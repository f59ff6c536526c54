// SPDX-License-Identifier: Apache-2.0
// Matrices for floods of products: one with the pattern of a finite-element model, one with a random pattern. Equal
// arguments give equal matrices; values are uniform in [0.5, 1.5). Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_MATRICES_H_
#define INTRAWARP_CLIENT_CLI_BENCH_MATRICES_H_

#include <cstdint>

#include "client/cpp/sparse_matrix.h"

namespace intrawarp::cli::bench {

// Trilinear hexahedra, three displacements a node: the 27-point pattern of a cube of nodes in blocks of 3 x 3. Has the
// most rows that a cube can have without passing `rows`, which is at least 3.
HostCsr<float> FiniteElementMatrix(int64_t rows, uint32_t seed);

// The diagonal, and up to 16 other columns a row, each with equal chance.
HostCsr<float> RandomMatrix(int64_t rows, uint32_t seed);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_MATRICES_H_
