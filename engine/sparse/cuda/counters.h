// SPDX-License-Identifier: Apache-2.0
// The totals that planning counts on the device. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_COUNTERS_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_COUNTERS_H_

#include <cstdint>

#include "engine/sparse/cuda/row_classes.h"

namespace intrawarp::cuda::spgemm {

struct TileCounters {
  unsigned long long runs[2];  // of A and of B: runs of a row's entries in one tile
  unsigned long long pairs, product_tiles;
  unsigned tiles[2];  // of A and of B
  unsigned tile_rows;
  unsigned long long next_pair, next_tile;  // where the next block writes pairs and tiles
};

// The work of a product under a mask (mask_route.h).
struct MaskCounters {
  unsigned long long tiny_multiplications, visits, pieces;
  unsigned long long whole_entries;  // of the whole product, at most: its columns lie between the row's first and last
};

struct Counters {
  unsigned long long multiplications;
  unsigned long long max_entries;
  unsigned long long entries;
  unsigned pattern_rows[kPatternClasses];
  unsigned value_rows[kValueClasses];
  unsigned next_far[2], next_block[2];  // queues of far and block rows: when they are counted, when they are written
  unsigned next_scan, binned;           // blocks of the row bins' kernel that began, that ended
  unsigned next_short, short_counted;   // the same of the kernel that counts short rows
  unsigned long_rows;                   // rows that this kernel left to others
  TileCounters tiles;
  MaskCounters mask;  // only of Analyse with a mask
};

// A copy in page-locked host memory; `ready` becomes 1 once the counters are written, `long_rows` as soon as the kernel
// that counts short rows meets a long one.
struct HostCounters {
  Counters counters;
  unsigned ready;
  unsigned long_rows;
};

// The counters, followed by the state of each block that scans rows: kThreads rows a block in the row bins' kernel,
// ShortRowsOfBlock in the kernel that counts short rows.
inline int64_t BinBlocks(int64_t rows) { return (rows + kThreads - 1) / kThreads; }
inline int64_t ShortBlocks(int64_t rows) { return (rows + ShortRowsOfBlock(rows) - 1) / ShortRowsOfBlock(rows); }
inline int64_t CountersBytes(int64_t rows) {
  return sizeof(Counters) + (BinBlocks(rows) + ShortBlocks(rows)) * sizeof(unsigned long long);
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_COUNTERS_H_
