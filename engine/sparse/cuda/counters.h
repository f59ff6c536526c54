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

struct Counters {
  unsigned long long multiplications;
  unsigned long long max_entries;
  unsigned long long entries;
  unsigned pattern_rows[kPatternClasses];
  unsigned value_rows[kValueClasses];
  unsigned next_far[2], next_block[2];  // queues of far and block rows: when they are counted, when they are written
  unsigned next_scan, binned;           // blocks of the row bins' kernel that began, that ended
  TileCounters tiles;
};

// A copy in page-locked host memory; `ready` becomes 1 once the counters are written.
struct HostCounters {
  Counters counters;
  unsigned ready;
};

// The counters, followed by the state of each block that scans rows, kThreads rows a block.
inline int64_t CountersBytes(int64_t rows) {
  return sizeof(Counters) + (rows + kThreads - 1) / kThreads * sizeof(unsigned long long);
}

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_COUNTERS_H_
