// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/cuda/launcher.cuh"
#include "engine/sparse/cuda/limits.h"
#include "engine/sparse/cuda/row_lists.cuh"
#include "engine/sparse/cuda/row_pieces.h"
#include "engine/sparse/cuda/search.cuh"

namespace intrawarp::cuda::spgemm {
namespace {

// The pieces begin here in their buffer, behind the lengths.
constexpr size_t kPiecesAt = Arena::kAlignment;

// A thread cuts a row of `of_class`. All but the last piece of a row are full of entries or of columns.
__global__ void CutKernel(ConstPatternView c, RowBinsView bins, int of_class, unsigned split_rows, int max_entries,
                          unsigned* length, RowPiece* pieces) {
  const unsigned at = blockIdx.x * kThreads + threadIdx.x;
  const int32_t row = at < split_rows ? *bins.RowAt(of_class, at) : 0;
  const int64_t begin = c.row_offsets[row], end = at < split_rows ? c.row_offsets[row + 1] : begin;
  const auto next = [&](int64_t from) {
    const int64_t stop = min(from + max_entries, end);
    const int64_t last = c.column_indices[from] / 32 * 32 + int64_t{kSplitWords} * 32 - 1;
    return last >= c.column_indices[stop - 1]
               ? stop
               : LowerBound(c.column_indices, from, stop, static_cast<int32_t>(last + 1));
  };
  unsigned count = 0;
  for (int64_t i = begin; i < end; i = next(i)) ++count;
  unsigned place = ReservePlaces<1>(count > 0 ? 0 : -1, count, length);
  for (int64_t i = begin; i < end;) {
    const int64_t stop = next(i);
    pieces[place++] = {row, static_cast<int32_t>(i - begin), static_cast<int32_t>(stop - i)};
    i = stop;
  }
}

}  // namespace

int64_t RowPieces::CapacityFor(int64_t rows, int64_t columns, int64_t entries, ValueType type) {
  if (rows == 0) return 0;
  const int64_t full = entries / SplitEntries(static_cast<int>(BytesPerValue(type)));
  return std::min(rows * (columns / (kSplitWords * int64_t{32} - 31) + 2) + full + 1, entries);
}

int64_t RowPieces::Bytes(const std::array<int64_t, 2>& capacity) {
  return kPiecesAt + (capacity[0] + capacity[1]) * sizeof(RowPiece);
}

int64_t RowPieces::MostBytes(const ConstPatternView& a, const ConstPatternView& b, int64_t multiplications,
                             int64_t entries, ValueType type, Accumulators accumulators) {
  // A row in pieces has more than 1024 entries or more bits than kLargestBytes, or it is heavy.
  const int64_t least = accumulators == Accumulators::kBitmaps ? 1 : TableEntries(kTable1024);
  const int64_t split_rows = std::min<int64_t>(a.rows, entries / least);
  const int64_t heavy_rows =
      std::min<int64_t>(a.rows, a.entries / kHeavyEntries + multiplications / RowLimitsOf(a).heavy_multiplications);
  if (split_rows + heavy_rows == 0) return 0;
  return Bytes({CapacityFor(split_rows, b.columns, entries, type), CapacityFor(heavy_rows, b.columns, entries, type)});
}

RowPiecesView RowPieces::view() const {
  if (memory.empty()) return {};
  RowPiece* const pieces = reinterpret_cast<RowPiece*>(memory.as<char>() + kPiecesAt);
  return {memory.as<unsigned>(), {pieces, pieces + capacity[0]}};
}

absl::StatusOr<RowPieces> CutRows(const ExecContext& ctx, const RowBins& bins, const ConstPatternView& c,
                                  ValueType type) {
  RowPieces pieces;
  if (bins.lengths[kSplit] + bins.lengths[kSplitHeavy] == 0) return pieces;
  const int value_bytes = static_cast<int>(BytesPerValue(type));
  for (int i = 0; i < 2; ++i) {
    pieces.capacity[i] = RowPieces::CapacityFor(bins.lengths[kSplit + i], c.columns, c.entries, type);
    INTRAWARP_RETURN_IF_ERROR(CheckTasks("pieces of long rows", pieces.capacity[i]));
  }
  INTRAWARP_ASSIGN_OR_RETURN(pieces.memory, ctx.device().Allocate(RowPieces::Bytes(pieces.capacity), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(pieces.memory.as<void>(), 0, kPiecesAt, ctx.stream()));
  const RowPiecesView view = pieces.view();
  for (int i = 0; i < 2; ++i) {
    const unsigned rows = bins.lengths[kSplit + i];
    if (rows == 0) continue;
    CutKernel<<<BlocksFor(rows), kThreads, 0, CudaStream(ctx)>>>(
        c, bins.view(), kSplit + i, rows, static_cast<int>(SplitEntries(value_bytes)), view.lengths + i, view.lists[i]);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  return pieces;
}

}  // namespace intrawarp::cuda::spgemm
