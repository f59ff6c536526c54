// SPDX-License-Identifier: Apache-2.0
// Zachariadis (2020), sections 3.5 and 3.6 (tSparse): matrices as lists of 8x8 bitmap tiles, their product by a sorted
// list of tasks. A warp makes two tiles of C; half a warp loads each, four elements of a row a lane.
#include <cuda_fp16.h>
#include <mma.h>

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/sparse_primitives.h"
#include "tests/bench/baselines/sparse_variants.h"

namespace intrawarp::baselines::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 132 * 32;

#define BASELINES_FOR_EACH(i, count) \
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < (count); i += int64_t{gridDim.x} * kThreads)

__host__ __device__ int32_t TilesOf(int32_t n) { return static_cast<int32_t>((int64_t{n} + 7) / 8); }

// --- CSR to tiles and back ---

// Orders entries by tile, then by element. Also reports values out of fp16's range and values that are not finite.
__global__ void ElementKeysKernel(ConstCsrView m, const int32_t* rows, uint64_t* keys, float* values, int64_t* bad) {
  const uint64_t tiles = TilesOf(m.columns);
  BASELINES_FOR_EACH(e, m.entries) {
    const uint32_t r = rows[e], c = m.column_indices[e];
    keys[e] = (r / 8 * tiles + c / 8) * 64 + r % 8 * 8 + c % 8;
    const float v = values[e] = static_cast<const float*>(m.values)[e];
    // All threads that write write the same value.
    if (!(fabsf(v) < 65520.f) || (v != 0 && fabsf(v) < 0x1p-24f)) bad[0] = 1;
    if (!isfinite(v)) bad[1] = 1;
  }
}

__global__ void TilesOfKeysKernel(const uint64_t* keys, const uint64_t* tile_keys, const int64_t* offsets,
                                  int64_t count, int32_t tile_columns, Tile* tiles) {
  BASELINES_FOR_EACH(t, count) {
    uint64_t bitmap = 0;
    for (int64_t e = offsets[t]; e < offsets[t + 1]; ++e) bitmap |= uint64_t{1} << (keys[e] & 63);
    tiles[t] = {bitmap, offsets[t], static_cast<int32_t>(tile_keys[t] / tile_columns),
                static_cast<int32_t>(tile_keys[t] % tile_columns)};
  }
}

// The first tile of each row of tiles, and one behind the last.
__global__ void TileRowsKernel(const Tile* tiles, int64_t count, int32_t tile_rows, int64_t* rows) {
  BASELINES_FOR_EACH(r, tile_rows + int64_t{1}) {
    int64_t low = 0, high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (tiles[middle].row < r) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    rows[r] = low;
  }
}

__device__ int RowBits(const Tile& tile, int r) { return static_cast<int>(tile.bitmap >> (8 * r) & 0xff); }

__global__ void RowLengthsKernel(const Tile* tiles, const int64_t* tile_rows, int32_t rows, int32_t* lengths) {
  const int lane = threadIdx.x % 32;
  for (int64_t r = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; r < rows; r += int64_t{gridDim.x} * kWarps) {
    int sum = 0;
    for (int64_t t = tile_rows[r / 8] + lane; t < tile_rows[r / 8 + 1]; t += 32)
      sum += __popc(RowBits(tiles[t], r % 8));
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAll, sum, offset);
    if (lane == 0) lengths[r] = sum;
  }
}

__device__ int InclusiveScan(int value) {
  const int lane = threadIdx.x % 32;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int below = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += below;
  }
  return value;
}

