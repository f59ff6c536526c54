// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <climits>
#include <cmath>

#include "engine/base/host_device.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/tiles.h"

namespace intrawarp::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// Of eight rows of C that a block makes: tiles of A, tiles of C, words of the bitmap over tile columns.
constexpr int kMaxATiles = 128, kMaxCTiles = 512, kMaxWords = 512;
static_assert(kMaxATiles <= kThreads && kMaxWords == 4 * kThreads && kMaxCTiles == 4 * kThreads);

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
__device__ int WarpMin(int value) { return __reduce_min_sync(kAll, value); }
__device__ int WarpSum(int value) { return __reduce_add_sync(kAll, value); }
__device__ uint32_t WarpOr(uint32_t value) { return __reduce_or_sync(kAll, value); }
#else
__device__ int WarpMin(int value) {
  for (int offset = 16; offset > 0; offset /= 2) value = min(value, __shfl_xor_sync(kAll, value, offset));
  return value;
}
__device__ int WarpSum(int value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAll, value, offset);
  return value;
}
__device__ uint32_t WarpOr(uint32_t value) {
  for (int offset = 16; offset > 0; offset /= 2) value |= __shfl_xor_sync(kAll, value, offset);
  return value;
}
#endif
__device__ int InclusiveScan(int value) {
  const int lane = threadIdx.x % 32;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

// Runs of a row's entries in one tile: an upper bound of the tiles.
__global__ void RunsKernel(ConstPatternView m, unsigned long long* runs) {
  const int lane = threadIdx.x % 8;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 8;
  const int64_t begin = row < m.rows ? m.row_offsets[row] : 0, end = row < m.rows ? m.row_offsets[row + 1] : 0;
  int mine = 0;
  for (int64_t i = begin + lane; i < end; i += 8) {
    mine += i == begin || m.column_indices[i] / 8 != m.column_indices[i - 1] / 8;
  }
  mine = WarpSum(mine);
  __shared__ int of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0 && mine > 0) atomicAdd(&of_block, mine);
  __syncthreads();
  if (threadIdx.x == 0 && of_block > 0) atomicAdd(runs, static_cast<unsigned long long>(of_block));
}

__device__ bool IsDense(const ConstPatternView& m, unsigned long long runs, bool forced) {
  return forced || runs * kTileMinEntriesPerRun <= static_cast<unsigned long long>(m.entries);
}
__device__ bool GoesByTiles(const TilePlan& plan) {
  const unsigned long long* runs = plan.counters->runs;
  return IsDense(plan.a, runs[0], plan.forced) && (plan.square || IsDense(plan.b, runs[1], plan.forced));
}
// Once the tiles are made.
__device__ bool TilesAreFull(const TilePlan& plan) {
  const unsigned* tiles = plan.counters->tiles;
  return plan.forced || (int64_t{tiles[0]} * kTileMinEntries <= plan.a.entries &&
                         (plan.square || int64_t{tiles[1]} * kTileMinEntries <= plan.b.entries));
}

// Walks the tiles of eight rows by ascending columns; a warp, four lanes a row, each of which looks at two of the eight
// entries that the row can have in a tile.
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
  // The place of this lane's column h.
  __device__ int64_t Place(int h) const { return at + threadIdx.x % 4 + h * 4; }
  // False when there is none left.
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
    const unsigned first = __ballot_sync(kAll, in_tile[0] >= 0), second = __ballot_sync(kAll, in_tile[1] >= 0);
    at += __popc(first >> row * 4 & 15) + __popc(second >> row * 4 & 15);
  }
};

// A warp eight rows.
__global__ void TilesKernel(ConstPatternView m, TilePlan plan, TileMatrix t, int which) {
  if (!GoesByTiles(plan)) return;
  const int lane = threadIdx.x % 32;
  const int64_t tile_row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (tile_row * 8 >= m.rows) return;
  unsigned count = 0;
  for (TileCursor cursor(m, tile_row); cursor.Load(); cursor.Next()) ++count;
  unsigned begin = 0;
  if (lane == 0) {
    begin = atomicAdd(&plan.counters->tiles[which], count);
    t.begins[tile_row] = begin;
    t.counts[tile_row] = count;
  }
  begin = __shfl_sync(kAll, begin, 0);
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

// The boolean product; four rows of C at a time, as its words are.
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
  unsigned long long products, pairs, first_pair, first_tile;
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
  int sums[kWarps];
  int row_entries[8];

  __device__ int SlotOf(int column) const {
    return ranks[column / 32] + __popc(words[column / 32] & ((1u << column % 32) - 1));
  }
};

