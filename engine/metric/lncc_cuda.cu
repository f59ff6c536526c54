// SPDX-License-Identifier: Apache-2.0
// EvaluateLncc on CUDA. The formulas stand in lncc_kernels.h.
//
// Bytes of global memory a voxel, where a box is an eighth of 8: the sums of boxes read 8 and write 3; their x and y
// pass reads and writes 3; the z pass reads 3.5 and writes 1.5; the x and y pass of A, B, C reads and writes 1.5; the
// last pass reads 1.5 + 8 and writes 4. They are 39 in all, and 21 for the value only.
#include <algorithm>
#include <cstdint>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/device/shared_memory.cuh"
#include "engine/metric/lncc_kernels.h"

namespace intrawarp::cuda {
namespace {

__device__ inline bool Skipped(const int* skip) { return skip != nullptr && *skip != 0; }

__host__ __device__ constexpr int Distance(int a, int b) { return a < b ? b - a : a - b; }

inline unsigned CeilDivide(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

// Boxes of a tile along x and y, and along z, which is what a thread of a z pass makes.
constexpr int kTile = 32;
constexpr int kLnccRun = 8;
static_assert(kMaxLnccRadius <= kLnccRun, "a window reaches into neighbouring tiles at most");
// A, B, C.
constexpr int kCoefficients = 3;
// Six warps, one a channel of the images, two a channel of A, B, C.
constexpr int kPlaneThreads = 32 * kLnccChannels;
constexpr int kRunRows = 4;
constexpr int kRunThreads = 32 * kRunRows;

// In device memory, from pass to pass.
struct LnccScalars {
  float fixed_mean, moving_mean;
  // -1 / N
  float scale;
  // The number of weighted samples.
  unsigned long long samples;
};

struct LnccArgs {
  const float* fixed;
  const float* warped;
  // Null where all samples weigh 1. May be voxel_gradient.
  const float* weights;
  Int3 size;
  LnccTiles tiles;
  int64_t boxes;
  float* shifts;
  LnccScalars* scalars;
  // Two a block of CoefficientsKernel: sum of cc, weight of the samples.
  double* partial;
  int partials;
  // Images of boxes: kLnccChannels of their sums, as many of the windows' along x and y, and A, B, C.
  float* box_sums;
  float* sums;
  float* coefficients;
  float* voxel_gradient;
  float* curvature;
  MetricValue* value;
  const int* skip;
  float fixed_floor, moving_floor;
  // Two neighbouring voxels of a box are aligned for access at once, in all images of voxels.
  bool pairs;
  LnccWindow window;

  __device__ size_t Box(int x, int y, int z) const {
    return (static_cast<size_t>(z) * tiles.size.y + y) * tiles.size.x + x;
  }
  __device__ size_t Voxel(int x, int y, int z) const { return (static_cast<size_t>(z) * size.y + y) * size.x + x; }
};

// A block a tile, a warp one of its rows: the mean over some of its samples; fixed NaN where there is none. Voxels are
// loaded unconditionally, so that all loads of a thread overlap.
constexpr int kTileRows = 2 * kTile / kLnccRowStep;
static_assert(kTileRows == kReduceWarps, "a warp a row");
__global__ void __launch_bounds__(kReduceThreads) TileMeanKernel(const __grid_constant__ LnccArgs args) {
  if (Skipped(args.skip)) return;
  __shared__ double scratch[kReduceWarps];
  const LnccTiles& t = args.tiles;
  const int tile = blockIdx.x, lane = threadIdx.x % 32, row = threadIdx.x / 32;
  const int x0 = tile % t.count.x * 2 * kTile + lane;
  const int y = tile / t.count.x % t.count.y * 2 * kTile + row * kLnccRowStep;
  const int z0 = tile / t.count.x / t.count.y * 2 * kLnccRun;
  double fixed = 0, moving = 0, samples = 0;
#pragma unroll
  for (int dz = 0; dz < 2 * kLnccRun; dz += kLnccPlaneStep) {
#pragma unroll
    for (int dx = 0; dx < 2 * kTile; dx += 32) {
      const bool inside = x0 + dx < args.size.x && y < args.size.y && z0 + dz < args.size.z;
      const size_t at = inside ? args.Voxel(x0 + dx, y, z0 + dz) : 0;
      const float f = __ldg(args.fixed + at), m = __ldg(args.warped + at);
      const bool valid = inside && m == m;
      fixed += valid ? f : 0.0f;
      moving += valid ? m : 0.0f;
      samples += valid ? 1.0f : 0.0f;
    }
  }
  fixed = BlockSum(fixed, scratch);
  moving = BlockSum(moving, scratch);
  samples = BlockSum(samples, scratch);
  if (threadIdx.x == 0) {
    args.shifts[2 * tile] = samples > 0 ? static_cast<float>(fixed / samples) : __int_as_float(0x7fffffff);
    args.shifts[2 * tile + 1] = samples > 0 ? static_cast<float>(moving / samples) : 0.0f;
  }
}

// The voxels `row` and `row` + 1 of one box; NaN for a second one beyond the image.
template <bool kPairs>
__device__ inline float2 LoadPair(const float* row, bool second) {
  if constexpr (kPairs) {
    return __ldg(reinterpret_cast<const float2*>(row));
  } else {
    return make_float2(__ldg(row), second ? __ldg(row + 1) : __int_as_float(0x7fffffff));
  }
}

template <bool kPairs>
__device__ inline void StorePair(float2 voxels, bool second, float* row) {
  if constexpr (kPairs) {
    *reinterpret_cast<float2*>(row) = voxels;
  } else {
    row[0] = voxels.x;
    if (second) row[1] = voxels.y;
  }
}

// The voxels of a box of the image, as four pairs along x. A voxel beyond the image is NaN in `moving`. All loads are
// unconditional, so that they overlap.
template <bool kPairs>
__device__ inline void LoadBox(const LnccArgs& args, int x, int y, int z, float2 (&fixed)[4], float2 (&moving)[4]) {
  const bool second = 2 * x + 1 < args.size.x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int vy = 2 * y + i % 2, vz = 2 * z + i / 2;
    const bool inside = vy < args.size.y && vz < args.size.z;
    const size_t at = args.Voxel(2 * x, inside ? vy : 2 * y, inside ? vz : 2 * z);
    fixed[i] = LoadPair<kPairs>(args.fixed + at, second);
    const float2 m = LoadPair<kPairs>(args.warped + at, second);
    moving[i] = inside ? m : make_float2(__int_as_float(0x7fffffff), __int_as_float(0x7fffffff));
  }
}

// One block: the mean of the tiles' means, which tiles without any get.
__global__ void MeanKernel(const __grid_constant__ LnccArgs args) {
  if (Skipped(args.skip)) return;
  __shared__ double scratch[kReduceWarps];
  __shared__ float mean[2];
  const int64_t total = args.tiles.total();
  double fixed = 0, moving = 0, tiles = 0;
  for (int64_t i = threadIdx.x; i < total; i += kReduceThreads) {
    const float f = args.shifts[2 * i];
    if (f != f) continue;
    fixed += f;
    moving += args.shifts[2 * i + 1];
    tiles += 1;
  }
  fixed = BlockSum(fixed, scratch);
  moving = BlockSum(moving, scratch);
  tiles = BlockSum(tiles, scratch);
  if (threadIdx.x == 0) {
    mean[0] = args.scalars->fixed_mean = tiles > 0 ? static_cast<float>(fixed / tiles) : 0.0f;
    mean[1] = args.scalars->moving_mean = tiles > 0 ? static_cast<float>(moving / tiles) : 0.0f;
    args.scalars->samples = 0;
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < total; i += kReduceThreads) {
    if (args.shifts[2 * i] == args.shifts[2 * i]) continue;
    args.shifts[2 * i] = mean[0];
    args.shifts[2 * i + 1] = mean[1];
  }
}

// Adds up LnccScalars::samples, integers in any order. A block takes kCountVoxels.
constexpr int kCountVoxels = 16 * kReduceThreads;
__global__ void __launch_bounds__(kReduceThreads) CountSamplesKernel(const __grid_constant__ LnccArgs args) {
  if (Skipped(args.skip)) return;
  __shared__ double scratch[kReduceWarps];
  const size_t voxels = static_cast<size_t>(args.size.x) * args.size.y * args.size.z;
  const size_t begin = size_t{blockIdx.x} * kCountVoxels + threadIdx.x;
  int samples = 0;
#pragma unroll
  for (int k = 0; k < kCountVoxels; k += kReduceThreads) {
    if (begin + k >= voxels) continue;
    const float m = __ldg(args.warped + begin + k);
    samples += m == m;
  }
  const double sum = BlockSum(samples, scratch);
  if (threadIdx.x == 0) atomicAdd(&args.scalars->samples, static_cast<unsigned long long>(sum));
}

// A thread a box: the six sums over its samples, relative to the shift of its tile.
template <bool kWeighted>
__global__ void __launch_bounds__(kRunThreads) SumBoxesKernel(const __grid_constant__ LnccArgs args) {
  if (Skipped(args.skip)) return;
  const int x = blockIdx.x * kTile + threadIdx.x, y = blockIdx.y * kRunRows + threadIdx.y, z = blockIdx.z;
  if (x >= args.tiles.size.x || y >= args.tiles.size.y) return;
  const int64_t tile = args.tiles.Index(blockIdx.x, y / kTile, z / kLnccRun);
  const float fixed_shift = args.shifts[2 * tile], moving_shift = args.shifts[2 * tile + 1];
  float sums[kLnccChannels] = {};
#pragma unroll
  for (int dz = 0; dz < 2; ++dz) {
#pragma unroll
    for (int dy = 0; dy < 2; ++dy) {
#pragma unroll
      for (int dx = 0; dx < 2; ++dx) {
        const int vx = 2 * x + dx, vy = 2 * y + dy, vz = 2 * z + dz;
        const bool inside = vx < args.size.x && vy < args.size.y && vz < args.size.z;
        const size_t at = inside ? args.Voxel(vx, vy, vz) : 0;
        const float raw = __ldg(args.warped + at);
        const bool valid = inside && raw == raw;
        const float f = valid ? __ldg(args.fixed + at) - fixed_shift : 0.0f, m = valid ? raw - moving_shift : 0.0f;
        float weight = valid ? 1.0f : 0.0f, weighted_f = f, weighted_m = m;
        if constexpr (kWeighted) {
          if (valid) weight = __ldg(args.weights + at);
          weighted_f = weight * f;
          weighted_m = weight * m;
        }
        sums[0] += weight;
        sums[1] += weighted_f;
        sums[2] += weighted_m;
        sums[3] += weighted_f * f;
        sums[4] += weighted_m * m;
        sums[5] += weighted_f * m;
      }
    }
  }
  float* const out = args.box_sums + args.Box(x, y, z);
#pragma unroll
  for (int c = 0; c < kLnccChannels; ++c) out[c * args.boxes] = sums[c];
}

// A block sums over x and y for windows of up to kRadius: the rows of a tile of one plane, with their halo, come into
// shared memory; a thread sums kRun boxes along x; then a warp sums along y for one channel, a lane a column.
template <int kRadius>
struct PlaneShape {
  static constexpr int kRows = kTile + 2 * kRadius;
  static constexpr int kRun = 8;
  // 4 mod 8, so that the 16-byte accesses of eight lanes in two rows meet no bank twice.
  static constexpr int kRawPitch = kRows + 4, kPitch = kTile + 4;
  static_assert(kRawPitch % 8 == 4 && kPitch % 8 == 4);
  static constexpr size_t SharedBytes(int channels) { return sizeof(float) * channels * kRows * (kRawPitch + kPitch); }
};

template <int kRun>
__device__ inline void StoreRun(const float (&sums)[kRun], float* out) {
#pragma unroll
  for (int o = 0; o < kRun; o += 4) {
    *reinterpret_cast<float4*>(out + o) = make_float4(sums[o], sums[o + 1], sums[o + 2], sums[o + 3]);
  }
}

template <int kRadius, int kRun>
__device__ inline void SumAlongX(const LnccWindow& window, const float* in, float (&sums)[kRun]) {
#pragma unroll
  for (int i = 0; i < kRun + 2 * kRadius; i += 4) {
    const float4 v4 = *reinterpret_cast<const float4*>(in + i);
    const float v[4] = {v4.x, v4.y, v4.z, v4.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int o = 0; o < kRun; ++o) {
        const int k = i + j - o;
        if (k >= 0 && k <= 2 * kRadius) sums[o] += window.weights[Distance(k, kRadius)] * v[j];
      }
    }
  }
}

// Sums kCount boxes along y from row `first` of the tile on, and writes them.
template <int kRadius, int kCount>
__device__ inline void SumAlongY(const LnccArgs& args, const float* rows, int first, float* out) {
  constexpr int kPitch = PlaneShape<kRadius>::kPitch;
  const Int3 n = args.tiles.size;
  const int lane = threadIdx.x % 32, x = blockIdx.x * kTile + lane, y0 = blockIdx.y * kTile + first;
  float sums[kCount] = {};
#pragma unroll
  for (int i = 0; i < kCount + 2 * kRadius; ++i) {
    const int y = y0 - kRadius + i;
    if (y < 0 || y >= n.y) continue;
    const float v = rows[(first + i) * kPitch + lane];
#pragma unroll
    for (int o = 0; o < kCount; ++o) {
      if (i - o >= 0 && i - o <= 2 * kRadius) sums[o] += args.window.weights[Distance(i - o, kRadius)] * v;
    }
  }
  if (x >= n.x) return;
#pragma unroll
  for (int o = 0; o < kCount; ++o) {
    if (y0 + o < n.y) out[args.Box(x, y0 + o, blockIdx.z)] = sums[o];
  }
}

// Adds constants to the images that the six sums are of.
__device__ inline void ChangeShift(float df, float dm, float (&s)[kLnccChannels]) {
  const float f = s[1] + df * s[0], m = s[2] + dm * s[0];
  s[3] += df * (s[1] + f);
  s[4] += dm * (s[2] + m);
  s[5] += df * s[2] + dm * f;
  s[1] = f;
  s[2] = m;
}

// Makes the six sums of a box of another tile of the plane z relative to the shift of the block's tile. A, B, C are the
// same for all tiles and stay.
template <int kChannels>
__device__ inline void TakeOver(const LnccArgs& args, int x, int y, int z, float (&q)[kChannels]) {
  if constexpr (kChannels == kLnccChannels) {
    const int tile_x = x / kTile, tile_y = y / kTile, tile_z = z / kLnccRun;
    if (tile_x == static_cast<int>(blockIdx.x) && tile_y == static_cast<int>(blockIdx.y)) return;
    const float* const of = args.shifts + 2 * args.tiles.Index(tile_x, tile_y, tile_z);
    const float* const own = args.shifts + 2 * args.tiles.Index(blockIdx.x, blockIdx.y, tile_z);
    ChangeShift(of[0] - own[0], of[1] - own[1], q);
  }
}

// Sums kChannels images of boxes at `in` along x and y, to args.sums.
template <int kRadius, int kChannels>
__global__ void __launch_bounds__(kPlaneThreads)
    SumPlanesKernel(const __grid_constant__ LnccArgs args, const float* in) {
  using Shape = PlaneShape<kRadius>;
  extern __shared__ __align__(16) float shared[];
  if (Skipped(args.skip)) return;
  constexpr int kRows = Shape::kRows, kPitch = Shape::kPitch, kRawPitch = Shape::kRawPitch, kRun = Shape::kRun;
  constexpr int kRuns = kTile / kRun, kParts = kPlaneThreads / (32 * kChannels);
  float *raw = shared, *rows = raw + kChannels * kRows * kRawPitch;
  const Int3 n = args.tiles.size;
  const int x0 = blockIdx.x * kTile - kRadius, y0 = blockIdx.y * kTile - kRadius, z = blockIdx.z;
#pragma unroll 2
  for (int i = threadIdx.x; i < kRows * kRows; i += kPlaneThreads) {
    const int row = i / kRows, column = i % kRows, x = x0 + column, y = y0 + row;
    const bool inside = x >= 0 && x < n.x && y >= 0 && y < n.y;
    const size_t at = inside ? args.Box(x, y, z) : 0;
    float q[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) q[c] = __ldg(in + c * args.boxes + at);
    if (inside) TakeOver(args, x, y, z, q);
#pragma unroll
    for (int c = 0; c < kChannels; ++c) raw[(c * kRows + row) * kRawPitch + column] = inside ? q[c] : 0.0f;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kChannels * kRows * kRuns; i += kPlaneThreads) {
    const int row = i / kRuns, x = i % kRuns * kRun, y = y0 + row % kRows;
    if (y < 0 || y >= n.y) continue;
    float sums[kRun] = {};
    SumAlongX<kRadius, kRun>(args.window, raw + row * kRawPitch + x, sums);
    StoreRun(sums, rows + row * kPitch + x);
  }
  __syncthreads();
  const int channel = threadIdx.x / 32 % kChannels, part = threadIdx.x / (32 * kChannels);
  SumAlongY<kRadius, kTile / kParts>(args, rows + channel * kRows * kPitch, part * (kTile / kParts),
                                     args.sums + channel * args.boxes);
}

// The sums over z of kLnccRun boxes of a column, from kChannels images over x and y; `adapt`(i, q) may change what
// comes from the plane z0 - kRadius + i. Planes are loaded ahead of their use, unconditionally, so that loads overlap.
template <int kRadius, int kChannels, typename Adapt>
__device__ inline void SumAlongZ(const LnccArgs& args, size_t column, int z0, const Adapt& adapt,
                                 float (&sums)[kChannels][kLnccRun]) {
  constexpr int kPlanes = kLnccRun + 2 * kRadius, kAhead = 12 / kChannels;
  const int last = args.tiles.size.z - 1;
  const size_t plane = static_cast<size_t>(args.tiles.size.x) * args.tiles.size.y;
  const auto load = [&](int i, float(&q)[kChannels]) {
    const float* p = args.sums + min(max(z0 - kRadius + i, 0), last) * plane + column;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) q[c] = __ldg(p + c * args.boxes);
  };
  float ahead[kAhead][kChannels];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i, ahead[i]);