__global__ void RowsOfTilesKernel(const Tile* tiles, const float* elements, const int64_t* tile_rows, int32_t rows,
                                  const int64_t* offsets, int32_t* columns, float* values) {
  const int lane = threadIdx.x % 32;
  for (int64_t r = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; r < rows; r += int64_t{gridDim.x} * kWarps) {
    int64_t row_at = offsets[r];
    const int64_t end = tile_rows[r / 8 + 1];
    for (int64_t first = tile_rows[r / 8]; first < end; first += 32) {
      const Tile tile = first + lane < end ? tiles[first + lane] : Tile{0, 0, 0, 0};
      const int bits = RowBits(tile, r % 8), count = __popc(bits), through = InclusiveScan(count);
      int64_t at = row_at + through - count;
      int64_t from = tile.index + __popcll(tile.bitmap & ((uint64_t{1} << (8 * (r % 8))) - 1));
      for (int left = bits; left != 0; left &= left - 1) {
        columns[at] = 8 * tile.column + __ffs(left) - 1;
        values[at++] = elements[from++];
      }
      row_at += __shfl_sync(kAll, through, 31);
    }
  }
}

struct TileMatrix {
  int32_t rows = 0, columns = 0;
  int64_t count = 0;
  Buffer tiles;     // Tile
  Buffer elements;  // float
  bool fits_fp16 = true, is_finite = true;
};

absl::StatusOr<Buffer> TileRows(const ExecContext& ctx, const TileMatrix& m) {
  INTRAWARP_ASSIGN_OR_RETURN(Buffer rows, AllocateItems<int64_t>(ctx, TilesOf(m.rows) + int64_t{1}));
  TileRowsKernel<<<kBlocks, kThreads, 0, CudaStream(ctx)>>>(m.tiles.as<Tile>(), m.count, TilesOf(m.rows),
                                                            rows.as<int64_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return rows;
}

absl::StatusOr<TileMatrix> ToTiles(const ExecContext& ctx, const ConstCsrView& m) {
  TileMatrix result{m.rows, m.columns};
  const cudaStream_t stream = CudaStream(ctx);
  INTRAWARP_ASSIGN_OR_RETURN(Pairs<float> pairs, AllocatePairs<float>(ctx, m.entries));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer rows, RowsOfEntries(ctx, m));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer bad, AllocateItems<int64_t>(ctx, 2));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(bad.as<void>(), 0, 2 * sizeof(int64_t), stream));
  ElementKeysKernel<<<kBlocks, kThreads, 0, stream>>>(m, rows.as<int32_t>(), pairs.key(), pairs.value(),
                                                      bad.as<int64_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  const uint64_t places = static_cast<uint64_t>(TilesOf(m.rows)) * TilesOf(m.columns) * 64;
  INTRAWARP_RETURN_IF_ERROR(SortPairs(ctx, pairs, m.entries, BitsBelow(places)));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer lengths, AllocateItems<int32_t>(ctx, m.entries));
  INTRAWARP_ASSIGN_OR_RETURN(result.count,
                             RunLengths(ctx, pairs.key(), 6, m.entries, pairs.free_key(), lengths.as<int32_t>()));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer offsets, AllocateItems<int64_t>(ctx, result.count + 1));
  INTRAWARP_RETURN_IF_ERROR(SumLengths(ctx, lengths.as<int32_t>(), result.count, offsets.as<int64_t>()));
  INTRAWARP_ASSIGN_OR_RETURN(result.tiles, AllocateItems<Tile>(ctx, result.count));
  TilesOfKeysKernel<<<kBlocks, kThreads, 0, stream>>>(pairs.key(), pairs.free_key(), offsets.as<int64_t>(),
                                                      result.count, TilesOf(m.columns), result.tiles.as<Tile>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  result.elements = std::move(pairs.values[pairs.current]);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t beyond_fp16, ReadBack(ctx, bad.as<int64_t>()));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t not_finite, ReadBack(ctx, bad.as<int64_t>() + 1));
  result.fits_fp16 = beyond_fp16 == 0;
  result.is_finite = not_finite == 0;
  return result;
}