// The sum over the block of the values of lower threads; *total is that of all.
__device__ int BlockExclusiveScan(int value, int* sums, int* total) {
  const int ends = InclusiveScan(value);
  __syncthreads();
  if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = ends;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < threadIdx.x / 32) before += sums[w];
    all += sums[w];
  }
  *total = all;
  return before + ends - value;
}

// Scalar products of a tile of A with eight rows of B.
__device__ unsigned long long ProductsOf(uint64_t bits, int32_t k_tile, const ConstPatternView& b) {
  unsigned long long products = 0;
  for (int k = 0; k < 8; ++k) {
    const int in_column = __popcll(bits >> k & 0x0101010101010101u);
    if (in_column == 0) continue;
    const int64_t row = int64_t{k_tile} * 8 + k;
    products += in_column * static_cast<unsigned long long>(b.row_offsets[row + 1] - b.row_offsets[row]);
  }
  return products;
}

// Calls use(index of the tile of A, index of the tile of B) for the block's pairs.
template <typename Use>
__device__ void ForPairs(const SymbolicScratch& s, int a_tiles, const Use& use) {
  for (int a = threadIdx.x / 32; a < a_tiles; a += kWarps) {
    for (uint32_t j = threadIdx.x % 32; j < s.b_counts[a]; j += 32) use(a, s.b_begins[a] + j);
  }
}

