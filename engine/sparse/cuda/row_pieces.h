// SPDX-License-Identifier: Apache-2.0
// Cuts long rows of C into pieces, each of which a warp or a block computes. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ROW_PIECES_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ROW_PIECES_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/cuda/row_bins.h"

namespace intrawarp::cuda::spgemm {

// Entries [skipped, skipped + count) of a row of C.
struct RowPiece {
  int32_t row;
  int32_t skipped;
  int32_t count;
};

// The lists of RowPieces, for kernels: pieces of kSplit, pieces of kSplitHeavy.
struct RowPiecesView {
  unsigned* lengths;
  RowPiece* lists[2];
};

// The part of a plan that holds the pieces; empty when no row is long. `capacity` bounds the number of pieces of kSplit
// and of kSplitHeavy; the numbers themselves are known on the device alone.
struct RowPieces {
  Buffer memory;
  std::array<int64_t, 2> capacity = {};

  // Upper bound on the pieces of `rows` rows with `entries` entries of C in `columns` columns: a piece has an entry,
  // and each but the last of a row is full of entries or of columns.
  static int64_t CapacityFor(int64_t rows, int64_t columns, int64_t entries, ValueType type);
  static int64_t Bytes(const std::array<int64_t, 2>& capacity);
  // Upper bound on Bytes, by the number of multiplications and of entries of C. With bitmaps for all rows, rows of few
  // entries may be long, too.
  static int64_t MostBytes(const ConstPatternView& a, const ConstPatternView& b, int64_t multiplications,
                           int64_t entries, ValueType type, Accumulators accumulators);
  RowPiecesView view() const;
  int64_t bytes() const { return static_cast<int64_t>(memory.bytes()); }
};

// Cuts the rows of `c`, whose columns are known. RESOURCE_EXHAUSTED, also for more pieces than a list takes (limits.h).
// Stream-ordered.
absl::StatusOr<RowPieces> CutRows(const ExecContext& ctx, const RowBins& bins, const ConstPatternView& c,
                                  ValueType type);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ROW_PIECES_H_