absl::StatusOr<CsrMatrix> ToCsr(const ExecContext& ctx, const TileMatrix& m) {
  const cudaStream_t stream = CudaStream(ctx);
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer tile_rows, TileRows(ctx, m));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer lengths, AllocateItems<int32_t>(ctx, m.rows));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer offsets, AllocateItems<int64_t>(ctx, m.rows + int64_t{1}));
  const Tile* const tiles = m.tiles.as<Tile>();
  RowLengthsKernel<<<kBlocks, kThreads, 0, stream>>>(tiles, tile_rows.as<int64_t>(), m.rows, lengths.as<int32_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_RETURN_IF_ERROR(SumLengths(ctx, lengths.as<int32_t>(), m.rows, offsets.as<int64_t>()));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t entries, ReadBack(ctx, offsets.as<int64_t>() + m.rows));
  INTRAWARP_ASSIGN_OR_RETURN(
      CsrMatrix c, CsrMatrix::Allocate(ctx.device(), ctx.stream(), m.rows, m.columns, entries, ValueType::kFloat32));
  RowsOfTilesKernel<<<kBlocks, kThreads, 0, stream>>>(tiles, m.elements.as<float>(), tile_rows.as<int64_t>(), m.rows,
                                                      offsets.as<int64_t>(), c.column_indices(),
                                                      static_cast<float*>(c.values()));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_RETURN_IF_ERROR(
      ctx.device().Copy(c.row_offsets(), offsets.as<void>(), (m.rows + int64_t{1}) * sizeof(int64_t), ctx.stream()));
  return c;
}

// --- The task list ---

__global__ void TaskLengthsKernel(const Tile* a, int64_t count, const int64_t* b_rows, int32_t* lengths) {
  BASELINES_FOR_EACH(t, count) {
    const int32_t k = a[t].column;
    lengths[t] = static_cast<int32_t>(b_rows[k + 1] - b_rows[k]);
  }
}

// A task is a tile of A and one of B; its key the tile of C that it adds to.
__global__ void TasksKernel(const Tile* a, const Tile* b, const int64_t* b_rows, const int64_t* offsets,
                            const int32_t* owners, int64_t count, int32_t tile_columns, uint64_t* keys,
                            uint64_t* tasks) {
  BASELINES_FOR_EACH(i, count) {
    const int32_t t = owners[i];
    const int64_t u = b_rows[a[t].column] + (i - offsets[t]);
    keys[i] = static_cast<uint64_t>(a[t].row) * tile_columns + b[u].column;
    tasks[i] = static_cast<uint64_t>(t) << 32 | static_cast<uint64_t>(u);
  }
}

// --- Products of tiles ---

// Two pairs of tiles on the diagonals of two 16x16 fragments; rows of 24 halves keep banks apart.
template <typename Sum>
class TensorPairs {
 public:
  static constexpr int kStride = 24, kSumStride = 24;
  union alignas(32) Shared {
    struct {
      __half a[16 * kStride], b[16 * kStride];
    } in;
    Sum out[16 * kSumStride];
  };

  __device__ explicit TensorPairs(Shared& shared) : shared_(shared) {
    for (int i = threadIdx.x % 32; i < 16 * kStride; i += 32) shared.in.a[i] = shared.in.b[i] = __float2half(0);
    nvcuda::wmma::fill_fragment(sum_, Sum(0.f));
  }
  __device__ void Place(bool is_b, int half, int quad, const float (&v)[4]) {
    __half2* const to = reinterpret_cast<__half2*>((is_b ? shared_.in.b : shared_.in.a) +
                                                   (8 * half + quad / 2) * kStride + 8 * half + quad % 2 * 4);
    to[0] = __floats2half2_rn(v[0], v[1]);
    to[1] = __floats2half2_rn(v[2], v[3]);
  }
  __device__ void MultiplyAdd() {
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> a;
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, __half, nvcuda::wmma::row_major> b;
    nvcuda::wmma::load_matrix_sync(a, shared_.in.a, kStride);
    nvcuda::wmma::load_matrix_sync(b, shared_.in.b, kStride);
    nvcuda::wmma::mma_sync(sum_, a, b, sum_);
  }
  __device__ void Sums(int half, int quad, float (&v)[4]) {
    nvcuda::wmma::store_matrix_sync(shared_.out, sum_, kSumStride, nvcuda::wmma::mem_row_major);
    __syncwarp();
    const Sum* const from = shared_.out + (8 * half + quad / 2) * kSumStride + 8 * half + quad % 2 * 4;
    for (int k = 0; k < 4; ++k) v[k] = static_cast<float>(from[k]);
  }

