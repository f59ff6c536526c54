// SPDX-License-Identifier: Apache-2.0
// The classes of rows of a CUDA product, by the kernel that computes their pattern or their values, and the limits
// between the classes. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_ROW_CLASSES_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_ROW_CLASSES_H_

#include <algorithm>
#include <cstdint>

#include "engine/base/host_device.h"
#include "engine/sparse/csr.h"
#include "engine/sparse/multiply.h"

namespace intrawarp::cuda::spgemm {

// Sizes of a block of the kernels that work row by row.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

constexpr int kTinyEntries = 8;  // entries of A in a row that one thread merges, at most
// A short row, at most: multiplications and entries of A. A warp makes the row up to the smaller limits, otherwise a
// block does.
constexpr int kShortMultiplications = 512, kShortEntriesOfA = 512;
constexpr int kFewMultiplications = 64, kWarpMultiplications = 256;
constexpr int kGroupRows = 3;  // consecutive rows with one pattern that are computed together, at most

// Words of the bitmap of a warp (near and middle rows) and of a block (far rows).
constexpr int kNearWords = 256, kMiddleWords = 1280, kFarWords = 16384;

// Who computes the pattern of a row. kTiny: a thread merges it. kNear, kMiddle: a warp, with a bitmap of so many words.
// kBlock: a block, for a heavy row. kFar: a block, for columns further apart. kTiled: see tiles.h. kShort: see
// short_rows.h; such rows are not counted among the classes.
enum PatternClass { kNone, kTiny, kNear, kMiddle, kBlock, kFar, kTiled, kPatternClasses, kShort = kPatternClasses };

// A row's kind is its PatternClass and two flags. kSame: the row of A has the pattern of the row before. kHeavy: the
// row has so many entries of A, or multiplications, that a block computes it.
constexpr uint8_t kClassMask = 15, kSame = 16, kHeavy = 32;
constexpr int kHeavyEntries = 192;

// Who computes the values of a row.
//   kBits*        a warp, with a bitmap and sums in so many bytes
//   kTable*       a warp, with a hash table of so many entries
//   kSplit        a warp for each piece of the row, as in kBitsLargest
//   kSplitHeavy   a block for each piece of the row
//   kTableBlock*  a block, with a hash table for so many entries (half as many in float64)
//   kHeavy*       a block, with a bitmap for so many entries (half as many in float64)
//   kShortFew     a warp in one step, for a short row with kFewMultiplications and 32 entries of A at most
//   kShortWarp    a warp, with a hash table, for other short rows with kWarpMultiplications at most
//   kShortBlock   a block, with a hash table, for all other short rows
//   kGroup*       as kBits*, for groups of rows with one pattern
enum ValueClass {
  kBits4096,
  kBits6144,
  kBits10240,
  kBitsLargest,
  kTable128,
  kTable512,
  kTable1024,
  kSplit,
  kSplitHeavy,
  kTableBlock2048,
  kTableBlock4096,
  kHeavy640,
  kHeavy1280,
  kShortFew,
  kShortWarp,
  kShortBlock,
  kSingleRowClasses,  // the classes above hold single rows
  kGroup6144 = kSingleRowClasses,
  kGroup10240,
  kGroupLargest,
  kValueClasses
};

// The way from the columns of a row to its sums: what suits the row, or the same for all rows that allow it.
enum class Accumulators { kBySize, kBitmaps, kTables };
constexpr Accumulators AccumulatorsOf(MultiplyPath path) {
  return path == MultiplyPath::kBitmaps  ? Accumulators::kBitmaps
         : path == MultiplyPath::kTables ? Accumulators::kTables
                                         : Accumulators::kBySize;
}

constexpr int kLargestBytes = 22528;
constexpr int kSplitWords = 2048;

// Shared memory of a warp in kBits* and kGroup*.
constexpr INTRAWARP_HD int BitsBytes(int of_class) {
  switch (of_class) {
    case kBits4096:
      return 4096;
    case kBits6144:
    case kGroup6144:
      return 6144;
    case kBits10240:
    case kGroup10240:
      return 10240;
    default:
      return kLargestBytes;
  }
}

// Entries of a row in kTable*, at most.
constexpr INTRAWARP_HD int TableEntries(int of_class) {
  return of_class == kTable128 ? 128 : of_class == kTable512 ? 512 : 1024;
}

// Bytes of a bitmap of `words` with the ranks of its words, and of the sums.
constexpr INTRAWARP_HD int64_t BytesOfBits(int64_t words, int64_t sums, int value_bytes) {
  return (words * 6 + 7) / 8 * 8 + sums * value_bytes;
}

// Entries of a piece of a row in kSplit and kSplitHeavy, at most.
constexpr int64_t SplitEntries(int value_bytes) {
  return (kLargestBytes - BytesOfBits(kSplitWords, 0, 0)) / value_bytes;
}

// Entries of a row in kTableBlock* and kHeavy*, at most.
constexpr INTRAWARP_HD int BlockEntries(int of_class, int value_bytes) {
  const int entries = of_class == kTableBlock2048   ? 2048
                      : of_class == kTableBlock4096 ? 4096
                      : of_class == kHeavy640       ? 640
                                                    : 1280;
  return entries * 4 / value_bytes;
}

// Where pattern classes begin, by the number of rows and entries of A: the fewer rows there are, the fewer warps may be
// left waiting for a long row.
struct RowLimits {
  unsigned tiny_multiplications;          // of a row that one thread merges, at most
  unsigned heavy_multiplications;         // of a heavy row, at least
  unsigned heavy_multiplications_in_run;  // the same in a run of rows with one pattern, which share a warp
  int long_entries;                       // a block analyses a row with more entries of A
};

inline RowLimits RowLimitsOf(const ConstPatternView& a) {
  const int64_t rows = a.rows;
  RowLimits limits;
  limits.tiny_multiplications = rows < 32768 ? 8 : rows < 131072 ? 32 : 64;
  limits.heavy_multiplications = static_cast<unsigned>(std::clamp<int64_t>(rows / 8, 512, 8192));
  limits.heavy_multiplications_in_run = rows < 8192 ? 3 * limits.heavy_multiplications : 65536;
  limits.long_entries = static_cast<int>(std::clamp<int64_t>(4 * (a.entries / std::max<int64_t>(rows, 1)), 64, 256));
  return limits;
}

// Consecutive rows that a block takes when short rows are counted: the fewer rows there are, the fewer wait for each
// other.
inline int ShortRowsOfBlock(int64_t rows) {
  constexpr int64_t kBlocks = 1024;
  int of_block = kWarps;
  while (of_block < kThreads && of_block * kBlocks < rows) of_block *= 2;
  return of_block;
}

// The work of a row of C and the columns that its entries lie between.
struct RowExtent {
  int first, last;           // the first and the last column
  unsigned multiplications;  // UINT_MAX stands for more, too
};

// `rows` consecutive rows of one pattern, from `row` on.
struct RowGroup {
  int32_t row;
  int32_t rows;
};

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_ROW_CLASSES_H_
