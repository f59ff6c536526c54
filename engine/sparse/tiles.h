// SPDX-License-Identifier: Apache-2.0
// Rows of a product by 8x8 tiles, on CUDA: the path of matrices whose entries lie in blocks (finite elements, bands).
//
// A tile is a bitmap of 64 bits (bit 8 r + c: row r, column c) and where its rows' entries begin in the CSR's array;
// the tiles of eight rows are sorted by columns. Patterns of products come from bit operations on bitmaps. Values come
// from tensor cores, a warp a tile of C, tiles of A by ascending columns, from tiles that were filled up with zeros:
//   fp32, fp64        mma m8n8k4 on float64: products of float32 are exact and sums are rounded once, at the end
//   fp16, bf16, tf32  mma m16n8k8 on tf32 with float32 sums: values that were rounded to 11 or 8 bits of significand
//                     are tf32 values exactly, in the whole range of float32, so that none is scaled or clipped
// With NaN or infinity in an operand absent entries would make NaN of padding; then warps multiply entry by entry, as
// on devices without these instructions.
//
// Eight rows go this way when the matrices' tiles have kTileMinEntries entries on average, the rows' products are at
// least kTileProducts a product of tiles, and their tiles fit in shared memory. Internal to multiply_cuda.cu.
#ifndef INTRAWARP_ENGINE_SPARSE_TILES_H_
#define INTRAWARP_ENGINE_SPARSE_TILES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda {

constexpr int kTileProducts = 32;
// Entries a row below which no tiles are looked for, entries a row and tile, entries a tile.
constexpr int kTileMinEntriesPerRow = 8, kTileMinEntriesPerRun = 3, kTileMinEntries = 12;

// The tiles of a matrix, on the device. `begins` and `counts` by rows / 8.
struct TileMatrix {
  uint64_t* bits;
  int32_t* columns;  // of the matrix / 8
  uint32_t* starts;  // eight a tile, of each row: the CSR index of its first entry
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

struct TileCounters {
  unsigned long long runs[2];  // of entries of a row in one tile, of A and B
  unsigned long long pairs, product_tiles;
  unsigned tiles[2];
  unsigned tile_rows;
  unsigned long long next_pair, next_tile;  // while they are written
};

// Everything of a plan that concerns tiles.
struct TilePlan {
  ConstPatternView a, b;
  TileMatrix a_tiles, b_tiles;  // the same when B is A
  bool square;                  // B is A
  bool forced;                  // every row that fits
  TileCounters* counters;
};

// Whether tiles may be worth while, from sizes alone.
bool TilesArePossible(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options);
bool SamePattern(const ConstPatternView& a, const ConstPatternView& b);

int64_t TileMatrixBytes(const ConstPatternView& m, bool forced);
TileMatrix TileMatrixIn(char* memory, const ConstPatternView& m, bool forced);
// Bytes of the product's tiles and pairs.
int64_t TileProductBytes(uint64_t product_tiles, uint64_t pairs);

// Makes the tiles, counts the entries of the rows that go by tiles into `offsets` and marks their kinds; counters must
// be 0 but for the runs of A. Nothing waits.
absl::Status CountTiles(const ExecContext& ctx, const TilePlan& plan, uint8_t tiled_kind, uint8_t* kinds,
                        int64_t* offsets);
// Writes columns, tiles and pairs of those rows, `memory` of TileProductBytes.
absl::Status FillTiles(const ExecContext& ctx, const TilePlan& plan, uint8_t tiled_kind, const uint8_t* kinds,
                       const int64_t* offsets, int32_t* indices, uint64_t product_tiles, char* memory);

// Arena bytes of ExecuteTiles, at most.
int64_t TileWorkspaceBytes(int64_t a_entries, int64_t b_entries, ValueType type, bool forced);
// How many tiles a plan has.
struct TileNumbers {
  int64_t of_a = 0, of_b = 0, of_product = 0;  // of_b: 0 when B is A
};
// The values of those rows. `tf32`: operands are tf32 values and so is the arithmetic.
absl::Status ExecuteTiles(const ExecContext& ctx, const TilePlan& plan, const TileNumbers& numbers,
                          const void* a_values, const void* b_values, ValueType type, bool tf32, double alpha,
                          const int64_t* offsets, const char* memory, void* values);

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_SPARSE_TILES_H_