 private:
  Shared& shared_;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, Sum> sum_;
};

// Algorithm 3: a lane sums four elements of a row.
class PlainPairs {
 public:
  static constexpr int kStride = 12, kTile = 8 * kStride;
  struct alignas(16) Shared {
    float a[2 * kTile], b[2 * kTile];
  };

  __device__ explicit PlainPairs(Shared& shared) : shared_(shared) {}
  __device__ void Place(bool is_b, int half, int quad, const float (&v)[4]) {
    float* const to = (is_b ? shared_.b : shared_.a) + half * kTile + quad / 2 * kStride + quad % 2 * 4;
    *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
  }
  __device__ void MultiplyAdd() {
    const int half = threadIdx.x % 32 / 16, quad = threadIdx.x % 16;
    const float* const row = shared_.a + half * kTile + quad / 2 * kStride;
    const float* const columns = shared_.b + half * kTile + quad % 2 * 4;
    for (int i = 0; i < 8; ++i) {
      const float4 b = *reinterpret_cast<const float4*>(columns + i * kStride);
      sum_[0] = fmaf(row[i], b.x, sum_[0]);
      sum_[1] = fmaf(row[i], b.y, sum_[1]);
      sum_[2] = fmaf(row[i], b.z, sum_[2]);
      sum_[3] = fmaf(row[i], b.w, sum_[3]);
    }
  }
  __device__ void Sums(int, int, float (&v)[4]) {
    for (int k = 0; k < 4; ++k) v[k] = sum_[k];
  }

 private:
  Shared& shared_;
  float sum_[4] = {};
};

struct TaskList {
  const Tile *a, *b;
  const float *a_elements, *b_elements;
  const uint64_t* tasks;
  const int64_t* offsets;  // of the tasks of each tile of C
  const uint64_t* keys;
  int64_t tiles;  // of C
  int32_t tile_columns;
};

// The place of a tile's elements.
struct Place {
  uint64_t bitmap = 0;
  int64_t index = 0;
};

__device__ Place ShareInHalf(const Place& place, int from) {
  return {__shfl_sync(kAll, place.bitmap, from, 16), __shfl_sync(kAll, place.index, from, 16)};
}

// Elements 4 quad to 4 quad + 3, or ones in their place.
template <bool kOnes>
__device__ void LoadQuad(const Place& tile, const float* elements, int quad, float (&v)[4]) {
  const unsigned bits = static_cast<unsigned>(tile.bitmap >> (4 * quad)) & 15;
  if constexpr (kOnes) {
    for (int k = 0; k < 4; ++k) v[k] = bits >> k & 1 ? 1.f : 0.f;
  } else {
    const float* from = elements + tile.index + __popcll(tile.bitmap & ((uint64_t{1} << (4 * quad)) - 1));
    for (int k = 0; k < 4; ++k) v[k] = bits >> k & 1 ? *from++ : 0.f;
  }
}

