// SPDX-License-Identifier: Apache-2.0
// How a reduction over a grid is cut into pieces: runs of whole rows (x fastest), by the sizes alone, so that the order
// of summation never depends on the number of cores or SMs.
#ifndef INTRAWARP_ENGINE_IMAGE_ROWS_H_
#define INTRAWARP_ENGINE_IMAGE_ROWS_H_

#include <algorithm>

#include "engine/base/host_device.h"

namespace intrawarp {

inline constexpr int kVoxelsPerPiece = 8192;
inline constexpr int kMaxPieces = 4096;

struct RowPieces {
  int rows = 0;
  int rows_per_piece = 1;
  int pieces = 0;

  INTRAWARP_HD int begin(int piece) const { return piece * rows_per_piece; }
  INTRAWARP_HD int end(int piece) const {
    const int end = (piece + 1) * rows_per_piece;
    return end < rows ? end : rows;
  }
};

// `rows` is at most kMaxAxis squared.
inline RowPieces MakeRowPieces(int rows, int row_length) {
  RowPieces p;
  p.rows = rows;
  p.rows_per_piece = std::max({1, kVoxelsPerPiece / std::max(row_length, 1), (rows + kMaxPieces - 1) / kMaxPieces});
  p.pieces = (rows + p.rows_per_piece - 1) / p.rows_per_piece;
  return p;
}

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_IMAGE_ROWS_H_
