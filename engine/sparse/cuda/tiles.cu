// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>
#include <cmath>

#include "engine/base/host_device.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/sparse/cuda/carver.h"
#include "engine/sparse/cuda/tiles.h"

namespace intrawarp::cuda::spgemm {
namespace {

constexpr int kTileThreads = 128;
constexpr int kTileWarps = kTileThreads / 32;

// Limits of the eight rows of C that a block computes: tiles of A, tiles of C, words of the bitmap over tile columns.
constexpr int kMaxATiles = 128, kMaxCTiles = 512, kMaxWords = 512;
static_assert(kMaxATiles <= kTileThreads && kMaxWords == 4 * kTileThreads && kMaxCTiles == 4 * kTileThreads);

// Counts the runs of a row's entries in one tile, which bound the number of tiles from above.
__global__ void RunsKernel(ConstPatternView m, unsigned long long* runs) {
  const int lane = threadIdx.x % 8;
  const int64_t row = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / 8;
  const int64_t begin = row < m.rows ? m.row_offsets[row] : 0, end = row < m.rows ? m.row_offsets[row + 1] : 0;
  int mine = 0;
  for (int64_t i = begin + lane; i < end; i += 8) {
    mine += i == begin || m.column_indices[i] / 8 != m.column_indices[i - 1] / 8;
  }
  mine = WarpSumAll(mine);
  __shared__ int of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0 && mine > 0) atomicAdd(&of_block, mine);
  __syncthreads();
  if (threadIdx.x == 0 && of_block > 0) atomicAdd(runs, static_cast<unsigned long long>(of_block));
}

__device__ bool IsDense(const ConstPatternView& m, unsigned long long runs, bool forced) {
  return forced || RunsAllowTiles(m.entries, static_cast<int64_t>(runs));
}
__device__ bool TilesMayPayOff(const TileOperands& operands) {
  const unsigned long long* runs = operands.counters->runs;
  return IsDense(operands.a, runs[0], operands.forced) &&
         (operands.square || IsDense(operands.b, runs[1], operands.forced));
}
// Whether the tiles have enough entries, once they are made.
__device__ bool TilesAreFull(const TileOperands& operands) {
  const unsigned* tiles = operands.counters->tiles;
  return operands.forced || (int64_t{tiles[0]} * kTileMinEntries <= operands.a.entries &&
                             (operands.square || int64_t{tiles[1]} * kTileMinEntries <= operands.b.entries));
}

// Walks the tiles of eight rows by ascending columns. A warp walks them, four lanes a row; each lane looks at two of
// the eight entries that the row can have in a tile.
struct TileCursor {
  const int32_t* columns;
  int64_t at, end;  // of this lane's row
  int column;       // of the tile
  int in_tile[2];   // this lane's columns within the tile, -1 where it has none