// Sums of the lane's four elements of its tile of C. In a pair, the tile with fewer tasks multiplies zeros at the end.
// The lanes of a half warp fetch 16 tasks at a time, and elements of the next task while one is multiplied.
template <typename Math, bool kOnes>
__device__ void SumTasks(const TaskList& list, int64_t tile, typename Math::Shared& shared, float (&sums)[4]) {
  const int half = threadIdx.x % 32 / 16, quad = threadIdx.x % 16;
  const int64_t begin = tile < list.tiles ? list.offsets[tile] : 0,
                end = tile < list.tiles ? list.offsets[tile + 1] : 0;
  const int mine = static_cast<int>(end - begin), longest = max(mine, __shfl_xor_sync(kAll, mine, 16));
  Math math(shared);
  __syncwarp();
  for (int first = 0; first < longest; first += 16) {
    Place a, b;
    if (first + quad < mine) {
      const uint64_t task = list.tasks[begin + first + quad];
      const Tile &tile_a = list.a[task >> 32], &tile_b = list.b[task & 0xffffffffu];
      a = {tile_a.bitmap, tile_a.index};
      b = {tile_b.bitmap, tile_b.index};
    }
    float of_a[4], of_b[4];
    LoadQuad<kOnes>(ShareInHalf(a, 0), list.a_elements, quad, of_a);
    LoadQuad<kOnes>(ShareInHalf(b, 0), list.b_elements, quad, of_b);
    const int count = min(16, longest - first);
    for (int s = 0; s < count; ++s) {
      math.Place(false, half, quad, of_a);
      math.Place(true, half, quad, of_b);
      __syncwarp();
      // After the last task, any task again.
      LoadQuad<kOnes>(ShareInHalf(a, (s + 1) % 16), list.a_elements, quad, of_a);
      LoadQuad<kOnes>(ShareInHalf(b, (s + 1) % 16), list.b_elements, quad, of_b);
      math.MultiplyAdd();
      __syncwarp();
    }
  }
  math.Sums(half, quad, sums);
  __syncwarp();
}

// The tile's bitmap from the four elements of each of its half warp's lanes.
__device__ uint64_t BitmapOf(const float (&v)[4]) {
  const int half = threadIdx.x % 32 / 16, quad = threadIdx.x % 16;
  unsigned ballots[4];
  for (int k = 0; k < 4; ++k) ballots[k] = __ballot_sync(kAll, v[k] != 0) >> (16 * half) & 0xffff;
  // Lane i's bits are bits i of the ballots.
  uint64_t mine = 0;
  for (int k = 0; k < 4; ++k) mine |= static_cast<uint64_t>(ballots[k] >> quad & 1) << (4 * quad + k);
  for (int offset = 8; offset > 0; offset /= 2) mine |= __shfl_xor_sync(kAll, mine, offset);
  return mine;
}

template <typename Math>
__global__ void __launch_bounds__(kThreads) CountKernel(TaskList list, int32_t* counts) {
  __shared__ typename Math::Shared shared[kWarps];
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int64_t tile = 2 * warp + threadIdx.x % 32 / 16;
  if (2 * warp >= list.tiles) return;
  float sums[4];
  SumTasks<Math, true>(list, tile, shared[threadIdx.x / 32], sums);
  const uint64_t bitmap = BitmapOf(sums);
  if (threadIdx.x % 16 == 0 && tile < list.tiles) counts[tile] = __popcll(bitmap);
}

template <typename Math>
__global__ void __launch_bounds__(kThreads)
    MultiplyKernel(TaskList list, const int64_t* indices, Tile* c, float* elements) {
  __shared__ typename Math::Shared shared[kWarps];
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int64_t tile = 2 * warp + threadIdx.x % 32 / 16;
  if (2 * warp >= list.tiles) return;
  float sums[4];
  SumTasks<Math, false>(list, tile, shared[threadIdx.x / 32], sums);
  const uint64_t bitmap = BitmapOf(sums);
  if (tile >= list.tiles) return;
  const int quad = threadIdx.x % 16;
  float* to = elements + indices[tile] + __popcll(bitmap & ((uint64_t{1} << (4 * quad)) - 1));
  for (int k = 0; k < 4; ++k) {
    if (sums[k] != 0) *to++ = sums[k];
  }
  if (quad == 0) {
    c[tile] = {bitmap, 0, static_cast<int32_t>(list.keys[tile] / list.tile_columns),
               static_cast<int32_t>(list.keys[tile] % list.tile_columns)};
  }
}

// --- Compaction ---

__global__ void TileCountsKernel(const Tile* tiles, int64_t count, int32_t* counts) {
  BASELINES_FOR_EACH(t, count) counts[t] = __popcll(tiles[t].bitmap);
}

__global__ void TileIndicesKernel(const int64_t* offsets, int64_t count, Tile* tiles) {
  BASELINES_FOR_EACH(t, count) tiles[t].index = offsets[t];
}