#pragma unroll
  for (int i = 0; i < kPlanes; ++i) {
    const int z = z0 - kRadius + i;
    const bool inside = z >= 0 && z <= last;
    float q[kChannels];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) q[c] = inside ? ahead[i % kAhead][c] : 0.0f;
    if (i + kAhead < kPlanes) load(i + kAhead, ahead[i % kAhead]);
    adapt(i, q);
#pragma unroll
    for (int o = 0; o < kLnccRun; ++o) {
      if (i - o < 0 || i - o > 2 * kRadius) continue;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sums[c][o] += args.window.weights[Distance(i - o, kRadius)] * q[c];
    }
  }
}

// A thread makes the kLnccRun boxes of a column that lie in one tile: sums over z, coefficients, value. Runs of one
// column are neighbours in the grid of blocks, so that what they share is in the cache.
template <int kRadius>
__global__ void __launch_bounds__(kRunThreads, 3) CoefficientsKernel(const __grid_constant__ LnccArgs args) {
  if (Skipped(args.skip)) return;
  const Int3 n = args.tiles.size;
  const int x = blockIdx.y * kTile + threadIdx.x, y = blockIdx.z * kRunRows + threadIdx.y;
  const int run = blockIdx.x, z0 = run * kLnccRun;
  const int tile_y = y / kTile < args.tiles.count.y ? y / kTile : args.tiles.count.y - 1;
  const auto shift = [&](int r) {
    const int64_t tile = args.tiles.Index(blockIdx.y, tile_y, r);
    return make_float2(args.shifts[2 * tile], args.shifts[2 * tile + 1]);
  };
  float value = 0, weight = 0;
  if (x < n.x && y < n.y) {
    const float2 own = shift(run), below = run > 0 ? shift(run - 1) : own;
    const float2 above = run + 1 < args.tiles.count.z ? shift(run + 1) : own;
    const size_t plane = static_cast<size_t>(n.x) * n.y, column = static_cast<size_t>(y) * n.x + x;
    float sums[kLnccChannels][kLnccRun] = {};
    SumAlongZ<kRadius>(
        args, column, z0,
        [&](int i, float(&q)[kLnccChannels]) {
          if (i < kRadius) ChangeShift(below.x - own.x, below.y - own.y, q);
          if (i >= kRadius + kLnccRun) ChangeShift(above.x - own.x, above.y - own.y, q);
        },
        sums);
    const float fixed_offset = own.x - args.scalars->fixed_mean, moving_offset = own.y - args.scalars->moving_mean;
#pragma unroll
    for (int o = 0; o < kLnccRun; ++o) {
      if (z0 + o >= n.z) continue;
      const size_t at = (z0 + o) * plane + column;
      // For the box's samples.
      const float count = __ldg(args.box_sums + at);
      float a = 0, b = 0, e = 0;
      if (count > 0) {
        weight += count;
        const float inverse = __fdividef(1.0f, sums[0][o]);
        const float f = inverse * sums[1][o], m = inverse * sums[2][o];
        const float squares_f = inverse * sums[3][o], squares_m = inverse * sums[4][o];
        const float ff = squares_f - f * f, mm = squares_m - m * m, fm = inverse * sums[5][o] - f * m;
        if (ff > fmaxf(args.fixed_floor, kLnccResolution * squares_f) &&
            mm > fmaxf(args.moving_floor, kLnccResolution * squares_m)) {
          const float by_f = __fdividef(fm, ff), inverse_m = __fdividef(1.0f, mm), by_m = fm * inverse_m;
          value += count * by_f * by_m;
          a = 2.0f * count * by_f * inverse_m * inverse;
          b = -a * by_m;
          e = -a * (f + fixed_offset) - b * (m + moving_offset);
        }
      }
      if (args.voxel_gradient == nullptr) continue;
      args.coefficients[at] = a;
      args.coefficients[args.boxes + at] = b;
      args.coefficients[2 * args.boxes + at] = e;
    }
  }
  __shared__ double block[2][kRunRows];
  const double value_sum = WarpSum(static_cast<double>(value)), weight_sum = WarpSum(static_cast<double>(weight));
  if (threadIdx.x == 0) {
    block[0][threadIdx.y] = value_sum;
    block[1][threadIdx.y] = weight_sum;
  }
  __syncthreads();
  if (threadIdx.y == 0 && threadIdx.x < 2) {
    double sum = 0;
    for (int i = 0; i < kRunRows; ++i) sum += block[threadIdx.x][i];
    const int64_t index = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    args.partial[2 * index + threadIdx.x] = sum;
  }
}