  __device__ TileCursor(const ConstPatternView& m, int64_t tile_row) : columns(m.column_indices) {
    const int64_t row = tile_row * 8 + threadIdx.x % 32 / 4;
    at = row < m.rows ? m.row_offsets[row] : 0;
    end = row < m.rows ? m.row_offsets[row + 1] : 0;
  }
  // The CSR index of this lane's entry h.
  __device__ int64_t Place(int h) const { return at + threadIdx.x % 4 + h * 4; }
  // Loads the next tile; false when there is none.
  __device__ bool Load() {
    const int first = Place(0) < end ? columns[Place(0)] : INT_MAX;
    const int second = Place(1) < end ? columns[Place(1)] : INT_MAX;
    column = WarpMin(first / 8);
    if (column == INT_MAX / 8) return false;
    in_tile[0] = first / 8 == column ? first % 8 : -1;
    in_tile[1] = second / 8 == column ? second % 8 : -1;
    return true;
  }
  __device__ uint64_t Bits() const {
    const int row = threadIdx.x % 32 / 4;
    uint32_t mine = 0;
    for (int h = 0; h < 2; ++h) {
      if (in_tile[h] >= 0) mine |= 1u << (row % 4 * 8 + in_tile[h]);
    }
    const uint32_t low = WarpOr(row < 4 ? mine : 0), high = WarpOr(row < 4 ? 0 : mine);
    return uint64_t{high} << 32 | low;
  }
  __device__ void Next() {
    const int row = threadIdx.x % 32 / 4;
    const unsigned first = __ballot_sync(kAllLanes, in_tile[0] >= 0),
                   second = __ballot_sync(kAllLanes, in_tile[1] >= 0);
    at += __popc(first >> row * 4 & 15) + __popc(second >> row * 4 & 15);
  }
};

// A warp makes the tiles of eight rows.
__global__ void TilesKernel(ConstPatternView m, TileOperands operands, TileMatrix t, int which) {
  if (!TilesMayPayOff(operands)) return;
  const int lane = threadIdx.x % 32;
  const int64_t tile_row = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / 32;
  if (tile_row * 8 >= m.rows) return;
  unsigned count = 0;
  for (TileCursor cursor(m, tile_row); cursor.Load(); cursor.Next()) ++count;
  unsigned begin = 0;
  if (lane == 0) {
    begin = atomicAdd(&operands.counters->tiles[which], count);
    t.begins[tile_row] = begin;
    t.counts[tile_row] = count;
  }
  begin = __shfl_sync(kAllLanes, begin, 0);
  if (begin + count > t.capacity) return;  // TilesAreFull is false, then
  unsigned tile = begin;
  for (TileCursor cursor(m, tile_row); cursor.Load(); cursor.Next(), ++tile) {
    const uint64_t bits = cursor.Bits();
    if (lane == 0) {
      t.bits[tile] = bits;
      t.columns[tile] = cursor.column;
    }
    if (lane % 4 == 0) t.starts[size_t{tile} * 8 + lane / 4] = static_cast<uint32_t>(cursor.at);
  }
}

// The boolean product of two tiles; each word holds four rows of C.
struct BitWords {
  uint32_t low, high;
};
__device__ BitWords WordsOf(uint64_t bits) { return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)}; }
__device__ BitWords BitProduct(uint64_t a_bits, uint64_t b_bits) {
  constexpr uint32_t kColumn = 0x01010101u;
  const BitWords a = WordsOf(a_bits), b = WordsOf(b_bits);
  BitWords c = {0, 0};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const uint32_t b_row = __byte_perm(b.low, b.high, k * 0x1111);
    c.low |= (a.low >> k & kColumn) * 0xff & b_row;
    c.high |= (a.high >> k & kColumn) * 0xff & b_row;
  }
  return c;
}

struct SymbolicScratch {
  union {
    uint64_t c_bits[kMaxCTiles];
    BitWords c_words[kMaxCTiles];
  };
  uint64_t a_bits[kMaxATiles];
  unsigned long long multiplications, pairs, first_pair, first_tile;
  union {
    uint32_t match[kMaxCTiles][kMaxATiles / 32];  // tiles of A that meet a tile of B in this tile of C
    uint16_t starts[kMaxCTiles][8];               // afterwards: of its rows
  };
  uint32_t words[kMaxWords];  // tile columns of C
  uint32_t b_begins[kMaxATiles], b_counts[kMaxATiles];
  int32_t c_columns[kMaxCTiles];
  uint32_t first_pairs[kMaxCTiles];
  uint16_t ranks[kMaxWords];
  int first, last;
  int sums[kTileWarps];
  int row_entries[8];

  __device__ int SlotOf(int column) const {
    return ranks[column / 32] + __popc(words[column / 32] & ((1u << column % 32) - 1));
  }
};

// Multiplications of a tile of A with eight rows of B.
__device__ unsigned long long MultiplicationsOf(uint64_t bits, int32_t k_tile, const ConstPatternView& b) {
  unsigned long long multiplications = 0;
  for (int k = 0; k < 8; ++k) {
    const int in_column = __popcll(bits >> k & 0x0101010101010101u);
    if (in_column == 0) continue;
    const int64_t row = int64_t{k_tile} * 8 + k;
    multiplications += in_column * static_cast<unsigned long long>(b.row_offsets[row + 1] - b.row_offsets[row]);
  }
  return multiplications;
}

// Calls use(index of the tile of A, index of the tile of B) for the block's pairs.
template <typename Use>
__device__ void ForPairs(const SymbolicScratch& s, int a_tiles, const Use& use) {
  for (int a = threadIdx.x / 32; a < a_tiles; a += kTileWarps) {
    for (uint32_t j = threadIdx.x % 32; j < s.b_counts[a]; j += 32) use(a, s.b_begins[a] + j);
  }
}