// Elements of `total` slots and tiles that may be empty become a matrix.
absl::StatusOr<TileMatrix> Compact(const ExecContext& ctx, int32_t rows, int32_t columns, const Buffer& tiles,
                                   int64_t count, const Buffer& slots, int64_t total) {
  TileMatrix c{rows, columns};
  const cudaStream_t stream = CudaStream(ctx);
  INTRAWARP_ASSIGN_OR_RETURN(c.elements, AllocateItems<float>(ctx, total));
  INTRAWARP_RETURN_IF_ERROR(RemoveZeros(ctx, slots.as<float>(), total, c.elements.as<float>()).status());
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer counts, AllocateItems<int32_t>(ctx, count));
  INTRAWARP_ASSIGN_OR_RETURN(const Buffer offsets, AllocateItems<int64_t>(ctx, count + 1));
  TileCountsKernel<<<kBlocks, kThreads, 0, stream>>>(tiles.as<Tile>(), count, counts.as<int32_t>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_RETURN_IF_ERROR(SumLengths(ctx, counts.as<int32_t>(), count, offsets.as<int64_t>()));
  TileIndicesKernel<<<kBlocks, kThreads, 0, stream>>>(offsets.as<int64_t>(), count, tiles.as<Tile>());
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_ASSIGN_OR_RETURN(c.tiles, AllocateItems<Tile>(ctx, count));
  INTRAWARP_ASSIGN_OR_RETURN(c.count, RemoveEmpty(ctx, tiles.as<Tile>(), count, c.tiles.as<Tile>()));
  return c;
}

class TileProduct : public SparseProduct {
 public:
  TileProduct(const ExecContext& ctx, bool tensor, const ConstCsrView& a, const ConstCsrView& b)
      : ctx_(ctx), tensor_(tensor), a_view_(a), b_view_(b) {}

  absl::Status Prepare() override {
    a_ = TileMatrix();
    b_ = TileMatrix();
    INTRAWARP_ASSIGN_OR_RETURN(a_, ToTiles(ctx_, a_view_));
    if (!IsSquare()) {
      INTRAWARP_ASSIGN_OR_RETURN(b_, ToTiles(ctx_, b_view_));
    }
    // Their products with absent zeros would have no room.
    if (!a_.is_finite || !B().is_finite) return absl::OutOfRangeError("values: not finite");
    if (tensor_ && !(a_.fits_fp16 && B().fits_fp16)) return absl::OutOfRangeError("values: beyond fp16");
    return absl::OkStatus();
  }