// Loads the tiles of A; finds the products, the pairs and the first and last tile column of C.
__device__ void LoadRow(const TilePlan& plan, uint32_t a_begin, int a_tiles, SymbolicScratch& s) {
  if (threadIdx.x == 0) {
    s.products = s.pairs = 0;
    s.first = INT_MAX;
    s.last = -1;
  }
  __syncthreads();
  unsigned long long products = 0, pairs = 0;
  int first = INT_MAX, last = -1;
  if (threadIdx.x < a_tiles) {
    const uint32_t tile = a_begin + threadIdx.x;
    const int32_t column = plan.a_tiles.columns[tile];
    const uint32_t begin = plan.b_tiles.begins[column], count = plan.b_tiles.counts[column];
    s.a_bits[threadIdx.x] = plan.a_tiles.bits[tile];
    s.b_begins[threadIdx.x] = begin;
    s.b_counts[threadIdx.x] = count;
    products = ProductsOf(s.a_bits[threadIdx.x], column, plan.b);
    pairs = count;
    if (count > 0) {
      first = plan.b_tiles.columns[begin];
      last = plan.b_tiles.columns[begin + count - 1];
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    products += __shfl_xor_sync(kAll, products, offset);
    pairs += __shfl_xor_sync(kAll, pairs, offset);
  }
  first = WarpMin(first);
  last = -WarpMin(-last);
  if (threadIdx.x % 32 == 0 && pairs > 0) {
    atomicAdd(&s.products, products);
    atomicAdd(&s.pairs, pairs);
    atomicMin(&s.first, first);
    atomicMax(&s.last, last);
  }
  __syncthreads();
}

// Sets bits, but looks first whether they are set: threads that write the same word wait for each other.
__device__ void SetBits(uint32_t& word, uint32_t bits) {
  if ((word & bits) != bits) atomicOr(&word, bits);
}

// Columns of the tiles of C, which they return the number of, or -1 when there are too many.
__device__ int FindColumns(const TilePlan& plan, int a_tiles, int base, SymbolicScratch& s) {
  for (int w = threadIdx.x; w < kMaxWords; w += kThreads) s.words[w] = 0;
  __syncthreads();
  ForPairs(s, a_tiles, [&](int, uint32_t b) {
    const int column = plan.b_tiles.columns[b] - base;
    SetBits(s.words[column / 32], 1u << column % 32);
  });
  __syncthreads();
  int mine = 0, total = 0;
  for (int w = threadIdx.x * 4; w < threadIdx.x * 4 + 4; ++w) mine += __popc(s.words[w]);
  int rank = BlockExclusiveScan(mine, s.sums, &total);
  if (total > kMaxCTiles) return -1;
  for (int w = threadIdx.x * 4; w < threadIdx.x * 4 + 4; ++w) {
    s.ranks[w] = static_cast<uint16_t>(rank);
    for (uint32_t word = s.words[w]; word != 0; word &= word - 1) {
      s.c_columns[rank++] = base + w * 32 + __ffs(word) - 1;
    }
  }
  for (int slot = threadIdx.x; slot < total; slot += kThreads) {
    s.c_bits[slot] = 0;
    for (uint32_t& word : s.match[slot]) word = 0;
  }
  __syncthreads();
  return total;
}

__device__ void MultiplyBits(const TilePlan& plan, int a_tiles, int base, SymbolicScratch& s) {
  ForPairs(s, a_tiles, [&](int a, uint32_t b) {
    const int slot = s.SlotOf(plan.b_tiles.columns[b] - base);
    atomicOr(&s.match[slot][a / 32], 1u << a % 32);
    const BitWords bits = BitProduct(s.a_bits[a], plan.b_tiles.bits[b]);
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
    for (int slot = threadIdx.x; slot < c_tiles; slot += kThreads) mine += __popcll(s.c_bits[slot] >> 8 * r & 0xff);
    mine = WarpSum(mine);
    if (threadIdx.x % 32 == 0) atomicAdd(&s.row_entries[r], mine);
  }
  __syncthreads();
}

// A block eight rows of C.
__global__ void CountTilesKernel(TilePlan plan, uint8_t tiled_kind, uint8_t* kinds, int64_t* offsets) {
  if (!GoesByTiles(plan) || !TilesAreFull(plan)) return;
  __shared__ SymbolicScratch s;
  const int64_t tile_row = blockIdx.x;
  const uint32_t count = plan.a_tiles.counts[tile_row];
  if (count == 0 || count > kMaxATiles) return;
  const int a_tiles = static_cast<int>(count);
  LoadRow(plan, plan.a_tiles.begins[tile_row], a_tiles, s);
  if (s.products == 0 || (!plan.forced && s.products < kTileProducts * s.pairs)) return;
  const int base = s.first / 32 * 32;
  if (s.last - base >= kMaxWords * 32) return;
  const int c_tiles = FindColumns(plan, a_tiles, base, s);
  if (c_tiles < 0) return;
  MultiplyBits(plan, a_tiles, base, s);
  CountRows(c_tiles, s);
  const int64_t row = tile_row * 8 + threadIdx.x;
  if (threadIdx.x < 8 && row < plan.a.rows) {
    offsets[row] = s.row_entries[threadIdx.x];
    kinds[row] = tiled_kind;
  }
  if (threadIdx.x == 0) {
    atomicAdd(&plan.counters->pairs, s.pairs);
    atomicAdd(&plan.counters->product_tiles, static_cast<unsigned long long>(c_tiles));
    atomicAdd(&plan.counters->tile_rows, 1u);
  }
}

// Where each tile's entries begin in the rows, and the columns of the rows; a warp two rows, four tiles at a time, so
// that what it writes lies together.
__device__ void WriteColumns(const TilePlan& plan, int64_t tile_row, int c_tiles, SymbolicScratch& s,
                             const int64_t* offsets, int32_t* indices) {
  const int lane = threadIdx.x % 32, bit = lane % 8;
  for (int r = threadIdx.x / 32; r < 8; r += kWarps) {
    const bool there = tile_row * 8 + r < plan.a.rows;
    int32_t* const out = there ? indices + offsets[tile_row * 8 + r] : nullptr;
    int done = 0;
    for (int first = 0; first < c_tiles; first += 4) {
      const int slot = first + lane / 8;
      const bool has = slot < c_tiles && (s.c_bits[slot] >> (8 * r + bit) & 1);
      const unsigned all = __ballot_sync(kAll, has);
      const int place = done + __popc(all & ((1u << lane) - 1));
      done += __popc(all);
      if (bit == 0 && slot < c_tiles) s.starts[slot][r] = static_cast<uint16_t>(place);
      if (has && there) out[place] = s.c_columns[slot] * 8 + bit;
    }
  }
  __syncthreads();
}

__global__ void FillTilesKernel(TilePlan plan, uint8_t tiled_kind, const uint8_t* kinds, const int64_t* offsets,
                                int32_t* indices, ProductTile* tiles, TilePair* pairs) {
  __shared__ SymbolicScratch s;
  const int64_t tile_row = blockIdx.x;
  if (kinds[tile_row * 8] != tiled_kind) return;
  const uint32_t a_begin = plan.a_tiles.begins[tile_row];
  const int a_tiles = static_cast<int>(plan.a_tiles.counts[tile_row]);
  LoadRow(plan, a_begin, a_tiles, s);
  const int base = s.first / 32 * 32;
  const int c_tiles = FindColumns(plan, a_tiles, base, s);
  MultiplyBits(plan, a_tiles, base, s);
  if (threadIdx.x == 0) {
    s.first_pair = atomicAdd(&plan.counters->next_pair, s.pairs);
    s.first_tile = atomicAdd(&plan.counters->next_tile, static_cast<unsigned long long>(c_tiles));
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
  int next = BlockExclusiveScan(mine, s.sums, &total);
  tiles += s.first_tile;
  pairs += s.first_pair;
  for (int slot = threadIdx.x * 4; slot < min(threadIdx.x * 4 + 4, static_cast<unsigned>(c_tiles)); ++slot) {
    const int n = matches(slot);
    s.first_pairs[slot] = next;
    tiles[slot].first_pair = s.first_pair + next;
    tiles[slot].pairs = n;
    next += n;
  }
  __syncthreads();
  ForPairs(s, a_tiles, [&](int a, uint32_t b) {
    const int slot = s.SlotOf(plan.b_tiles.columns[b] - base);
    int place = s.first_pairs[slot] + __popc(s.match[slot][a / 32] & ((1u << a % 32) - 1));
    for (int w = 0; w < a / 32; ++w) place += __popc(s.match[slot][w]);
    pairs[place] = {a_begin + a, b};
  });
  __syncthreads();
  WriteColumns(plan, tile_row, c_tiles, s, offsets, indices);
  for (int slot = threadIdx.x; slot < c_tiles; slot += kThreads) {
    tiles[slot].bits = s.c_bits[slot];
    tiles[slot].tile_row = static_cast<int32_t>(tile_row);
    for (int r = 0; r < 8; ++r) tiles[slot].starts[r] = s.starts[slot][r];
  }
}

// The values of a tile, row by row, 0 where there is no entry: a warp a tile, two a lane. `special` becomes 1 when one
// is infinite or NaN.
template <typename T>
__global__ void PackKernel(TileMatrix tiles, int64_t count, const T* values, T* packed, int* special) {
  const int64_t t = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
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

// A lane's share of a tile for the fragments of the tensor cores, whose k are the tile's in the order 0, 2, 4, 6, 1, 3,
// 5, 7: A's at row lane / 4, columns 2 (lane % 4) and that + 1; B's at those rows, column lane / 4; C's where A's are.
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

// Entry by entry, absent ones left out.
template <typename T, typename Sum>
__device__ void MultiplyMasked(uint64_t a_bits, uint64_t b_bits, const Fragment<T>& fa, const Fragment<T>& fb,
                               Sum sum[2]) {
  const int lane = threadIdx.x % 32, row = lane / 4;
#pragma unroll 1
  for (int k = 0; k < 8; ++k) {
    const T from_a = __shfl_sync(kAll, k % 2 == 0 ? fa.value[0] : fa.value[1], row * 4 + k / 2);
    const bool has_a = a_bits >> (row * 8 + k) & 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = lane % 4 * 2 + h;
      const T from_b = __shfl_sync(kAll, k % 2 == 0 ? fb.value[0] : fb.value[1], column * 4 + k / 2);
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

constexpr int kTogether = 4;  // products of tiles whose operands are on their way together
constexpr int kValueThreads = 1024;
constexpr int kRuns = 8;  // of neighbouring tiles of C that a multiprocessor takes

// What a lane needs of a tile of C.
struct TileHeader {
  uint32_t start_and_bits;  // of its row: where it starts, the bits below
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
  // Of the first value of this lane's row.
  __device__ int64_t Place(const int64_t* offsets) const {
    return Bits() != 0 ? offsets[int64_t{tile_row} * 8 + threadIdx.x % 32 / 4] + (start_and_bits >> 8) : 0;
  }
  // This lane's of 32 pairs.
  __device__ TilePair Pair(const TilePair* all, int first) const {
    const int p = first + threadIdx.x % 32;
    return p < pairs ? all[first_pair + p] : TilePair{};
  }
};

// A warp a tile of C, with the next ones' whereabouts on their way. A block fills a multiprocessor and takes
// neighbours, whose operands are the same, so that they come from its first-level cache. Sum is float for tf32.
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
        const uint32_t a = __shfl_sync(kAll, mine.a, (first + i) % 32), b = __shfl_sync(kAll, mine.b, (first + i) % 32);
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
          const uint32_t a = __shfl_sync(kAll, mine.a, (first + i) % 32);
          const uint32_t b = __shfl_sync(kAll, mine.b, (first + i) % 32);
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
unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

absl::Status MakeTiles(const ExecContext& ctx, const TilePlan& plan, const ConstPatternView& m, const TileMatrix& t,
                       int which) {
  TilesKernel<<<BlocksFor(TileRows(m) * 32), kThreads, 0, CudaStream(ctx)>>>(m, plan, t, which);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status CountRuns(const ExecContext& ctx, const TilePlan& plan, const ConstPatternView& m, int which) {
  RunsKernel<<<BlocksFor(int64_t{m.rows} * 8), kThreads, 0, CudaStream(ctx)>>>(m, &plan.counters->runs[which]);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// In the arena.
template <typename T>
absl::StatusOr<T*> Pack(const ExecContext& ctx, const TileMatrix& t, int64_t tiles, const void* values, int* special) {
  INTRAWARP_ASSIGN_OR_RETURN(T* const packed, ctx.arena().Allocate<T>(tiles * 64));
  PackKernel<T><<<BlocksFor(tiles * 32), kThreads, 0, CudaStream(ctx)>>>(t, tiles, static_cast<const T*>(values),
                                                                         packed, special);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return packed;
}

template <typename T, typename Sum>
absl::Status ExecuteAs(const ExecContext& ctx, const TilePlan& plan, const TileNumbers& numbers, const void* a_values,
                       const void* b_values, double alpha, const int64_t* offsets, const char* memory, void* values) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(int* const special, ctx.arena().Allocate<int>(1));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(special, 0, sizeof(int), ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(T* const a_packed, Pack<T>(ctx, plan.a_tiles, numbers.of_a, a_values, special));
  T* b_packed = a_packed;
  if (!plan.square || a_values != b_values) {
    const int64_t tiles = plan.square ? numbers.of_a : numbers.of_b;
    INTRAWARP_ASSIGN_OR_RETURN(b_packed, Pack<T>(ctx, plan.b_tiles, tiles, b_values, special));
  }
  const int64_t product_tiles = numbers.of_product;
  const auto* tiles = reinterpret_cast<const ProductTile*>(memory);
  const auto* pairs = reinterpret_cast<const TilePair*>(memory + Arena::Rounded(product_tiles * sizeof(ProductTile)));
  constexpr int kBlock = kValueThreads / (sizeof(T) / 4);
  int device = 0, multiprocessors = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const int64_t runs = int64_t{multiprocessors} * kRuns,
                run = std::max<int64_t>((product_tiles + runs - 1) / runs, kBlock / 32);
  const unsigned blocks = static_cast<unsigned>((product_tiles + run - 1) / run);
  TileValuesKernel<T, Sum><<<blocks, kBlock, 0, CudaStream(ctx)>>>(
      plan.a_tiles.bits, plan.b_tiles.bits, a_packed, b_packed, special, tiles, pairs, product_tiles, run, offsets,
      static_cast<T>(alpha), static_cast<T*>(values));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t TileCapacityBytes(int64_t tiles) {
  return Arena::Rounded(tiles * sizeof(uint64_t)) + Arena::Rounded(tiles * sizeof(int32_t)) +
         Arena::Rounded(tiles * 8 * sizeof(uint32_t));
}

int64_t TileCapacity(const ConstPatternView& m, bool forced) { return m.entries / (forced ? 1 : kTileMinEntries); }

}  // namespace

bool SamePattern(const ConstPatternView& a, const ConstPatternView& b) {
  return a.rows == b.rows && a.columns == b.columns && a.entries == b.entries && a.row_offsets == b.row_offsets &&
         a.column_indices == b.column_indices;
}

bool TilesArePossible(const ConstPatternView& a, const ConstPatternView& b, const MultiplyOptions& options) {
  constexpr int64_t kMostEntries = INT32_MAX, kMostColumns = INT32_MAX - 16;
  if (options.semiring != Semiring::kPlusTimes || options.path == MultiplyPath::kScalar) return false;
  if (a.entries == 0 || b.entries == 0 || a.entries > kMostEntries || b.entries > kMostEntries) return false;
  if (a.columns > kMostColumns || b.columns > kMostColumns) return false;
  if (options.path == MultiplyPath::kTiles) return true;
  return a.entries >= int64_t{kTileMinEntriesPerRow} * a.rows && b.entries >= int64_t{kTileMinEntriesPerRow} * b.rows;
}

int64_t TileMatrixBytes(const ConstPatternView& m, bool forced) {
  return TileCapacityBytes(TileCapacity(m, forced)) + 2 * Arena::Rounded(TileRows(m) * sizeof(uint32_t));
}

TileMatrix TileMatrixIn(char* memory, const ConstPatternView& m, bool forced) {
  const auto take = [&memory](size_t bytes) {
    char* const taken = memory;
    memory += Arena::Rounded(bytes);
    return taken;
  };
  TileMatrix t;
  t.capacity = TileCapacity(m, forced);
  t.bits = reinterpret_cast<uint64_t*>(take(t.capacity * sizeof(uint64_t)));
  t.columns = reinterpret_cast<int32_t*>(take(t.capacity * sizeof(int32_t)));
  t.starts = reinterpret_cast<uint32_t*>(take(t.capacity * 8 * sizeof(uint32_t)));
  t.begins = reinterpret_cast<uint32_t*>(take(TileRows(m) * sizeof(uint32_t)));
  t.counts = reinterpret_cast<uint32_t*>(take(TileRows(m) * sizeof(uint32_t)));
  return t;
}

int64_t TileProductBytes(uint64_t product_tiles, uint64_t pairs) {
  return Arena::Rounded(product_tiles * sizeof(ProductTile)) + Arena::Rounded(pairs * sizeof(TilePair));
}

absl::Status CountTiles(const ExecContext& ctx, const TilePlan& plan, uint8_t tiled_kind, uint8_t* kinds,
                        int64_t* offsets) {
  if (!plan.square) INTRAWARP_RETURN_IF_ERROR(CountRuns(ctx, plan, plan.b, 1));
  INTRAWARP_RETURN_IF_ERROR(MakeTiles(ctx, plan, plan.a, plan.a_tiles, 0));
  if (!plan.square) INTRAWARP_RETURN_IF_ERROR(MakeTiles(ctx, plan, plan.b, plan.b_tiles, 1));
  CountTilesKernel<<<static_cast<unsigned>(TileRows(plan.a)), kThreads, 0, CudaStream(ctx)>>>(plan, tiled_kind, kinds,
                                                                                              offsets);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status FillTiles(const ExecContext& ctx, const TilePlan& plan, uint8_t tiled_kind, const uint8_t* kinds,
                       const int64_t* offsets, int32_t* indices, uint64_t product_tiles, char* memory) {
  auto* tiles = reinterpret_cast<ProductTile*>(memory);
  auto* pairs = reinterpret_cast<TilePair*>(memory + Arena::Rounded(product_tiles * sizeof(ProductTile)));
  FillTilesKernel<<<static_cast<unsigned>(TileRows(plan.a)), kThreads, 0, CudaStream(ctx)>>>(
      plan, tiled_kind, kinds, offsets, indices, tiles, pairs);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t TileWorkspaceBytes(int64_t a_entries, int64_t b_entries, ValueType type, bool forced) {
  const int64_t a_tile = forced ? 1 : kTileMinEntries;  // entries at least
  const int64_t bytes = (64 + a_tile - 1) / a_tile * BytesPerValue(type);
  return 3 * Arena::kAlignment + Arena::Rounded(a_entries * bytes) + Arena::Rounded(b_entries * bytes);
}

absl::Status ExecuteTiles(const ExecContext& ctx, const TilePlan& plan, const TileNumbers& numbers,
                          const void* a_values, const void* b_values, ValueType type, bool tf32, double alpha,
                          const int64_t* offsets, const char* memory, void* values) {
  if (type == ValueType::kFloat64) {
    return ExecuteAs<double, double>(ctx, plan, numbers, a_values, b_values, alpha, offsets, memory, values);
  }
  if (tf32) return ExecuteAs<float, float>(ctx, plan, numbers, a_values, b_values, alpha, offsets, memory, values);
  return ExecuteAs<float, double>(ctx, plan, numbers, a_values, b_values, alpha, offsets, memory, values);
}

}  // namespace intrawarp::cuda