// Loads the tiles of A; counts multiplications and pairs, and finds the first and last tile column of C.
__device__ void LoadRow(const TileOperands& operands, uint32_t a_begin, int a_tiles, SymbolicScratch& s) {
  if (threadIdx.x == 0) {
    s.multiplications = s.pairs = 0;
    s.first = INT_MAX;
    s.last = -1;
  }
  __syncthreads();
  unsigned long long multiplications = 0, pairs = 0;
  int first = INT_MAX, last = -1;
  if (threadIdx.x < a_tiles) {
    const uint32_t tile = a_begin + threadIdx.x;
    const int32_t column = operands.a_tiles.columns[tile];
    const uint32_t begin = operands.b_tiles.begins[column], count = operands.b_tiles.counts[column];
    s.a_bits[threadIdx.x] = operands.a_tiles.bits[tile];
    s.b_begins[threadIdx.x] = begin;
    s.b_counts[threadIdx.x] = count;
    multiplications = MultiplicationsOf(s.a_bits[threadIdx.x], column, operands.b);
    pairs = count;
    if (count > 0) {
      first = operands.b_tiles.columns[begin];
      last = operands.b_tiles.columns[begin + count - 1];
    }
  }
  multiplications = WarpSumAll(multiplications);
  pairs = WarpSumAll(pairs);
  first = WarpMin(first);
  last = -WarpMin(-last);
  if (threadIdx.x % 32 == 0 && pairs > 0) {
    atomicAdd(&s.multiplications, multiplications);
    atomicAdd(&s.pairs, pairs);
    atomicMin(&s.first, first);
    atomicMax(&s.last, last);
  }
  __syncthreads();
}

// Sets bits unless they are set already: threads that write the same word wait for each other.
__device__ void SetBits(uint32_t& word, uint32_t bits) {
  if ((word & bits) != bits) atomicOr(&word, bits);
}

// Finds the columns of the tiles of C. Returns the number of tiles, or -1 when there are too many.
__device__ int FindColumns(const TileOperands& operands, int a_tiles, int base, SymbolicScratch& s) {
  for (int w = threadIdx.x; w < kMaxWords; w += kTileThreads) s.words[w] = 0;
  __syncthreads();
  ForPairs(s, a_tiles, [&](int, uint32_t b) {
    const int column = operands.b_tiles.columns[b] - base;
    SetBits(s.words[column / 32], 1u << column % 32);
  });
  __syncthreads();
  int mine = 0, total = 0;
  for (int w = threadIdx.x * 4; w < threadIdx.x * 4 + 4; ++w) mine += __popc(s.words[w]);
  __syncthreads();
  int rank = BlockExclusiveScan<kTileWarps>(mine, s.sums, &total);
  if (total > kMaxCTiles) return -1;
  for (int w = threadIdx.x * 4; w < threadIdx.x * 4 + 4; ++w) {
    s.ranks[w] = static_cast<uint16_t>(rank);
    for (uint32_t word = s.words[w]; word != 0; word &= word - 1) {
      s.c_columns[rank++] = base + w * 32 + __ffs(word) - 1;
    }
  }
  for (int slot = threadIdx.x; slot < total; slot += kTileThreads) {
    s.c_bits[slot] = 0;
    for (uint32_t& word : s.match[slot]) word = 0;
  }
  __syncthreads();
  return total;
}

__device__ void MultiplyBits(const TileOperands& operands, int a_tiles, int base, SymbolicScratch& s) {
  ForPairs(s, a_tiles, [&](int a, uint32_t b) {
    const int slot = s.SlotOf(operands.b_tiles.columns[b] - base);
    atomicOr(&s.match[slot][a / 32], 1u << a % 32);
    const BitWords bits = BitProduct(s.a_bits[a], operands.b_tiles.bits[b]);
    SetBits(s.c_words[slot].low, bits.low);
    SetBits(s.c_words[slot].high, bits.high);
  });
  __syncthreads();
}

__device__ void CountRows(int c_tiles, SymbolicScratch& s) {
  if (threadIdx.x < 8) s.row_entries[threadIdx.x] = 0;
  __syncthreads();
  for (int r = 0; r < 8; ++r) {
    int mine = 0;
    for (int slot = threadIdx.x; slot < c_tiles; slot += kTileThreads) mine += __popcll(s.c_bits[slot] >> 8 * r & 0xff);
    mine = WarpSumAll(mine);
    if (threadIdx.x % 32 == 0) atomicAdd(&s.row_entries[r], mine);
  }
  __syncthreads();
}