// One block.
__global__ void FinishLnccKernel(const __grid_constant__ LnccArgs args) {
  if (Skipped(args.skip)) return;
  __shared__ double scratch[kReduceWarps];
  double value = 0, weight = 0;
  for (int i = threadIdx.x; i < args.partials; i += kReduceThreads) {
    value += args.partial[2 * int64_t{i}];
    weight += args.partial[2 * int64_t{i} + 1];
  }
  value = BlockSum(value, scratch);
  weight = BlockSum(weight, scratch);
  if (threadIdx.x != 0) return;
  args.value->metric = weight > 0 ? 1 - value / weight : __longlong_as_double(0x7ff8000000000000ll);
  args.value->samples = args.weights == nullptr ? weight : static_cast<double>(args.scalars->samples);
  args.scalars->scale = weight > 0 ? static_cast<float>(-1 / weight) : 0.0f;
}

// The weights of two neighbouring voxels. The thread that stores their gradient reads them first, in case that both lie
// in the same memory.
template <bool kWeighted>
__device__ inline float2 LoadWeights(const LnccArgs& args, size_t at, bool second) {
  if constexpr (!kWeighted) return make_float2(1.0f, 1.0f);
  return make_float2(args.weights[at], second ? args.weights[at + 1] : 0.0f);
}

