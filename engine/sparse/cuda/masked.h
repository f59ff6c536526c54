// SPDX-License-Identifier: Apache-2.0
// A product under a mask, without the whole product: C's entries are the entries (i, j) of the mask for which a k has
// entries a_ik and b_kj. Internal to engine/sparse/cuda.
//
// Work is cut into pieces. A piece is up to kWarpPiece consecutive entries of a row, which a warp computes, or up to
// kBlockPiece entries where the row of A has kHeavyEntries or more; there a block computes the piece, and its warps
// take turns with the entries of A. Planning cuts the rows of the mask, an execution the rows of C. A hash table in
// shared memory leads from the columns of a piece to their places. For each a_ik, two binary searches find the part of
// row b_k between the first and the last column of the piece; then the part is walked, and each of its columns looked
// up, or, if the part is long beside the piece (kSearchCost), each column of the piece is searched in it. Planning
// marks the places that were found, one bit each. It stops walking a piece all of whose entries were found.
//
// A warp adds products by ascending k. The warps of a block have sums of their own, which are joined in order. How a
// row is cut follows from the lengths of its rows in A and C, so the bits are the same in every run.
//
// Model. Row i has m_i entries of the mask and p_i pieces, each of n entries at most; row i of A has a_i entries;
// piece p meets l_pk entries of row k of B between its columns.
//   operations: 2 a_i p_i binary searches for row i, and min(l_pk, kSearchCost n log2 l_pk) look-ups for p and k. The
//     pieces of a row share no columns, so the sum of l_pk over p is the length of b_k at most, and look-ups are no
//     more than the multiplications of the whole product. There are more searches than look-ups only where the rows of
//     B are shorter than 2 p_i.
//   bytes read: 4 for each entry walked when planning, 4 and a value when executing; 4 p_i a_i for the columns of A.
//   bytes held: a plan has the pattern of C and 12 for each of up to rows + entries / kWarpPiece pieces of C. Planning
//     takes 12 for each piece of the mask, and 3/8 of a byte for each of its entries: a bit, and the number of marks
//     before each 32 bits.
// A long row of A under few entries of the mask is the work of one block, whatever its length: 8 warps search for 256
// entries of A at a time.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_MASKED_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_MASKED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/host_device.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/cuda/row_pieces.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

// Whether a product may go this way; mask_route.h says whether it does. Under a complement mask it may not: such a mask
// leaves most of the product.
inline bool IsMasked(const MultiplyOptions& options) { return options.mask && !options.complement_mask; }

// Entries of a piece, at most.
constexpr int kWarpPiece = 256, kBlockPiece = 512;
// Searching one entry of a piece in a row of B costs so many look-ups of the row's entries for each step of the search.
constexpr int kSearchCost = 4;

// The lists of MaskedPieces, for kernels. They share an array: pieces of a warp lie at its front, pieces of a block at
// its back.
struct MaskedPiecesView {
  unsigned* lengths;  // of a warp, of a block
  RowPiece* array;
  int64_t capacity;

  INTRAWARP_HD RowPiece& At(bool of_block, unsigned place) const {
    return array[of_block ? capacity - 1 - place : place];
  }
};

// The part of a plan that holds the pieces of C; empty when C is, or has no mask. `capacity` bounds the number of
// pieces, and `block_capacity` the number of pieces of a block; the numbers themselves are known only on the device.
struct MaskedPieces {
  Buffer memory;
  int64_t capacity = 0, block_capacity = 0;

  // The capacity for `entries` entries in `rows` rows, and the bytes of such pieces.
  static int64_t CapacityFor(int64_t rows, int64_t entries);
  static int64_t Bytes(int64_t capacity);
  MaskedPiecesView view() const;
  int64_t bytes() const { return static_cast<int64_t>(memory.bytes()); }
};

// Arena bytes of PlanMasked.
absl::StatusOr<int64_t> MaskedWorkspaceBytes(const ConstPatternView& mask);

// The pattern of op(A) B under the mask; `a` is op(A), and the shapes conform. RESOURCE_EXHAUSTED. Waits for the device
// once, unless an operand has no entries.
absl::StatusOr<CsrPattern> PlanMasked(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                      const ConstPatternView& mask, MaskedPieces* pieces);

// The values of the pattern `c`, which has entries. The operands are transposed and rounded. Does not wait, and takes
// nothing from the arena.
absl::Status ExecuteMasked(const ExecContext& ctx, const MaskedPieces& pieces, const ConstPatternView& c,
                           const MultiplyOptions& options, const ConstCsrView& a, const ConstCsrView& b, void* values);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_MASKED_H_