// A block counts eight rows of C.
__global__ void CountTilesKernel(TileOperands operands, uint8_t* kinds, int64_t* offsets) {
  if (!TilesMayPayOff(operands) || !TilesAreFull(operands)) return;
  __shared__ SymbolicScratch s;
  const int64_t tile_row = blockIdx.x;
  const uint32_t count = operands.a_tiles.counts[tile_row];
  if (count == 0 || count > kMaxATiles) return;
  const int a_tiles = static_cast<int>(count);
  LoadRow(operands, operands.a_tiles.begins[tile_row], a_tiles, s);
  if (s.multiplications == 0 || (!operands.forced && s.multiplications < kTileMultiplications * s.pairs)) return;
  const int base = s.first / 32 * 32;
  if (s.last - base >= kMaxWords * 32) return;
  const int c_tiles = FindColumns(operands, a_tiles, base, s);
  if (c_tiles < 0) return;
  MultiplyBits(operands, a_tiles, base, s);
  CountRows(c_tiles, s);
  const int64_t row = tile_row * 8 + threadIdx.x;
  if (threadIdx.x < 8 && row < operands.a.rows) {
    offsets[row] = s.row_entries[threadIdx.x];
    kinds[row] = kTiled;
  }
  if (threadIdx.x == 0) {
    atomicAdd(&operands.counters->pairs, s.pairs);
    atomicAdd(&operands.counters->product_tiles, static_cast<unsigned long long>(c_tiles));
    atomicAdd(&operands.counters->tile_rows, 1u);
  }
}

// Finds where each tile's entries begin in the rows, and writes the columns of the rows. A warp takes two rows, four
// tiles at a time, so that its writes lie together.
__device__ void WriteColumns(const TileOperands& operands, int64_t tile_row, int c_tiles, SymbolicScratch& s,
                             const int64_t* offsets, int32_t* indices) {
  const int lane = threadIdx.x % 32, bit = lane % 8;
  for (int r = threadIdx.x / 32; r < 8; r += kTileWarps) {
    const bool there = tile_row * 8 + r < operands.a.rows;
    int32_t* const out = there ? indices + offsets[tile_row * 8 + r] : nullptr;
    int done = 0;
    for (int first = 0; first < c_tiles; first += 4) {
      const int slot = first + lane / 8;
      const bool has = slot < c_tiles && (s.c_bits[slot] >> (8 * r + bit) & 1);
      const unsigned all = __ballot_sync(kAllLanes, has);
      const int place = done + __popc(all & ((1u << lane) - 1));
      done += __popc(all);
      if (bit == 0 && slot < c_tiles) s.starts[slot][r] = static_cast<uint16_t>(place);
      if (has && there) out[place] = s.c_columns[slot] * 8 + bit;
    }
  }
  __syncthreads();
}

__global__ void FillTilesKernel(TileOperands operands, const uint8_t* kinds, const int64_t* offsets, int32_t* indices,
                                ProductTiles product) {
  __shared__ SymbolicScratch s;
  const int64_t tile_row = blockIdx.x;
  if (kinds[tile_row * 8] != kTiled) return;
  const uint32_t a_begin = operands.a_tiles.begins[tile_row];
  const int a_tiles = static_cast<int>(operands.a_tiles.counts[tile_row]);
  LoadRow(operands, a_begin, a_tiles, s);
  const int base = s.first / 32 * 32;
  const int c_tiles = FindColumns(operands, a_tiles, base, s);
  MultiplyBits(operands, a_tiles, base, s);
  if (threadIdx.x == 0) {
    s.first_pair = atomicAdd(&operands.counters->next_pair, s.pairs);
    s.first_tile = atomicAdd(&operands.counters->next_tile, static_cast<unsigned long long>(c_tiles));
  }
  const auto matches = [&](int slot) {
    int n = 0;
    for (uint32_t word : s.match[slot]) n += __popc(word);
    return n;
  };
  int mine = 0, total = 0;
  for (int slot = threadIdx.x * 4; slot < min(threadIdx.x * 4 + 4, static_cast<unsigned>(c_tiles)); ++slot) {
    mine += matches(slot);
  }
  __syncthreads();
  int next = BlockExclusiveScan<kTileWarps>(mine, s.sums, &total);
  ProductTile* const tiles = product.tiles + s.first_tile;
  TilePair* const pairs = product.pairs + s.first_pair;
  for (int slot = threadIdx.x * 4; slot < min(threadIdx.x * 4 + 4, static_cast<unsigned>(c_tiles)); ++slot) {
    const int n = matches(slot);
    s.first_pairs[slot] = next;
    tiles[slot].first_pair = s.first_pair + next;
    tiles[slot].pairs = n;
    next += n;
  }
  __syncthreads();
  ForPairs(s, a_tiles, [&](int a, uint32_t b) {
    const int slot = s.SlotOf(operands.b_tiles.columns[b] - base);
    int place = s.first_pairs[slot] + __popc(s.match[slot][a / 32] & ((1u << a % 32) - 1));
    for (int w = 0; w < a / 32; ++w) place += __popc(s.match[slot][w]);
    pairs[place] = {a_begin + a, b};
  });
  __syncthreads();
  WriteColumns(operands, tile_row, c_tiles, s, offsets, indices);
  for (int slot = threadIdx.x; slot < c_tiles; slot += kTileThreads) {
    tiles[slot].bits = s.c_bits[slot];
    tiles[slot].tile_row = static_cast<int32_t>(tile_row);
    for (int r = 0; r < 8; ++r) tiles[slot].starts[r] = s.starts[slot][r];
  }
}