// The gradient by the voxels of a box, and the curvature, from the sums of A, B, C.
template <bool kPairs, bool kWeighted>
__device__ inline void WriteBox(const LnccArgs& args, const LnccScalars& scalars, int x, int y, int z, float a, float b,
                                float c) {
  float2 fixed[4], moving[4];
  LoadBox<kPairs>(args, x, y, z, fixed, moving);
  const bool second = 2 * x + 1 < args.size.x;
  const auto gradient = [&](float fixed_voxel, float moving_voxel, float weight) {
    const float f = fixed_voxel - scalars.fixed_mean, m = moving_voxel - scalars.moving_mean;
    const float r = scalars.scale * (f * a + (m * b + c));
    return m == m ? (kWeighted ? r * weight : r) : 0.0f;
  };
  const auto curvature = [&](float m, float weight) {
    return m == m ? (kWeighted ? scalars.scale * b * weight : scalars.scale * b) : 0.0f;
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int vy = 2 * y + i % 2, vz = 2 * z + i / 2;
    if (vy >= args.size.y || vz >= args.size.z) continue;
    const size_t at = args.Voxel(2 * x, vy, vz);
    const float2 f = fixed[i], m = moving[i], w = LoadWeights<kWeighted>(args, at, second);
    StorePair<kPairs>(make_float2(gradient(f.x, m.x, w.x), gradient(f.y, m.y, w.y)), second, args.voxel_gradient + at);
    if (args.curvature == nullptr) continue;
    StorePair<kPairs>(make_float2(curvature(m.x, w.x), curvature(m.y, w.y)), second, args.curvature + at);
  }
}

