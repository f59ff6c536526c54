// SPDX-License-Identifier: Apache-2.0
// Rows of a product by 8x8 tiles: the path of matrices whose entries lie in blocks (finite elements, bands). Internal
// to engine/sparse/cuda.
//
// A tile is a bitmap of 64 bits (bit 8 r + c: row r, column c) and, for each of its rows, the index of the row's first
// entry in the CSR arrays; the tiles of eight rows are sorted by columns. Patterns of products come from bit operations
// on bitmaps. Values come from tensor cores: a warp computes a tile of C from the tiles of A by ascending columns; the
// tiles are filled up with zeros.
//   fp32, fp64        mma m8n8k4 on float64: products of float32 are exact and sums are rounded once, at the end
//   fp16, bf16, tf32  mma m16n8k8 on tf32 with float32 sums: values that were rounded to 11 or 8 bits of significand
//                     are tf32 values exactly, in the whole range of float32, so that none is scaled or clipped
// With NaN or infinity in an operand, the zeros that fill up a tile would give NaN. Warps then multiply entry by entry,
// as they do on devices without these instructions.
//
// Eight rows go by tiles when the matrices' tiles have kTileMinEntries entries on average, each product of two tiles
// does kTileMultiplications multiplications on average, and the rows' tiles fit in shared memory.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_TILES_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_TILES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/host_device.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/cuda/counters.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

constexpr int kTileMultiplications = 32;
// Least numbers of entries for which tiles are tried: a row, a row and tile, a tile.
constexpr int kTileMinEntriesPerRow = 8, kTileMinEntriesPerRun = 3, kTileMinEntries = 12;

// The tiles of a matrix, for kernels. `begins` and `counts` by groups of eight rows.
struct TileMatrix {
  uint64_t* bits;
  int32_t* columns;  // of the matrix / 8
  uint32_t* starts;  // eight a tile, one for each row: the CSR index of its first entry
  uint32_t* begins;
  uint32_t* counts;
  int64_t capacity;  // tiles
};

// A tile of C.
struct ProductTile {
  uint64_t bits;
  uint64_t first_pair;
  uint32_t pairs;
  int32_t tile_row;
  uint16_t starts[8];  // rank of its first entry in each row of C
};

// Tiles of A and B to be multiplied.
struct TilePair {
  uint32_t a, b;
};

// The tiles of C and the pairs of each, for kernels.
struct ProductTiles {
  ProductTile* tiles;
  TilePair* pairs;
};

// The operands with their tiles, for kernels.
struct TileOperands {
  ConstPatternView a, b;
  TileMatrix a_tiles, b_tiles;  // the same when B is A
  bool square;                  // B is A
  bool forced;                  // by tiles go all rows that fit
  TileCounters* counters;       // while the tiles are made
};

// The part of a plan that holds tiles; empty when no row goes by tiles.
struct TilePlan {
  Buffer operand_memory, product_memory;
  bool square = false, forced = false;
  int64_t a_tiles = 0, b_tiles = 0, product_tiles = 0;  // b_tiles: 0 when B is A

  // Bytes of a matrix's tiles, and of the tiles and pairs of C.
  static int64_t MatrixBytes(const ConstPatternView& m, bool forced);
  static int64_t ProductBytes(int64_t product_tiles, int64_t pairs);
  // Memory for the tiles of the operands; the contents are undefined.
  static absl::StatusOr<TilePlan> Allocate(const ExecContext& ctx, const ConstPatternView& a, const ConstPatternView& b,
                                           bool forced);
  // `a` and `b` have the patterns of the plan; `counters` may be null once the tiles are made.
  TileOperands Operands(const ConstPatternView& a, const ConstPatternView& b, TileCounters* counters) const;
  ProductTiles Product() const;
  int64_t bytes() const { return static_cast<int64_t>(operand_memory.bytes() + product_memory.bytes()); }
};

// Whether tiles may pay off, judged by sizes alone.
bool TilesArePossible(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options);

// Whether runs of so many are few enough for tiles to be made, and whether the operands are one.
INTRAWARP_HD inline bool RunsAllowTiles(int64_t entries, int64_t runs) {
  return runs * kTileMinEntriesPerRun <= entries;
}
bool SamePattern(const ConstPatternView& a, const ConstPatternView& b);
// Adds the runs of the entries of `m` in one tile to *runs, in device memory. Does not wait.
absl::Status CountTileRuns(const ExecContext& ctx, const ConstPatternView& m, unsigned long long* runs);

// Makes the tiles of the operands, counts the entries of the rows that go by tiles into `entries` and makes their kinds
// kTiled. The counters must be 0 but for the runs of A. Does not wait.
absl::Status CountTiles(const ExecContext& ctx, const TileOperands& operands, uint8_t* kinds, int64_t* entries);

// Once counters->product_tiles is not 0: makes the tiles and pairs of C, and writes the columns of the rows that go by
// tiles. Allocates plan->product_memory. Does not wait.
absl::Status FillTiles(const ExecContext& ctx, const TileOperands& operands, const TileCounters& counts,
                       const uint8_t* kinds, const int64_t* offsets, int32_t* indices, TilePlan* plan);

// Upper bound on the arena bytes of ExecuteTiles.
int64_t TileWorkspaceBytes(int64_t a_entries, int64_t b_entries, ValueType type, bool forced);

// The values of the rows that go by tiles, times alpha; `offsets` of the product. `tf32`: the values of the operands
// are tf32 values and the arithmetic is tf32's. Does not wait.
absl::Status ExecuteTiles(const ExecContext& ctx, const TilePlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                          bool tf32, double alpha, const int64_t* offsets, void* values);

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_TILES_H_