// Writes the values of a tile row by row, 0 where there is no entry: a warp a tile, two values a lane. *special becomes
// 1 when a value is infinite or NaN.
template <typename T>
__global__ void PackKernel(TileMatrix tiles, int64_t count, const T* values, T* packed, int* special) {
  const int64_t t = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / 32;
  if (t >= count) return;
  const int lane = threadIdx.x % 32, row = lane / 4;
  const uint64_t bits = tiles.bits[t];
  const uint32_t in_row = static_cast<uint32_t>(bits >> 8 * row) & 0xff;
  const T* from = values + tiles.starts[t * 8 + row];
  T value[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int column = lane % 4 * 2 + h;
    if (in_row >> column & 1) value[h] = from[__popc(in_row & ((1u << column) - 1))];
    if (!isfinite(value[h])) *special = 1;
    packed[t * 64 + lane * 2 + h] = value[h];
  }
}

// A lane's share of a tile for the fragments of the tensor cores, which take the tile's k in the order 0, 2, 4, 6, 1,
// 3, 5, 7. With j = 2 (lane % 4), the shares are: of A and C, row lane / 4, columns j and j + 1; of B, rows j and j +
// 1, column lane / 4.
template <typename T>
struct Fragment {
  T value[2];
};

template <typename T>
__device__ Fragment<T> LoadA(const T* packed, uint32_t tile) {
  const T* at = packed + size_t{tile} * 64 + threadIdx.x % 32 * 2;
  return {at[0], at[1]};
}
template <typename T>
__device__ Fragment<T> LoadB(const T* packed, uint32_t tile) {
  const T* at = packed + size_t{tile} * 64 + threadIdx.x % 4 * 16 + threadIdx.x % 32 / 4;
  return {at[0], at[8]};
}

// Multiplies entry by entry and leaves absent entries out.
template <typename T, typename Sum>
__device__ void MultiplyMasked(uint64_t a_bits, uint64_t b_bits, const Fragment<T>& fa, const Fragment<T>& fb,
                               Sum sum[2]) {
  const int lane = threadIdx.x % 32, row = lane / 4;
#pragma unroll 1
  for (int k = 0; k < 8; ++k) {
    const T from_a = __shfl_sync(kAllLanes, k % 2 == 0 ? fa.value[0] : fa.value[1], row * 4 + k / 2);
    const bool has_a = a_bits >> (row * 8 + k) & 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = lane % 4 * 2 + h;
      const T from_b = __shfl_sync(kAllLanes, k % 2 == 0 ? fb.value[0] : fb.value[1], column * 4 + k / 2);
      if (has_a && (b_bits >> (k * 8 + column) & 1)) {
        sum[h] = fma(static_cast<Sum>(from_a), static_cast<Sum>(from_b), sum[h]);
      }
    }
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
constexpr bool kTensorCores = true;
__device__ void MultiplyTensor(double a0, double a1, double b0, double b1, double sum[2]) {
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(sum[0]), "+d"(sum[1])
      : "d"(a0), "d"(b0));
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(sum[0]), "+d"(sum[1])
      : "d"(a1), "d"(b1));
}
// The upper eight of the sixteen rows stay empty.
__device__ void MultiplyTensor(float a0, float a1, float b0, float b1, float sum[2]) {
  float unused0 = 0, unused1 = 0;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(unused0), "+f"(unused1)
      : "r"(__float_as_uint(a0)), "r"(0), "r"(__float_as_uint(a1)), "r"(0), "r"(__float_as_uint(b0)),
        "r"(__float_as_uint(b1)));
}
#else
constexpr bool kTensorCores = false;
template <typename Sum>
__device__ void MultiplyTensor(Sum, Sum, Sum, Sum, Sum[2]) {}
#endif

constexpr int kTogether = 4;  // pairs whose operands are loaded together
constexpr int kValueThreads = 1024;
constexpr int kRuns = 8;  // runs of neighbouring tiles of C that a multiprocessor takes