template <bool kPairs, bool kWeighted>
__device__ inline void WriteRun(const LnccArgs& args, int x, int y, int z0,
                                const float (&sums)[kCoefficients][kLnccRun]) {
  const LnccScalars scalars = *args.scalars;
#pragma unroll
  for (int o = 0; o < kLnccRun; ++o) {
    if (z0 + o >= args.tiles.size.z) continue;
    WriteBox<kPairs, kWeighted>(args, scalars, x, y, z0 + o, sums[0][o], sums[1][o], sums[2][o]);
  }
}

// Sums A, B, C over z, and makes the voxel_gradient of the boxes' voxels.
template <int kRadius, bool kWeighted>
__global__ void __launch_bounds__(kRunThreads) LnccVoxelGradientKernel(const __grid_constant__ LnccArgs args) {
  if (Skipped(args.skip)) return;
  const Int3 n = args.tiles.size;
  const int x = blockIdx.y * kTile + threadIdx.x, y = blockIdx.z * kRunRows + threadIdx.y;
  const int z0 = blockIdx.x * kLnccRun;
  if (x >= n.x || y >= n.y) return;
  float sums[kCoefficients][kLnccRun] = {};
  SumAlongZ<kRadius>(
      args, static_cast<size_t>(y) * n.x + x, z0, [](int, float(&)[kCoefficients]) {}, sums);
  if (args.pairs) {
    WriteRun<true, kWeighted>(args, x, y, z0, sums);
  } else {
    WriteRun<false, kWeighted>(args, x, y, z0, sums);
  }
}

