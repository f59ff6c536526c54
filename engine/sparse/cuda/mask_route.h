// SPDX-License-Identifier: Apache-2.0
// The choice between two ways for a product under a mask: by the entries of the mask (masked.h), or as the whole
// product, from which the mask then selects (mask_selection.h). Internal to engine/sparse/cuda. Pure functions.
//
// Model. Both ways are charged for what they do, counted row by row; analysis.h counts it in one walk over A. Row i has
// n_i multiplications, a_i entries of A, and p_i pieces of its mask's row (masked.h).
//   by the mask   kLookUp sum n_i + kVisit sum a_i p_i + kPiece sum p_i: every product is looked up; for each entry
//                 of A two searches narrow its row of B to a piece; a piece has its table made and read
//   whole         kTinyProduct, kTileProduct or kOtherProduct for each product, by the row's kind, kSelected for each
//                 entry of the mask, and kWholeLaunches once
// A row is tiny as in row_classes.h. All others count as tiled where the runs of A and B suggest tiles (tiles.h), as
// others elsewhere.
//
// The constants are fitted to the times of seven matrices on an H200 (docs/evidence/performance.md, "Sparse products
// under a mask"), values and pattern together, in fp32. For the five regular ones the first formula is within 20 % of
// the time; it is too low by a factor of three for the power-law graph, whose whole product is slower still.
// kTileProduct is the dearest of three matrices (1.1 to 2.9 ps). kOtherProduct lies between a stencil (13 ps), a matrix
// with few products an entry of C (31 ps) and the graph (57 ps). kSelected was estimated: a search of some twenty steps
// in cached offsets, one in a row of the product, and the copy of a value. The choice was the faster way for all seven
// matrices when both were measured (same page, "The choice of a route").
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_MASK_ROUTE_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_MASK_ROUTE_H_

#include <cstdint>

#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

// Picoseconds.
inline constexpr double kLookUp = 2.2, kVisit = 260, kPiece = 600;
inline constexpr double kTinyProduct = 12, kTileProduct = 3, kOtherProduct = 30, kSelected = 40, kWholeLaunches = 2e7;

// The whole product is not made where it may take more memory than this, plan, workspace and values together: the time
// that it saves is not worth any amount of memory. Free memory does not count, so the choice, and with it the order of
// the sums, is the same in every run.
inline constexpr int64_t kMostWholeBytes = int64_t{4} << 30;

// The work of a product under a mask, both ways.
struct MaskedWork {
  int64_t multiplications = 0;       // of the whole product
  int64_t tiny_multiplications = 0;  // of these, in tiny rows
  int64_t visits = 0;                // entries of A, times pieces of the mask's row
  int64_t pieces = 0;
  int64_t mask_entries = 0;
  bool tiles = false;  // the rows that are not tiny may go by tiles
};

inline double MaskedPicoseconds(const MaskedWork& w) {
  return kLookUp * static_cast<double>(w.multiplications) + kVisit * static_cast<double>(w.visits) +
         kPiece * static_cast<double>(w.pieces);
}

inline double WholePicoseconds(const MaskedWork& w) {
  const auto others = static_cast<double>(w.multiplications - w.tiny_multiplications);
  return kTinyProduct * static_cast<double>(w.tiny_multiplications) +
         (w.tiles ? kTileProduct : kOtherProduct) * others + kSelected * static_cast<double>(w.mask_entries) +
         kWholeLaunches;
}

// kMasked or kWhole; kMasked where there is nothing to multiply or to select. `whole_bytes` bounds the memory that the
// whole product takes.
inline MaskRoute ChooseMaskRoute(const MaskedWork& w, int64_t whole_bytes) {
  if (w.multiplications == 0 || w.mask_entries == 0 || whole_bytes > kMostWholeBytes) return MaskRoute::kMasked;
  return WholePicoseconds(w) < MaskedPicoseconds(w) ? MaskRoute::kWhole : MaskRoute::kMasked;
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_MASK_ROUTE_H_