  absl::Status Run() override {
    c_ = TileMatrix();
    result_ = CsrMatrix();
    const int32_t tile_columns = TilesOf(B().columns);
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer b_rows, TileRows(ctx_, B()));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer offsets, TaskOffsets(b_rows.as<int64_t>()));
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t tasks, ReadBack(ctx_, offsets.as<int64_t>() + a_.count));
    tasks_ = tasks;
    INTRAWARP_ASSIGN_OR_RETURN(Pairs<uint64_t> pairs, AllocatePairs<uint64_t>(ctx_, tasks));
    {
      INTRAWARP_ASSIGN_OR_RETURN(const Buffer owners, OwnersOf(ctx_, offsets.as<int64_t>(), a_.count, tasks));
      TasksKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(
          a_.tiles.as<Tile>(), B().tiles.as<Tile>(), b_rows.as<int64_t>(), offsets.as<int64_t>(), owners.as<int32_t>(),
          tasks, tile_columns, pairs.key(), pairs.value());
      INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    }
    const uint64_t places = static_cast<uint64_t>(TilesOf(a_.rows)) * tile_columns;
    INTRAWARP_RETURN_IF_ERROR(SortPairs(ctx_, pairs, tasks, BitsBelow(places)));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer lengths, AllocateItems<int32_t>(ctx_, tasks));
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t tiles,
                               RunLengths(ctx_, pairs.key(), 0, tasks, pairs.free_key(), lengths.as<int32_t>()));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer task_offsets, AllocateItems<int64_t>(ctx_, tiles + 1));
    INTRAWARP_RETURN_IF_ERROR(SumLengths(ctx_, lengths.as<int32_t>(), tiles, task_offsets.as<int64_t>()));
    return MultiplyTasks({a_.tiles.as<Tile>(), B().tiles.as<Tile>(), a_.elements.as<float>(), B().elements.as<float>(),
                          pairs.value(), task_offsets.as<int64_t>(), pairs.free_key(), tiles, tile_columns});
  }

  absl::Status Finish() override {
    result_ = CsrMatrix();
    INTRAWARP_ASSIGN_OR_RETURN(result_, ToCsr(ctx_, c_));
    return absl::OkStatus();
  }

  absl::StatusOr<CsrMatrix> Result() override { return std::move(result_); }
  TileCounts Tiles() const override { return {c_.count, tasks_}; }

 private:
  bool IsSquare() const { return a_view_.column_indices == b_view_.column_indices && a_view_.values == b_view_.values; }
  const TileMatrix& B() const { return IsSquare() ? a_ : b_; }

  absl::StatusOr<Buffer> TaskOffsets(const int64_t* b_rows) {
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer lengths, AllocateItems<int32_t>(ctx_, a_.count));
    INTRAWARP_ASSIGN_OR_RETURN(Buffer offsets, AllocateItems<int64_t>(ctx_, a_.count + 1));
    TaskLengthsKernel<<<kBlocks, kThreads, 0, CudaStream(ctx_)>>>(a_.tiles.as<Tile>(), a_.count, b_rows,
                                                                  lengths.as<int32_t>());
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_RETURN_IF_ERROR(SumLengths(ctx_, lengths.as<int32_t>(), a_.count, offsets.as<int64_t>()));
    return offsets;
  }

  absl::Status MultiplyTasks(const TaskList& list) {
    const cudaStream_t stream = CudaStream(ctx_);
    const unsigned blocks = static_cast<unsigned>(std::max<int64_t>((list.tiles + 2 * kWarps - 1) / (2 * kWarps), 1));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer counts, AllocateItems<int32_t>(ctx_, list.tiles));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer indices, AllocateItems<int64_t>(ctx_, list.tiles + 1));
    if (tensor_) {
      CountKernel<TensorPairs<__half>><<<blocks, kThreads, 0, stream>>>(list, counts.as<int32_t>());
    } else {
      CountKernel<PlainPairs><<<blocks, kThreads, 0, stream>>>(list, counts.as<int32_t>());
    }
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_RETURN_IF_ERROR(SumLengths(ctx_, counts.as<int32_t>(), list.tiles, indices.as<int64_t>()));
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t total, ReadBack(ctx_, indices.as<int64_t>() + list.tiles));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer slots, AllocateItems<float>(ctx_, total));
    INTRAWARP_ASSIGN_OR_RETURN(const Buffer tiles, AllocateItems<Tile>(ctx_, list.tiles));
    // Slots of entries that cancel stay 0.
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(slots.as<void>(), 0, total * sizeof(float), stream));
    if (tensor_) {
      MultiplyKernel<TensorPairs<float>>
          <<<blocks, kThreads, 0, stream>>>(list, indices.as<int64_t>(), tiles.as<Tile>(), slots.as<float>());
    } else {
      MultiplyKernel<PlainPairs>
          <<<blocks, kThreads, 0, stream>>>(list, indices.as<int64_t>(), tiles.as<Tile>(), slots.as<float>());
    }
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    INTRAWARP_ASSIGN_OR_RETURN(c_, Compact(ctx_, a_.rows, B().columns, tiles, list.tiles, slots, total));
    return absl::OkStatus();
  }

  const ExecContext& ctx_;
  const bool tensor_;
  const ConstCsrView a_view_, b_view_;
  TileMatrix a_, b_, c_;
  int64_t tasks_ = 0;
  CsrMatrix result_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SparseProduct>> MakeTileProduct(const ExecContext& ctx, bool tensor,
                                                               const ConstCsrView& a, const ConstCsrView& b) {
  return std::make_unique<TileProduct>(ctx, tensor, a, b);
}

}  // namespace intrawarp::baselines::cuda