bool InPairs(const LnccArgs& args) {
  const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(float2) == 0; };
  return args.size.x % 2 == 0 && aligned(args.fixed) && aligned(args.warped) && aligned(args.voxel_gradient) &&
         aligned(args.curvature);
}

dim3 PlaneGrid(const LnccTiles& tiles) { return dim3(tiles.count.x, tiles.count.y, tiles.size.z); }

dim3 RunGrid(const LnccTiles& tiles) { return dim3(tiles.count.z, tiles.count.x, CeilDivide(tiles.size.y, kRunRows)); }

int64_t LnccPartials(const LnccTiles& tiles) {
  const dim3 grid = RunGrid(tiles);
  return int64_t{grid.x} * grid.y * grid.z;
}

template <int kRadius, int kChannels>
absl::Status SumPlanes(const ExecContext& ctx, const LnccArgs& args, const float* in) {
  constexpr size_t kBytes = PlaneShape<kRadius>::SharedBytes(kChannels);
  INTRAWARP_RETURN_IF_ERROR(AllowSharedMemory(SumPlanesKernel<kRadius, kChannels>, kBytes));
  SumPlanesKernel<kRadius, kChannels><<<PlaneGrid(args.tiles), kPlaneThreads, kBytes, CudaStream(ctx)>>>(args, in);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

void SumBoxes(const ExecContext& ctx, const LnccArgs& args) {
  const cudaStream_t stream = CudaStream(ctx);
  const LnccTiles& tiles = args.tiles;
  const dim3 boxes(tiles.count.x, CeilDivide(tiles.size.y, kRunRows), tiles.size.z), threads(32, kRunRows);
  if (args.weights == nullptr) {
    SumBoxesKernel<false><<<boxes, threads, 0, stream>>>(args);
    return;
  }
  CountSamplesKernel<<<CeilDivide(Voxels(args.size), kCountVoxels), kReduceThreads, 0, stream>>>(args);
  SumBoxesKernel<true><<<boxes, threads, 0, stream>>>(args);
}

template <int kRadius>
absl::Status LaunchLncc(const ExecContext& ctx, const LnccArgs& args) {
  const cudaStream_t stream = CudaStream(ctx);
  const LnccTiles& tiles = args.tiles;
  const dim3 runs = RunGrid(tiles), threads(32, kRunRows);
  TileMeanKernel<<<static_cast<unsigned>(tiles.total()), kReduceThreads, 0, stream>>>(args);
  MeanKernel<<<1, kReduceThreads, 0, stream>>>(args);
  SumBoxes(ctx, args);
  INTRAWARP_RETURN_IF_ERROR((SumPlanes<kRadius, kLnccChannels>(ctx, args, args.box_sums)));
  CoefficientsKernel<kRadius><<<runs, threads, 0, stream>>>(args);
  FinishLnccKernel<<<1, kReduceThreads, 0, stream>>>(args);
  if (args.voxel_gradient != nullptr) {
    INTRAWARP_RETURN_IF_ERROR((SumPlanes<kRadius, kCoefficients>(ctx, args, args.coefficients)));
    if (args.weights != nullptr) {
      LnccVoxelGradientKernel<kRadius, true><<<runs, threads, 0, stream>>>(args);
    } else {
      LnccVoxelGradientKernel<kRadius, false><<<runs, threads, 0, stream>>>(args);
    }
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace

int64_t LnccWorkspaceBytes(Int3 size) {
  const Int3 boxes = LnccBoxes(size);
  const LnccTiles tiles = MakeLnccTiles(boxes, {kTile, kTile, kLnccRun});
  return Arena::Rounded(2 * tiles.total() * sizeof(float)) + Arena::Rounded(sizeof(LnccScalars)) +
         Arena::Rounded(2 * LnccPartials(tiles) * sizeof(double)) +
         2 * Arena::Rounded(kLnccChannels * Voxels(boxes) * sizeof(float)) +
         Arena::Rounded(kCoefficients * Voxels(boxes) * sizeof(float));
}

absl::Status EvaluateLncc(const ExecContext& ctx, const LnccTask& task, const int* skip, float* voxel_gradient,
                          MetricValue* value) {
  ArenaScope scope(ctx.arena());
  const Int3 boxes = LnccBoxes(task.size);
  LnccArgs args;
  args.fixed = task.fixed;
  args.warped = task.warped;
  args.weights = task.weights;
  args.size = task.size;
  args.tiles = MakeLnccTiles(boxes, {kTile, kTile, kLnccRun});
  args.boxes = Voxels(boxes);
  args.partials = static_cast<int>(LnccPartials(args.tiles));
  args.voxel_gradient = voxel_gradient;
  args.curvature = task.curvature;
  args.value = value;
  args.skip = skip;
  args.fixed_floor = static_cast<float>(task.fixed_floor);
  args.moving_floor = static_cast<float>(task.moving_floor);
  args.window = MakeLnccWindow(task.sigma);
  args.pairs = InPairs(args);
  args.coefficients = nullptr;
  INTRAWARP_ASSIGN_OR_RETURN(args.shifts, ctx.arena().Allocate<float>(2 * args.tiles.total()));
  INTRAWARP_ASSIGN_OR_RETURN(args.scalars, ctx.arena().Allocate<LnccScalars>(1));
  INTRAWARP_ASSIGN_OR_RETURN(args.partial, ctx.arena().Allocate<double>(2 * int64_t{args.partials}));
  INTRAWARP_ASSIGN_OR_RETURN(args.box_sums, ctx.arena().Allocate<float>(kLnccChannels * args.boxes));
  INTRAWARP_ASSIGN_OR_RETURN(args.sums, ctx.arena().Allocate<float>(kLnccChannels * args.boxes));
  if (voxel_gradient != nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(args.coefficients, ctx.arena().Allocate<float>(kCoefficients * args.boxes));
  }
  return args.window.radius <= 4 ? LaunchLncc<4>(ctx, args) : LaunchLncc<kMaxLnccRadius>(ctx, args);
}

}  // namespace intrawarp::cuda