// The part of a tile of C that a lane needs.
struct TileHeader {
  uint32_t start_and_bits;  // of the lane's row: the start, and in the low 8 bits the bits
  int pairs;
  uint64_t first_pair;
  int32_t tile_row;

  __device__ TileHeader(const ProductTile* tiles, int t, int end) : start_and_bits(0), pairs(0) {
    if (t >= end) return;
    const ProductTile& tile = tiles[t];
    const int row = threadIdx.x % 32 / 4;
    start_and_bits = uint32_t{tile.starts[row]} << 8 | (static_cast<uint32_t>(tile.bits >> 8 * row) & 0xff);
    pairs = static_cast<int>(tile.pairs);
    first_pair = tile.first_pair;
    tile_row = tile.tile_row;
  }
  __device__ uint32_t Bits() const { return start_and_bits & 0xff; }
  // The place of the first value of this lane's row.
  __device__ int64_t Place(const int64_t* offsets) const {
    return Bits() != 0 ? offsets[int64_t{tile_row} * 8 + threadIdx.x % 32 / 4] + (start_and_bits >> 8) : 0;
  }
  // This lane's pair of the 32 from `first` on.
  __device__ TilePair Pair(const TilePair* all, int first) const {
    const int p = first + threadIdx.x % 32;
    return p < pairs ? all[first_pair + p] : TilePair{};
  }
};

// A warp computes a tile of C while the header of its next tile loads. A block fills a multiprocessor and takes
// neighbouring tiles of C, which share operands in the first-level cache. Sum is float for tf32.
template <typename T, typename Sum>
__global__ void __launch_bounds__(kValueThreads / (sizeof(T) / 4), 1)
    TileValuesKernel(const uint64_t* a_bits, const uint64_t* b_bits, const T* a_packed, const T* b_packed,
                     const int* special, const ProductTile* tiles, const TilePair* pairs, int64_t tile_count,
                     int64_t run, const int64_t* offsets, T alpha, T* values) {
  const int lane = threadIdx.x % 32;
  const bool masked = !kTensorCores || *special != 0;
  tiles += blockIdx.x * run;
  const int end = static_cast<int>(min(run, tile_count - blockIdx.x * run)), step = blockDim.x / 32;
  int t = threadIdx.x / 32;
  TileHeader next(tiles, t, end);
  TilePair mine_next = next.Pair(pairs, 0);
  for (; t < end; t += step) {
    const TileHeader now = next;
    TilePair mine = mine_next;
    next = TileHeader(tiles, t + step, end);
    const int64_t at = now.Place(offsets);
    Sum sum[2] = {0, 0};
#pragma unroll 1
    for (int first = 0; first < now.pairs; first += kTogether) {
      if (first > 0 && first % 32 == 0) mine = now.Pair(pairs, first);
      Fragment<T> fa[kTogether], fb[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const uint32_t a = __shfl_sync(kAllLanes, mine.a, (first + i) % 32),
                       b = __shfl_sync(kAllLanes, mine.b, (first + i) % 32);
        fa[i] = fb[i] = {};
        if (first + i >= now.pairs) continue;
        fa[i] = LoadA(a_packed, a);
        fb[i] = LoadB(b_packed, b);
      }
      if (first == 0) mine_next = next.Pair(pairs, 0);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + i >= now.pairs) break;
        if (masked) {
          const uint32_t a = __shfl_sync(kAllLanes, mine.a, (first + i) % 32);
          const uint32_t b = __shfl_sync(kAllLanes, mine.b, (first + i) % 32);
          MultiplyMasked<T, Sum>(a_bits[a], b_bits[b], fa[i], fb[i], sum);
        } else {
          MultiplyTensor(static_cast<Sum>(fa[i].value[0]), static_cast<Sum>(fa[i].value[1]),
                         static_cast<Sum>(fb[i].value[0]), static_cast<Sum>(fb[i].value[1]), sum);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = lane % 4 * 2 + h;
      if ((now.Bits() >> column & 1) == 0) continue;
      const T value = static_cast<T>(sum[h]);
      values[at + __popc(now.Bits() & ((1u << column) - 1))] = alpha == T{1} ? value : alpha * value;
    }
  }
}

int64_t TileRows(const ConstPatternView& m) { return (int64_t{m.rows} + 7) / 8; }
unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kTileThreads - 1) / kTileThreads); }

