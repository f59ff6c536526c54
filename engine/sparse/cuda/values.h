// SPDX-License-Identifier: Apache-2.0
// The values of a product by scalars, for rows whose columns are known. Internal to engine/sparse/cuda.
//
// Tiny rows are merged again; short_rows.h says how short rows are made. Any other row is computed by a warp, whole or
// in pieces: a bitmap of the row's columns with the rank of each word (a hash table where columns are few and far
// apart) leads from a column to its sum in shared memory. The warp walks the rows of B one at a time, since the entries
// of one row never fall on one sum. Where rows of B are short, the warp walks all products in order, 32 at a time, and
// lanes whose products fall on one sum take turns. So the order of a sum is fixed: fma(a, b, sum), from 0, k ascending.
// Rows with one pattern share the walk. A block computes a heavy row, and a row whose many entries lie far apart: its
// warps take turns with the entries of A, each with sums of its own, which are then added in order.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_VALUES_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_VALUES_H_

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/cuda/row_bins.h"
#include "engine/sparse/cuda/row_pieces.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

// The rows that ExecuteRows computes: all but those that go by tiles.
struct ScalarRows {
  const RowBins& bins;
  const RowPieces& pieces;
  ConstPatternView c;  // the product, before mask and addend
  bool write_columns;  // planning has left the columns of tiny and short rows to this execution
};

// Writes the values of the rows, times alpha. Does not wait. Of the options, the semiring and alpha count.
absl::Status ExecuteRows(const ExecContext& ctx, const ScalarRows& rows, const MultiplyOptions& options,
                         const ConstCsrView& a, const ConstCsrView& b, void* values);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_VALUES_H_