absl::Status MakeTiles(const ExecContext& ctx, const TileOperands& operands, const ConstPatternView& m,
                       const TileMatrix& t, int which) {
  TilesKernel<<<BlocksFor(TileRows(m) * 32), kTileThreads, 0, CudaStream(ctx)>>>(m, operands, t, which);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// The values of all tiles, in the arena.
template <typename T>
absl::StatusOr<T*> Pack(const ExecContext& ctx, const TileMatrix& t, int64_t tiles, const void* values, int* special) {
  INTRAWARP_ASSIGN_OR_RETURN(T* const packed, ctx.arena().Allocate<T>(tiles * 64));
  PackKernel<T><<<BlocksFor(tiles * 32), kTileThreads, 0, CudaStream(ctx)>>>(t, tiles, static_cast<const T*>(values),
                                                                             packed, special);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return packed;
}

// The values of the tiles of both operands, in the arena.
template <typename T>
struct PackedOperands {
  const T* a;
  const T* b;
  const int* special;  // 1 when a value is infinite or NaN
};

template <typename T>
absl::StatusOr<PackedOperands<T>> PackOperands(const ExecContext& ctx, const TilePlan& plan,
                                               const TileOperands& operands, const void* a_values,
                                               const void* b_values) {
  INTRAWARP_ASSIGN_OR_RETURN(int* const special, ctx.arena().Allocate<int>(1));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(special, 0, sizeof(int), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(const T* const a, Pack<T>(ctx, operands.a_tiles, plan.a_tiles, a_values, special));
  PackedOperands<T> packed = {a, a, special};
  if (!plan.square || a_values != b_values) {
    const int64_t tiles = plan.square ? plan.a_tiles : plan.b_tiles;
    INTRAWARP_ASSIGN_OR_RETURN(packed.b, Pack<T>(ctx, operands.b_tiles, tiles, b_values, special));
  }
  return packed;
}

template <typename T, typename Sum>
absl::Status ExecuteAs(const ExecContext& ctx, const TilePlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                       double alpha, const int64_t* offsets, void* values) {
  ArenaScope scope(ctx.arena());
  const TileOperands operands = plan.Operands(a, b, nullptr);
  INTRAWARP_ASSIGN_OR_RETURN(const PackedOperands<T> packed, PackOperands<T>(ctx, plan, operands, a.values, b.values));
  const ProductTiles product = plan.Product();
  constexpr int kBlock = kValueThreads / (sizeof(T) / 4);
  int device = 0, multiprocessors = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const int64_t runs = int64_t{multiprocessors} * kRuns,
                run = std::max<int64_t>((plan.product_tiles + runs - 1) / runs, kBlock / 32);
  const unsigned blocks = static_cast<unsigned>((plan.product_tiles + run - 1) / run);
  TileValuesKernel<T, Sum><<<blocks, kBlock, 0, CudaStream(ctx)>>>(
      operands.a_tiles.bits, operands.b_tiles.bits, packed.a, packed.b, packed.special, product.tiles, product.pairs,
      plan.product_tiles, run, offsets, static_cast<T>(alpha), static_cast<T*>(values));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t TileCapacity(const ConstPatternView& m, bool forced) { return m.entries / (forced ? 1 : kTileMinEntries); }

TileMatrix CarveMatrix(Carver& carver, const ConstPatternView& m, bool forced) {
  TileMatrix t;
  t.capacity = TileCapacity(m, forced);
  t.bits = carver.Take<uint64_t>(t.capacity);
  t.columns = carver.Take<int32_t>(t.capacity);
  t.starts = carver.Take<uint32_t>(t.capacity * 8);
  t.begins = carver.Take<uint32_t>(TileRows(m));
  t.counts = carver.Take<uint32_t>(TileRows(m));
  return t;
}

ProductTiles CarveProduct(Carver& carver, int64_t product_tiles, int64_t pairs) {
  ProductTiles product;
  product.tiles = carver.Take<ProductTile>(product_tiles);
  product.pairs = carver.Take<TilePair>(pairs);
  return product;
}

}  // namespace

bool SamePattern(const ConstPatternView& a, const ConstPatternView& b) {
  return a.rows == b.rows && a.columns == b.columns && a.entries == b.entries && a.row_offsets == b.row_offsets &&
         a.column_indices == b.column_indices;
}

absl::Status CountTileRuns(const ExecContext& ctx, const ConstPatternView& m, unsigned long long* runs) {
  RunsKernel<<<BlocksFor(int64_t{m.rows} * 8), kTileThreads, 0, CudaStream(ctx)>>>(m, runs);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

bool TilesArePossible(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options) {
  constexpr int64_t kMostEntries = INT32_MAX, kMostColumns = INT32_MAX - 16;
  if (options.semiring != Semiring::kPlusTimes || IsScalar(options.path)) return false;
  if (a.entries == 0 || b.entries == 0 || a.entries > kMostEntries || b.entries > kMostEntries) return false;
  if (a.columns > kMostColumns || b.columns > kMostColumns) return false;
  if (options.path == MultiplyPath::kTiles) return true;
  return a.entries >= int64_t{kTileMinEntriesPerRow} * a.rows && b.entries >= int64_t{kTileMinEntriesPerRow} * b.rows;
}

int64_t TilePlan::MatrixBytes(const ConstPatternView& m, bool forced) {
  Carver carver;
  CarveMatrix(carver, m, forced);
  return carver.bytes();
}

int64_t TilePlan::ProductBytes(int64_t product_tiles, int64_t pairs) {
  Carver carver;
  CarveProduct(carver, product_tiles, pairs);
  return carver.bytes();
}

absl::StatusOr<TilePlan> TilePlan::Allocate(const ExecContext& ctx, const ConstPatternView& a,
                                            const ConstPatternView& b, bool forced) {
  TilePlan plan;
  plan.square = SamePattern(a, b);
  plan.forced = forced;
  const int64_t bytes = MatrixBytes(a, forced) + (plan.square ? 0 : MatrixBytes(b, forced));
  INTRAWARP_ASSIGN_OR_RETURN(plan.operand_memory, ctx.device().Allocate(bytes, ctx.stream()));
  return plan;
}

TileOperands TilePlan::Operands(const ConstPatternView& a, const ConstPatternView& b, TileCounters* counters) const {
  Carver carver(operand_memory);
  TileOperands operands = {a, b, CarveMatrix(carver, a, forced), {}, square, forced, counters};
  operands.b_tiles = square ? operands.a_tiles : CarveMatrix(carver, b, forced);
  return operands;
}

ProductTiles TilePlan::Product() const {
  Carver carver(product_memory);
  return CarveProduct(carver, product_tiles, 0);
}

absl::Status CountTiles(const ExecContext& ctx, const TileOperands& operands, uint8_t* kinds, int64_t* entries) {
  if (!operands.square) INTRAWARP_RETURN_IF_ERROR(CountTileRuns(ctx, operands.b, &operands.counters->runs[1]));
  INTRAWARP_RETURN_IF_ERROR(MakeTiles(ctx, operands, operands.a, operands.a_tiles, 0));
  if (!operands.square) INTRAWARP_RETURN_IF_ERROR(MakeTiles(ctx, operands, operands.b, operands.b_tiles, 1));
  CountTilesKernel<<<static_cast<unsigned>(TileRows(operands.a)), kTileThreads, 0, CudaStream(ctx)>>>(operands, kinds,
                                                                                                      entries);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status FillTiles(const ExecContext& ctx, const TileOperands& operands, const TileCounters& counts,
                       const uint8_t* kinds, const int64_t* offsets, int32_t* indices, TilePlan* plan) {
  plan->a_tiles = counts.tiles[0];
  plan->b_tiles = counts.tiles[1];
  plan->product_tiles = static_cast<int64_t>(counts.product_tiles);
  const int64_t bytes = TilePlan::ProductBytes(plan->product_tiles, static_cast<int64_t>(counts.pairs));
  INTRAWARP_ASSIGN_OR_RETURN(plan->product_memory, ctx.device().Allocate(bytes, ctx.stream()));
  FillTilesKernel<<<static_cast<unsigned>(TileRows(operands.a)), kTileThreads, 0, CudaStream(ctx)>>>(
      operands, kinds, offsets, indices, plan->Product());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t TileWorkspaceBytes(int64_t a_entries, int64_t b_entries, ValueType type, bool forced) {
  const int64_t a_tile = forced ? 1 : kTileMinEntries;  // entries at least
  const int64_t bytes = (64 + a_tile - 1) / a_tile * BytesPerValue(type);
  return 3 * Arena::kAlignment + Arena::Rounded(a_entries * bytes) + Arena::Rounded(b_entries * bytes);
}

absl::Status ExecuteTiles(const ExecContext& ctx, const TilePlan& plan, const ConstCsrView& a, const ConstCsrView& b,
                          bool tf32, double alpha, const int64_t* offsets, void* values) {
  if (a.type == ValueType::kFloat64) return ExecuteAs<double, double>(ctx, plan, a, b, alpha, offsets, values);
  if (tf32) return ExecuteAs<float, float>(ctx, plan, a, b, alpha, offsets, values);
  return ExecuteAs<float, double>(ctx, plan, a, b, alpha, offsets, values);
}

}  // namespace intrawarp::cuda::spgemm
