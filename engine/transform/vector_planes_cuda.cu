// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/dependent_launch.cuh"
#include "engine/image/nearest_byte.h"
#include "engine/transform/vector_planes.h"

namespace intrawarp::cuda {
namespace {

__device__ bool IsSkipped(const int* skip) { return skip != nullptr && *skip != 0; }

unsigned Blocks(int64_t count, int64_t per_block) { return static_cast<unsigned>((count + per_block - 1) / per_block); }

int64_t Voxels(Int3 size) { return int64_t{size.x} * size.y * size.z; }

// The largest of values that are not negative, whose bits are ordered as integers. Every thread of the block calls it.
template <int kThreads>
__device__ void KeepLargest(float value, float* largest) {
  __shared__ float by_warp[kThreads / 32];
  const int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_down_sync(0xffffffffu, value, offset));
  if (t % 32 == 0) by_warp[t / 32] = value;
  __syncthreads();
  if (t != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) value = fmaxf(value, by_warp[w]);
  // Most blocks find a larger one there already.
  if (value > __ldcg(largest)) atomicMax(reinterpret_cast<int*>(largest), __float_as_int(value));
}

// One axis of MakeLinearAxis, the same numbers without conversions: from 2^23 to 2^24 floats are the integers, whose
// lowest bits are those of the float.
struct SampleAxis {
  static constexpr float kIntegers = 8388608.0f;
  static constexpr unsigned kBits = 0x4b000000u;
  float last, highest;

  __device__ explicit SampleAxis(int n)
      : last(static_cast<float>(n - 1)), highest(kIntegers + static_cast<float>(max(n - 2, 0))) {}
  // The lower voxel plus kBits.
  __device__ unsigned Lower(float index, float* weight) const {
    const float clamped = fminf(fmaxf(index, 0.0f), last);
    const float lower = fminf(__fadd_rz(clamped, kIntegers), highest);
    *weight = clamped - (lower - kIntegers);
    return __float_as_uint(lower);
  }
};

// A grid to take trilinear samples of, with SampleVector's arithmetic. kWide: of two voxels along x or more.
template <bool kWide>
struct SampleGrid {
  SampleAxis x, y, z;
  int step_x, step_y, step_z, rows, width;
  unsigned bias;

  __device__ explicit SampleGrid(Int3 size)
      : x(size.x),
        y(size.y),
        z(size.z),
        step_x(kWide || size.x > 1 ? 1 : 0),
        step_y(size.y > 1 ? size.x : 0),
        step_z(size.z > 1 ? size.x * size.y : 0),
        rows(size.y),
        width(size.x),
        bias((SampleAxis::kBits * size.y + SampleAxis::kBits) * size.x + SampleAxis::kBits) {}
};

// The corners of a sample: the voxels `at` and those kWide, or step_x, after them.
template <bool kWide>
struct Corners {
  int at[4], step_x;
  float x, y, z;

  __device__ Corners(const SampleGrid<kWide>& grid, Vec3f index) : step_x(kWide ? 1 : grid.step_x) {
    const unsigned lower_x = grid.x.Lower(index.x, &x), lower_y = grid.y.Lower(index.y, &y),
                   lower_z = grid.z.Lower(index.z, &z);
    at[0] = static_cast<int>((lower_z * grid.rows + lower_y) * grid.width + lower_x - grid.bias);
    at[1] = at[0] + grid.step_y;
    at[2] = at[0] + grid.step_z;
    at[3] = at[1] + grid.step_z;
  }

  // T: float or Vec3f; load(i) is that of voxel i.
  template <typename T, typename Load>
  __device__ T Interpolate(const Load& load) const {
    T v[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = load(at[i], 0);
      v[2 * i + 1] = load(at[i], step_x);
    }
    const T c00 = v[0] + x * (v[1] - v[0]), c01 = v[2] + x * (v[3] - v[2]);
    const T c10 = v[4] + x * (v[5] - v[4]), c11 = v[6] + x * (v[7] - v[6]);
    const T c0 = c00 + y * (c01 - c00), c1 = c10 + y * (c11 - c10);
    return c0 + z * (c1 - c0);
  }
};

template <bool kWide>
__device__ float SampleScalar(const float* values, const Corners<kWide>& corners) {
  return corners.template Interpolate<float>([&](int i, int step) { return __ldg(values + i + step); });
}

// Fields as kernels read and write them: Load, Sample and, when it is not const, Store.
struct Planes {
  float *x, *y, *z;

  __device__ Planes(float* field, int64_t voxels) : x(field), y(field + voxels), z(field + 2 * voxels) {}
  __device__ Vec3f Load(int i) const { return {__ldg(x + i), __ldg(y + i), __ldg(z + i)}; }
  template <bool kWide>
  __device__ Vec3f Sample(const Corners<kWide>& corners) const {
    return {SampleScalar(x, corners), SampleScalar(y, corners), SampleScalar(z, corners)};
  }
  __device__ void Store(Vec3f v, int i) const {
    x[i] = v.x;
    y[i] = v.y;
    z[i] = v.z;
  }
};
// The arguments that are only read.
__device__ Planes ReadPlanes(const float* field, int64_t voxels) { return Planes(const_cast<float*>(field), voxels); }

// In float16, a voxel's components together, so that a corner is one load.
struct Halves {
  uint2* voxels;  // x and y; z

  __device__ Halves(float* field, int64_t) : voxels(reinterpret_cast<uint2*>(field)) {}
  __device__ Vec3f Load(int i) const {
    const uint2 bits = __ldg(voxels + i);
    const float2 xy = __half22float2(reinterpret_cast<const __half2&>(bits.x)),
                 z = __half22float2(reinterpret_cast<const __half2&>(bits.y));
    return {xy.x, xy.y, z.x};
  }
  template <bool kWide>
  __device__ Vec3f Sample(const Corners<kWide>& corners) const {
    return corners.template Interpolate<Vec3f>([&](int i, int step) { return Load(i + step); });
  }
  __device__ void Store(Vec3f v, int i) const {
    const __half2 xy = __floats2half2_rn(v.x, v.y), z = __floats2half2_rn(v.z, 0);
    voxels[i] = {reinterpret_cast<const unsigned&>(xy), reinterpret_cast<const unsigned&>(z)};
  }
};

template <typename Field, bool kWide>
__device__ Vec3f ComposeAt(Vec3f a, const Field& b, const SampleGrid<kWide>& grid, Vec3f at, ComposeScales s) {
  const Vec3f sample = b.Sample(Corners<kWide>(grid, at + s.position * a));
  return s.inner * a + s.outer * sample;
}

// Smoothing along x and y in one pass. A block takes kWidth columns of a plane and so many rows that with their
// neighbours they are kRows; the tile is smoothed along x, back into itself, then along y. Along x a warp takes 32
// rows, four floats at a time: a row has an odd number of fours, so that eight threads use 32 banks. A thread makes a
// run of outputs from registers. kRunsX warps fetch their 32 rows and smooth them along x without waiting for the
// others.
constexpr int kWidth = 64, kRows = 96, kRunX = 16, kRunsX = kWidth / kRunX, kRunsY = 6;
constexpr int kXyThreads = kRows * kRunsX;
static_assert(kXyThreads == kWidth * kRunsY && kRows % 32 == 0 && kWidth % 32 == 0);
constexpr int kLargestRadius = 12;

template <int kRadius>
struct XyTile {
  static constexpr int kLoaded = kWidth + 2 * kRadius, kPitch = 4 * ((kLoaded + 3) / 4 | 1);
  static constexpr int kRunY = (kRows - 2 * kRadius) / kRunsY, kHeight = kRunY * kRunsY;
};

// Outputs first .. first + kRun of a line whose voxels first - kRadius .. are values(0) ..., not normalised.
template <int kRadius, int kRun, typename Values>
__device__ void SmoothRun(const GaussianKernel& kernel, const Values& values, float (&sums)[kRun]) {
#pragma unroll
  for (int o = 0; o < kRun; ++o) sums[o] = 0;
#pragma unroll
  for (int j = 0; j < kRun + 2 * kRadius; ++j) {
    const float v = values(j);
#pragma unroll
    for (int o = 0; o < kRun; ++o) {
      const int k = j - kRadius - o;
      if (k >= -kRadius && k <= kRadius) sums[o] = fmaf(kernel.weights[k < 0 ? -k : k], v, sums[o]);
    }
  }
}

// The factor that normalises a run near the faces; elsewhere it is 1.
template <int kRun>
__device__ void NormaliseRun(const GaussianKernel& kernel, int first, int n, float (&sums)[kRun]) {
  if (first >= kernel.radius && first + kRun + kernel.radius <= n) return;
#pragma unroll
  for (int o = 0; o < kRun; ++o) {
    if (first + o < n) sums[o] *= kernel.Scale(first + o, n);
  }
}

// The same with what MakeScales left for the line.
template <int kRun>
__device__ void ScaleRun(int radius, int first, int n, const float* scales, float (&sums)[kRun]) {
  if (first >= radius && first + kRun + radius <= n) return;
#pragma unroll
  for (int o = 0; o < kRun; ++o) sums[o] *= scales[o];
}
// scales[i] of voxel first + i of n, 1 beyond them; a part of it by each of kThreads threads from `thread`.
template <int kThreads>
__device__ void MakeScales(const GaussianKernel& kernel, int first, int n, int count, int thread, float* scales) {
  for (int i = thread; i < count; i += kThreads) scales[i] = first + i < n ? kernel.Scale(first + i, n) : 1.0f;
}

// A run of a line in memory, whose voxels are `stride` apart and start at `line`; 0 beyond its ends.
template <int kRadius, int kRun>
__device__ void SmoothLine(const GaussianKernel& kernel, const float* line, int first, int n, int stride,
                           float (&sums)[kRun]) {
  const float* const from = line + int64_t{first - kRadius} * stride;
  if (first >= kRadius && first + kRun + kRadius <= n) {
    SmoothRun<kRadius>(
        kernel, [&](int j) { return from[int64_t{j} * stride]; }, sums);
  } else {
    SmoothRun<kRadius>(
        kernel,
        [&](int j) {
          const int i = first - kRadius + j;
          return i >= 0 && i < n ? from[int64_t{j} * stride] : 0.0f;
        },
        sums);
  }
  NormaliseRun(kernel, first, n, sums);
}

// A float from memory to shared memory when `fetched`; there after AwaitFloats and a barrier. bytes: 4, or 0 for a zero
// (`from` is not looked at).
__device__ void FetchFloat(float* to, const float* from, int bytes, bool fetched) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile(
      "{\n\t.reg .pred fetched;\n\tsetp.ne.s32 fetched, %3, 0;\n\t"
      "@fetched cp.async.ca.shared.global [%0], [%1], 4, %2;\n\t}" ::"r"(at),
      "l"(from), "r"(bytes), "r"(static_cast<int>(fetched))
      : "memory");
#else
  if (fetched) *to = bytes > 0 ? *from : 0.0f;
#endif
}
__device__ void AwaitFloats() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Waits for the warps that share rows of the tile.
__device__ void AwaitRows(int group) {
  static_assert(kRows == 96);
  constexpr int kThreads = 32 * kRunsX;
  if (group == 0) {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  } else if (group == 1) {
    asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
  } else {
    asm volatile("bar.sync 3, %0;" ::"n"(kThreads) : "memory");
  }
}

// Begins to fetch the 32 rows of the tile that the warp's group takes, all of them in flight at once; `plane` is the
// block's.
template <int kRadius>
__device__ void FetchRows(const float* plane, Int3 size, int x0, int y0, int rows, float* tile) {
  constexpr int kLoaded = XyTile<kRadius>::kLoaded, kAcross = (kLoaded + 31) / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = warp / kRunsX * 32 + warp % kRunsX, x = x0 - kRadius + lane;
  int bytes[kAcross];
#pragma unroll
  for (int i = 0; i < kAcross; ++i) bytes[i] = x + 32 * i >= 0 && x + 32 * i < size.x ? 4 : 0;
  const bool has_last = lane + 32 * (kAcross - 1) < kLoaded;
  const int64_t stride = int64_t{kRunsX} * size.x;
  const float* from = plane + static_cast<int64_t>(y0 - kRadius + first) * size.x + x;
  float* const to = tile + first * XyTile<kRadius>::kPitch + lane;
#pragma unroll
  for (int r = 0; r < 32; r += kRunsX, from += stride) {
    if (first + r >= rows) break;
    const int mask = static_cast<unsigned>(y0 - kRadius + first + r) < static_cast<unsigned>(size.y) ? 4 : 0;
#pragma unroll
    for (int i = 0; i < kAcross; ++i) {
      FetchFloat(to + r * XyTile<kRadius>::kPitch + 32 * i, from + 32 * i, bytes[i] & mask,
                 i < kAcross - 1 || has_last);
    }
  }
}

// A run of a row of the tile along x.
template <int kRadius>
__device__ void SmoothTileRow(const GaussianKernel& kernel, const float* at, float (&sums)[kRunX]) {
  const float4* const fours = reinterpret_cast<const float4*>(at);
  float4 four;
  SmoothRun<kRadius>(
      kernel,
      [&](int j) {
        if (j % 4 == 0) four = fours[j / 4];
        return j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
      },
      sums);
}

// `size`: of the stack of all planes. `height` is XyTile's or less.
template <int kRadius>
__global__ void __launch_bounds__(kXyThreads, 5)
    SmoothXyKernel(const float* __restrict__ in, float* __restrict__ out, Int3 size, int height, float* clear,
                   const int* skip, const __grid_constant__ GaussianKernel along_x,
                   const __grid_constant__ GaussianKernel along_y) {
  using Tile = XyTile<kRadius>;
  __shared__ alignas(16) float tile[kRows * Tile::kPitch];
  __shared__ float scales_x[kRows / 32][kWidth], scales_y[Tile::kHeight];
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int x0 = blockIdx.x * kWidth, y0 = blockIdx.y * height;
  const int rows = min(height, size.y - y0) + 2 * kRadius;
  const size_t plane = static_cast<size_t>(blockIdx.z) * size.y * size.x;
  if (clear != nullptr && threadIdx.x == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0) *clear = 0;
  FetchRows<kRadius>(in + plane, size, x0, y0, rows, tile);
  {
    const int group = warp / kRunsX, row = group * 32 + lane, first = warp % kRunsX * kRunX;
    const bool mine = row < rows && x0 + first < size.x;
    float* const at = tile + row * Tile::kPitch + first;
    float sums[kRunX];
    MakeScales<32 * kRunsX>(along_x, x0, size.x, kWidth, threadIdx.x % (32 * kRunsX), scales_x[group]);
    MakeScales<kXyThreads>(along_y, y0, size.y, Tile::kHeight, threadIdx.x, scales_y);
    AwaitFloats();
    AwaitRows(group);
    if (mine) SmoothTileRow<kRadius>(along_x, at, sums);
    AwaitRows(group);
    if (mine) {
      ScaleRun(along_x.radius, x0 + first, size.x, scales_x[group] + first, sums);
#pragma unroll
      for (int o = 0; o < kRunX; o += 4) {
        reinterpret_cast<float4*>(at)[o / 4] = {sums[o], sums[o + 1], sums[o + 2], sums[o + 3]};
      }
    }
    __syncthreads();
  }
  constexpr int kRunY = Tile::kRunY;
  const int column = warp % (kWidth / 32) * 32 + lane, x = x0 + column, first = warp / (kWidth / 32) * kRunY;
  const int left = rows - 2 * kRadius - first;
  if (x >= size.x || left <= 0) return;
  float sums[kRunY];
  // Rows beyond the last may hold anything: they are not part of what is stored.
  SmoothRun<kRadius>(
      along_y, [&](int j) { return tile[(first + j) * Tile::kPitch + column]; }, sums);
  ScaleRun(along_y.radius, y0 + first, size.y, scales_y + first, sums);
  float* to = out + plane + static_cast<size_t>(y0 + first) * size.x + x;
  if (left >= kRunY) {
#pragma unroll
    for (int o = 0; o < kRunY; ++o, to += size.x) *to = sums[o];
  } else {
#pragma unroll
    for (int o = 0; o < kRunY; ++o, to += size.x) {
      if (o < left) *to = sums[o];
    }
  }
}

// Smoothing along z: a thread makes a run of voxels of a column of one component from registers, a longer one where
// there are enough of them: neighbours are read more often than once from the L2 cache, which bounds it. The blocks of
// a column follow one another, so that they find each other's planes there.
constexpr int kAcrossX = 64, kAcrossZ = 4, kShortRunZ = 16, kLongRunZ = 32;
constexpr int64_t kLongRunVoxels = int64_t{1} << 24;

// kRadius as in WithRadius.
template <int kRadius, int kRun, bool kMomentum>
__global__ void __launch_bounds__(kAcrossX* kAcrossZ)
    SmoothZKernel(const float* __restrict__ in, float* __restrict__ out, int plane, int nz, int blocks_z,
                  float* largest, const int* skip, const PlaneMomentum momentum,
                  const __grid_constant__ GaussianKernel kernel) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int e = blockIdx.x / blocks_z * kAcrossX + threadIdx.x;
  const int first = (blockIdx.x % blocks_z * kAcrossZ + threadIdx.y) * kRun;
  const int64_t column = int64_t{blockIdx.z} * nz * plane + e;
  float most = 0;
  if (e < plane && first < nz) {
    const float* const line = in + column;
    // They are loaded before anything is stored, so that the loads overlap.
    float before[kMomentum ? kRun : 1], factor = 0;
    if constexpr (kMomentum) {
      factor = *momentum.factor;
#pragma unroll
      for (int o = 0; o < kRun; ++o) {
        if (first + o < nz) before[o] = momentum.reached[column + int64_t{first + o} * plane];
      }
    }
    float sums[kRun];
    if constexpr (kRadius >= 0) {
      SmoothLine<kRadius>(kernel, line, first, nz, plane, sums);
    } else {
#pragma unroll
      for (int o = 0; o < kRun; ++o) sums[o] = 0;
      const int r = kernel.radius, end = min(first + kRun + r, nz);
      for (int z = max(first - r, 0); z < end; ++z) {
        const float v = line[int64_t{z} * plane];
#pragma unroll
        for (int o = 0; o < kRun; ++o) sums[o] = fmaf(kernel.weights[abs(z - first - o)], v, sums[o]);
      }
      NormaliseRun(kernel, first, nz, sums);
    }
#pragma unroll
    for (int o = 0; o < kRun; ++o) {
      if (first + o >= nz) break;
      const int64_t at = column + int64_t{first + o} * plane;
      float value = sums[o];
      if constexpr (kMomentum) {
        momentum.reached[at] = value;
        value += factor * (value - before[o]);
      }
      out[at] = value;
      most = fmaxf(most, fabsf(value));
    }
  }
  if (largest != nullptr) KeepLargest<kAcrossX * kAcrossZ>(most, largest);
}

// A quotient's four planes smoothed along z, then the use of its vectors. A block takes 32 x kFusedY columns and
// kFusedZ runs of each; those of a column follow one another, as above.
constexpr int kFusedY = 4, kFusedZ = 4, kFusedRun = 8;

template <QuotientUse kUse>
__device__ void StoreRun(const float (&u)[3][kFusedRun], const Planes& v, const Planes& out, Int3 size, Int3 at) {
  const int plane = size.x * size.y;
  int i = at.z * plane + at.y * size.x + at.x;
#pragma unroll
  for (int o = 0; o < kFusedRun; ++o, i += plane) {
    if (at.z + o >= size.z) break;
    const Vec3f vector{u[0][o], u[1][o], u[2][o]};
    out.Store(kUse == QuotientUse::kAdd ? vector + v.Load(i) : vector, i);
  }
}

template <typename In, bool kWide>
__device__ void ComposeRun(const float (&u)[3][kFusedRun], const In& v, const In& out, Int3 size, Int3 at,
                           const SampleGrid<kWide>& grid) {
  const int plane = size.x * size.y;
  int i = at.z * plane + at.y * size.x + at.x;
#pragma unroll
  for (int o = 0; o < kFusedRun; ++o, i += plane) {
    if (at.z + o >= size.z) break;
    const Vec3f x{static_cast<float>(at.x), static_cast<float>(at.y), static_cast<float>(at.z + o)};
    out.Store(ComposeAt({u[0][o], u[1][o], u[2][o]}, v, grid, x, ComposeScales()), i);
  }
}

template <int kRadius, QuotientUse kUse>
__global__ void __launch_bounds__(32 * kFusedY * kFusedZ, 2)
    SmoothQuotientZKernel(const float* __restrict__ in, const float* __restrict__ velocity, float* __restrict__ out,
                          Int3 size, int blocks_x, int blocks_z, const int* skip,
                          const __grid_constant__ GaussianKernel kernel) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int block_z = blockIdx.x % blocks_z, across = blockIdx.x / blocks_z;
  const Int3 at{across % blocks_x * 32 + static_cast<int>(threadIdx.x),
                across / blocks_x * kFusedY + static_cast<int>(threadIdx.y),
                (block_z * kFusedZ + static_cast<int>(threadIdx.z)) * kFusedRun};
  if (at.x >= size.x || at.y >= size.y || at.z >= size.z) return;
  const int plane = size.x * size.y;
  const int64_t voxels = int64_t{plane} * size.z;
  const float* const line = in + at.y * size.x + at.x;
  float u[3][kFusedRun], factor[kFusedRun];
  SmoothLine<kRadius>(kernel, line + 3 * voxels, at.z, size.z, plane, factor);
#pragma unroll
  for (int o = 0; o < kFusedRun; ++o) factor[o] = QuotientFactor(factor[o]);
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    SmoothLine<kRadius>(kernel, line + c * voxels, at.z, size.z, plane, u[c]);
#pragma unroll
    for (int o = 0; o < kFusedRun; ++o) u[c][o] *= factor[o];
  }
  const Planes v = ReadPlanes(velocity, voxels), to(out, voxels);
  if constexpr (kUse != QuotientUse::kCompose) {
    StoreRun<kUse>(u, v, to, size, at);
  } else if (size.x > 1) {
    ComposeRun(u, v, to, size, at, SampleGrid<true>(size));
  } else {
    ComposeRun(u, v, to, size, at, SampleGrid<false>(size));
  }
}

// Composition: a block takes 32 x kComposeY voxels of up to kComposeZ planes, so that planes and rows that voxels share
// are read from the cache; of fewer where there would be too few blocks to share out evenly.
constexpr int kComposeY = 8, kComposeZ = 8, kLeastComposeZ = 2, kComposeThreads = 32 * kComposeY;
constexpr int64_t kEnoughBlocks = 4096;

// The block's part of ComposeAt(a, b); `out` is neither.
template <bool kWide, typename In, typename Out>
__device__ void ComposeTile(const In& a, const In& b, const Out& out, Int3 size, int depth, ComposeScales scales) {
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * kComposeY + threadIdx.y;
  if (x >= size.x || y >= size.y) return;
  const SampleGrid<kWide> grid(size);
  const int z0 = blockIdx.z * depth, z1 = min(z0 + depth, size.z), plane = size.x * size.y;
  int i = z0 * plane + y * size.x + x;
  Vec3f at{static_cast<float>(x), static_cast<float>(y), static_cast<float>(z0)}, next = a.Load(i);
  for (int z = z0; z < z1; ++z, i += plane, at.z += 1) {
    // The samples wait for it: it is fetched a plane ahead.
    const Vec3f displacement = next;
    if (z + 1 < z1) next = a.Load(i + plane);
    out.Store(ComposeAt(displacement, b, grid, at, scales), i);
  }
}
template <typename In, typename Out>
__device__ void ComposeBlock(const In& a, const In& b, const Out& out, Int3 size, int depth, ComposeScales scales) {
  size.x > 1 ? ComposeTile<true>(a, b, out, size, depth, scales) : ComposeTile<false>(a, b, out, size, depth, scales);
}

__global__ void __launch_bounds__(kComposeThreads)
    ComposePlanesKernel(const float* inner, const float* outer, Int3 size, int depth, float* out, const int* skip) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  ComposeBlock(ReadPlanes(inner, voxels), ReadPlanes(outer, voxels), Planes(out, voxels), size, depth, ComposeScales());
}

// The vectors of a quotient.
__global__ void __launch_bounds__(kComposeThreads)
    DivideKernel(const float* __restrict__ quotient, int64_t voxels, const float* __restrict__ add,
                 float* __restrict__ out, const int* skip) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int64_t i = int64_t{blockIdx.x} * kComposeThreads + threadIdx.x;
  if (i >= voxels) return;
  const float factor = QuotientFactor(quotient[3 * voxels + i]);
#pragma unroll
  for (int64_t at = i; at < 3 * voxels; at += voxels) {
    const float value = factor * quotient[at];
    out[at] = add == nullptr ? value : value + add[at];
  }
}

// The steps of an exponential share these arguments. With n squarings they are: the first step, when n > 0, to
// work[(n - 1) % 2]; n - 1 squarings, the last of them to work[0]; and the last kernel, which makes of it, or of the
// velocity when n is 0, the displacement that the image is sampled at.
struct StepTask {
  const float* velocity;
  const float* largest;
  float factor;
  int limit;
  float* work[2];
  Int3 size;
  int depth;

  __device__ int64_t voxels() const { return int64_t{size.x} * size.y * size.z; }
  __device__ int squarings() const { return Squarings(*largest, factor, kMaxSquarings); }
  // What is there when `left` more squarings follow before the last.
  __device__ float* before(int left) const { return left % 2 == 0 ? work[0] : work[1]; }
};

// Work: how the fields between the steps are held.
template <typename Work>
__global__ void __launch_bounds__(kComposeThreads, 5) FirstStepKernel(const StepTask t, int* too_few, const int* skip) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int n = t.squarings();
  if (n > t.limit) {
    if (too_few != nullptr && threadIdx.x + threadIdx.y == 0) *too_few = 1;
    return;
  }
  if (n == 0) return;
  const Planes v = ReadPlanes(t.velocity, t.voxels());
  ComposeBlock(v, v, Work(t.before(n - 1), t.voxels()), t.size, t.depth, MidpointScales(ldexpf(t.factor, -n)));
}

// `left`: how many squarings follow before the last.
template <typename Work>
__global__ void __launch_bounds__(kComposeThreads, 5) SquaringKernel(const StepTask t, int left, const int* skip) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int n = t.squarings();
  if (n > t.limit || left >= n - 1) return;
  const Work from(t.before(left + 1), t.voxels());
  ComposeBlock(from, from, Work(t.before(left), t.voxels()), t.size, t.depth, ComposeScales());
}

// `starts`: the image's index at the rows of the block. kWide: the field and the image are.
template <bool kWide, bool kBytes, typename Field>
__device__ void WarpTile(const Field& field, const StepTask& t, ComposeScales scales, const WarpTask& warp,
                         const WarpBytes& bytes, const Vec3f* starts) {
  const Int3 size = t.size;
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * kComposeY + threadIdx.y;
  if (x >= size.x || y >= size.y) return;
  const SampleGrid<kWide> grid(size), image(warp.moving_size);
  const Vec3f step{static_cast<float>(warp.index_map.m[0][0]), static_cast<float>(warp.index_map.m[1][0]),
                   static_cast<float>(warp.index_map.m[2][0])};
  const int z0 = blockIdx.z * t.depth, z1 = min(z0 + t.depth, size.z), plane = size.x * size.y;
  int i = z0 * plane + y * size.x + x;
  Vec3f at{static_cast<float>(x), static_cast<float>(y), static_cast<float>(z0)}, next = field.Load(i);
  const Vec3f* start = starts + threadIdx.y;
  for (int z = z0; z < z1; ++z, i += plane, at.z += 1, start += kComposeY) {
    const Vec3f displacement = next;
    if (z + 1 < z1) next = field.Load(i + plane);
    const Vec3f u = ComposeAt(displacement, field, grid, at, scales);
    const Vec3f index = *start + at.x * step + warp.displacement_map.Linear(u);
    warp.out[i] =
        IsInside(warp.moving_size, index) ? SampleScalar(warp.moving, Corners<kWide>(image, index)) : warp.fill;
    if constexpr (kBytes) bytes.out[i] = NearestByte(bytes.in, warp.moving_size, index);
  }
}
template <bool kBytes, typename Field>
__device__ void WarpBlock(const Field& field, const StepTask& t, ComposeScales scales, const WarpTask& warp,
                          const WarpBytes& bytes, const Vec3f* starts) {
  if (t.size.x > 1 && warp.moving_size.x > 1) {
    WarpTile<true, kBytes>(field, t, scales, warp, bytes, starts);
  } else {
    WarpTile<false, kBytes>(field, t, scales, warp, bytes, starts);
  }
}

// kBytes: there are bytes to warp.
template <typename Work, bool kBytes>
__global__ void __launch_bounds__(kComposeThreads, kBytes ? 4 : 5)
    LastStepKernel(const StepTask t, const __grid_constant__ WarpTask warp, const WarpBytes bytes, const int* skip) {
  __shared__ Vec3f starts[kComposeZ * kComposeY];
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int n = t.squarings();
  if (n > t.limit) return;
  const int thread = threadIdx.y * 32 + threadIdx.x;
  // The only arithmetic in float64, once a row.
  if (thread < t.depth * kComposeY) {
    const int y = blockIdx.y * kComposeY + thread % kComposeY, z = blockIdx.z * t.depth + thread / kComposeY;
    starts[thread] = IndexRow(warp.index_map, y, z).start;
  }
  __syncthreads();
  if (n > 0) {
    WarpBlock<kBytes>(Work(t.before(0), t.voxels()), t, ComposeScales(), warp, bytes, starts);
  } else {
    WarpBlock<kBytes>(ReadPlanes(t.velocity, t.voxels()), t, MidpointScales(t.factor), warp, bytes, starts);
  }
}

// The exponential as a field: the last squaring, or the step without one, to before(1), which is free by then.
template <typename Work>
__global__ void __launch_bounds__(kComposeThreads, 5) LastFieldKernel(const StepTask t, const int* skip) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int n = t.squarings();
  if (n > t.limit) return;
  const Work out(t.before(1), t.voxels());
  if (n > 0) {
    const Work from(t.before(0), t.voxels());
    ComposeBlock(from, from, out, t.size, t.depth, ComposeScales());
  } else {
    const Planes v = ReadPlanes(t.velocity, t.voxels());
    ComposeBlock(v, v, out, t.size, t.depth, MidpointScales(t.factor));
  }
}

// Trilinear samples of a field along z, with Corners' arithmetic. The two planes around a sample are interpolated at
// the column's x and y once, and serve all samples between them.
template <bool kWide, typename Field>
class FieldColumn {
 public:
  __device__ FieldColumn(const Field& field, const SampleGrid<kWide>& grid, float x, float y)
      : field_(field), grid_(grid) {
    const int lower_x = static_cast<int>(grid.x.Lower(x, &x_) - SampleAxis::kBits);
    row0_ = static_cast<int>(grid.y.Lower(y, &y_) - SampleAxis::kBits) * grid.width + lower_x;
    row1_ = row0_ + grid.step_y;
  }
  __device__ Vec3f At(float z) {
    float weight;
    const int lower = static_cast<int>(grid_.z.Lower(z, &weight) - SampleAxis::kBits);
    if (lower != lower_) {
      const int plane = lower * grid_.rows * grid_.width;
      low_ = lower == lower_ + 1 ? high_ : Plane(plane);
      high_ = Plane(plane + grid_.step_z);
      lower_ = lower;
    }
    return low_ + weight * (high_ - low_);
  }

 private:
  __device__ Vec3f Plane(int plane) const {
    const Vec3f v00 = field_.Load(plane + row0_), v01 = field_.Load(plane + row0_ + grid_.step_x),
                v10 = field_.Load(plane + row1_), v11 = field_.Load(plane + row1_ + grid_.step_x);
    const Vec3f c0 = v00 + x_ * (v01 - v00), c1 = v10 + x_ * (v11 - v10);
    return c0 + y_ * (c1 - c0);
  }

  const Field& field_;
  const SampleGrid<kWide>& grid_;
  float x_, y_;
  int row0_, row1_;
  int lower_ = -2;
  Vec3f low_, high_;
};

// The warp by a field on a grid with fewer voxels than the image that is made. kWide: the field and the image are.
template <bool kWide, bool kBytes, typename Field>
__device__ void WarpByCoarserTile(const Field& field, Int3 field_size, GridScale scale, int depth, const WarpTask& warp,
                                  const WarpBytes& bytes, const Vec3f* starts) {
  const Int3 size = warp.out_size;
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * kComposeY + threadIdx.y;
  if (x >= size.x || y >= size.y) return;
  const SampleGrid<kWide> grid(field_size), image(warp.moving_size);
  const Vec3f step{static_cast<float>(warp.index_map.m[0][0]), static_cast<float>(warp.index_map.m[1][0]),
                   static_cast<float>(warp.index_map.m[2][0])};
  const int z0 = blockIdx.z * depth, z1 = min(z0 + depth, size.z), plane = size.x * size.y;
  int i = z0 * plane + y * size.x + x;
  const Vec3f* start = starts + threadIdx.y;
  const Vec3f first = scale.Index({x, y, z0});
  FieldColumn<kWide, Field> column(field, grid, first.x, first.y);
  for (int z = z0; z < z1; ++z, i += plane, start += kComposeY) {
    const Vec3f u = scale.Vector(column.At(scale.Index({x, y, z}).z));
    const Vec3f index = *start + static_cast<float>(x) * step + warp.displacement_map.Linear(u);
    warp.out[i] =
        IsInside(warp.moving_size, index) ? SampleScalar(warp.moving, Corners<kWide>(image, index)) : warp.fill;
    if constexpr (kBytes) bytes.out[i] = NearestByte(bytes.in, warp.moving_size, index);
  }
}

template <typename Work, bool kBytes>
__global__ void __launch_bounds__(kComposeThreads, 4)
    WarpByCoarserKernel(const StepTask t, GridScale scale, int depth, const __grid_constant__ WarpTask warp,
                        const WarpBytes bytes, const int* skip) {
  __shared__ Vec3f starts[kComposeZ * kComposeY];
  AwaitPrevious();
  if (IsSkipped(skip) || t.squarings() > t.limit) return;
  const int thread = threadIdx.y * 32 + threadIdx.x;
  if (thread < depth * kComposeY) {
    const int y = blockIdx.y * kComposeY + thread % kComposeY, z = blockIdx.z * depth + thread / kComposeY;
    starts[thread] = IndexRow(warp.index_map, y, z).start;
  }
  __syncthreads();
  const Work field(t.before(1), t.voxels());
  if (t.size.x > 1 && warp.moving_size.x > 1) {
    WarpByCoarserTile<true, kBytes>(field, t.size, scale, depth, warp, bytes, starts);
  } else {
    WarpByCoarserTile<false, kBytes>(field, t.size, scale, depth, warp, bytes, starts);
  }
}

// A derivative of one component, as in GradientAt.
__device__ float Derivative(const float* p, int stride, DifferenceAxis d) {
  return d.scale * (p[d.high * stride] - p[d.low * stride]);
}

// (grad p) a for one component.
__device__ float Along(const float* p, Vec3f a, const int (&stride)[3], const DifferenceAxis (&axes)[3]) {
  return a.x * Derivative(p, stride[0], axes[0]) + a.y * Derivative(p, stride[1], axes[1]) +
         a.z * Derivative(p, stride[2], axes[2]);
}

__global__ void __launch_bounds__(kComposeThreads)
    BchPlanesKernel(const float* __restrict__ v, const float* __restrict__ u, Int3 size, float* __restrict__ out,
                    const int* skip) {
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * kComposeY + threadIdx.y, z = blockIdx.z;
  AwaitPrevious();
  if (IsSkipped(skip) || x >= size.x || y >= size.y) return;
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  const int i = (z * size.y + y) * size.x + x, stride[3] = {1, size.x, size.x * size.y};
  const DifferenceAxis axes[3] = {MakeDifferenceAxis(x, size.x), MakeDifferenceAxis(y, size.y),
                                  MakeDifferenceAxis(z, size.z)};
  const Vec3f at_v = ReadPlanes(v, voxels).Load(i), at_u = ReadPlanes(u, voxels).Load(i);
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    const int64_t at = c * voxels + i;
    const float bracket = Along(v + at, at_u, stride, axes) - Along(u + at, at_v, stride, axes);
    out[at] = at_v[c] + at_u[c] + 0.5f * bracket;
  }
}

__global__ void ToPlanesKernel(const float* field, int64_t voxels, float* planes) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < voxels) Planes(planes, voxels).Store(LoadVector(field + 3 * i), static_cast<int>(i));
}
__global__ void FromPlanesKernel(const float* planes, int64_t voxels, float* field) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < voxels) StoreVector(ReadPlanes(planes, voxels).Load(static_cast<int>(i)), field + 3 * i);
}

// body(std::integral_constant<int, kRadius>()) with the smallest unrolled radius that is enough; -1: any.
template <typename Body>
absl::Status WithRadius(int radius, const Body& body) {
  if (radius <= 3) return body(std::integral_constant<int, 3>());
  if (radius <= 6) return body(std::integral_constant<int, 6>());
  if (radius <= 9) return body(std::integral_constant<int, 9>());
  if (radius <= kLargestRadius) return body(std::integral_constant<int, kLargestRadius>());
  return body(std::integral_constant<int, -1>());
}

GaussianKernel KernelFor(double sigma, int n) { return MakeGaussianKernel(n > 1 ? sigma : 0); }

dim3 ComposeGrid(Int3 size, int depth) {
  return dim3(Blocks(size.x, 32), Blocks(size.y, kComposeY), Blocks(size.z, depth));
}
int ComposeDepth(Int3 size) {
  int depth = kComposeZ;
  const auto blocks = [&] {
    const dim3 grid = ComposeGrid(size, depth);
    return int64_t{grid.x} * grid.y * grid.z;
  };
  while (depth > kLeastComposeZ && blocks() < kEnoughBlocks) depth /= 2;
  return depth;
}
const dim3 kComposeBlock(32, kComposeY);

__global__ void ClearKernel(float* value, const int* skip) {
  if (!IsSkipped(skip)) *value = 0;
}

// Kernels wider than the tiles have neighbours for: two passes, which do not look at `skip`: buffers that are lost
// anyway.
absl::StatusOr<float*> SmoothWideXY(const ExecContext& ctx, float* in, Int3 stack, const GaussianKernel& along_x,
                                    const GaussianKernel& along_y, float* out, float* clear, const int* skip) {
  if (clear != nullptr) {
    ClearKernel<<<1, 1, 0, CudaStream(ctx)>>>(clear, skip);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  INTRAWARP_RETURN_IF_ERROR(SmoothAxis(ctx, in, out, stack, 0, along_x));
  INTRAWARP_RETURN_IF_ERROR(SmoothAxis(ctx, out, in, stack, 1, along_y));
  return in;
}

}  // namespace

absl::Status ToPlanes(const ExecContext& ctx, const float* field, Int3 size, float* planes) {
  ToPlanesKernel<<<Blocks(Voxels(size), 256), 256, 0, CudaStream(ctx)>>>(field, Voxels(size), planes);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status FromPlanes(const ExecContext& ctx, const float* planes, Int3 size, float* field) {
  FromPlanesKernel<<<Blocks(Voxels(size), 256), 256, 0, CudaStream(ctx)>>>(planes, Voxels(size), field);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::StatusOr<float*> SmoothPlanesXY(const ExecContext& ctx, float* in, Int3 size, int planes, const Vec3d& sigma,
                                      float* out, float* clear, const int* skip) {
  const GaussianKernel along_x = KernelFor(sigma.x, size.x), along_y = KernelFor(sigma.y, size.y);
  const Int3 stack{size.x, size.y, planes * size.z};
  const int radius = std::max(along_x.radius, along_y.radius);
  if (radius > kLargestRadius) return SmoothWideXY(ctx, in, stack, along_x, along_y, out, clear, skip);
  INTRAWARP_RETURN_IF_ERROR(WithRadius(radius, [&](auto fixed_radius) {
    constexpr int kRadius = decltype(fixed_radius)::value < 0 ? kLargestRadius : decltype(fixed_radius)::value;
    const int tiles = Blocks(size.y, XyTile<kRadius>::kHeight), height = Blocks(size.y, tiles);
    const dim3 grid(Blocks(size.x, kWidth), tiles, stack.z);
    return LaunchDependent(ctx, SmoothXyKernel<kRadius>, grid, kXyThreads, in, out, stack, height, clear, skip, along_x,
                           along_y);
  }));
  return out;
}

namespace {

template <bool kMomentum>
absl::Status EnqueueSmoothZ(const ExecContext& ctx, const float* in, Int3 size, unsigned planes, double sigma,
                            float* out, float* largest, const int* skip, const PlaneMomentum& momentum) {
  const GaussianKernel kernel = KernelFor(sigma, size.z);
  const int plane = size.x * size.y;
  return WithRadius(kernel.radius, [&](auto radius) {
    constexpr int kRadius = decltype(radius)::value;
    constexpr int kShort = kRadius < 0 ? kSmoothRun : kShortRunZ, kLong = kRadius < 0 ? kSmoothRun : kLongRunZ;
    const bool is_long = Voxels(size) >= kLongRunVoxels;
    const unsigned blocks_z = Blocks(size.z, kAcrossZ * (is_long ? kLong : kShort));
    return LaunchDependent(
        ctx, is_long ? SmoothZKernel<kRadius, kLong, kMomentum> : SmoothZKernel<kRadius, kShort, kMomentum>,
        dim3(Blocks(plane, kAcrossX) * blocks_z, 1, planes), dim3(kAcrossX, kAcrossZ), in, out, plane, size.z,
        static_cast<int>(blocks_z), largest, skip, momentum, kernel);
  });
}

}  // namespace

absl::Status SmoothPlanesZ(const ExecContext& ctx, const float* in, Int3 size, double sigma, float* out, float* largest,
                           const int* skip, const PlaneMomentum& momentum) {
  return momentum.reached == nullptr ? EnqueueSmoothZ<false>(ctx, in, size, 3, sigma, out, largest, skip, momentum)
                                     : EnqueueSmoothZ<true>(ctx, in, size, 3, sigma, out, largest, skip, momentum);
}

absl::Status ComposePlanes(const ExecContext& ctx, const float* inner, const float* outer, Int3 size, float* out,
                           const int* skip) {
  const int depth = ComposeDepth(size);
  return LaunchDependent(ctx, ComposePlanesKernel, ComposeGrid(size, depth), kComposeBlock, inner, outer, size, depth,
                         out, skip);
}

namespace {

// A kernel wider than the fused one has neighbours for: pass by pass. `in` is lost.
absl::Status SmoothWideQuotientZ(const ExecContext& ctx, float* in, Int3 size, double sigma, QuotientUse use,
                                 const float* v, float* work, float* out, const int* skip) {
  const bool composes = use == QuotientUse::kCompose;
  INTRAWARP_RETURN_IF_ERROR(EnqueueSmoothZ<false>(ctx, in, size, 4, sigma, work, nullptr, skip, {}));
  INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, DivideKernel, dim3(Blocks(Voxels(size), kComposeThreads)),
                                            dim3(kComposeThreads), work, Voxels(size),
                                            use == QuotientUse::kAdd ? v : nullptr, composes ? in : out, skip));
  return composes ? ComposePlanes(ctx, in, v, size, out, skip) : absl::OkStatus();
}

template <QuotientUse kUse>
absl::Status EnqueueQuotientZ(const ExecContext& ctx, const float* in, Int3 size, const GaussianKernel& kernel,
                              const float* v, float* out, const int* skip) {
  return WithRadius(kernel.radius, [&](auto radius) {
    constexpr int kRadius = decltype(radius)::value < 0 ? kLargestRadius : decltype(radius)::value;
    const int blocks_x = Blocks(size.x, 32), blocks_z = Blocks(size.z, kFusedZ * kFusedRun);
    return LaunchDependent(ctx, SmoothQuotientZKernel<kRadius, kUse>,
                           dim3(blocks_x * Blocks(size.y, kFusedY) * blocks_z), dim3(32, kFusedY, kFusedZ), in, v, out,
                           size, blocks_x, blocks_z, skip, kernel);
  });
}

}  // namespace

absl::Status SmoothQuotientZ(const ExecContext& ctx, float* in, Int3 size, double sigma, QuotientUse use,
                             const float* v, float* work, float* out, const int* skip) {
  const GaussianKernel kernel = KernelFor(sigma, size.z);
  if (kernel.radius > kLargestRadius) return SmoothWideQuotientZ(ctx, in, size, sigma, use, v, work, out, skip);
  switch (use) {
    case QuotientUse::kAlone:
      return EnqueueQuotientZ<QuotientUse::kAlone>(ctx, in, size, kernel, v, out, skip);
    case QuotientUse::kAdd:
      return EnqueueQuotientZ<QuotientUse::kAdd>(ctx, in, size, kernel, v, out, skip);
    case QuotientUse::kCompose:
      return EnqueueQuotientZ<QuotientUse::kCompose>(ctx, in, size, kernel, v, out, skip);
  }
  return absl::InternalError("no such use");
}

absl::Status BchPlanes(const ExecContext& ctx, const float* v, const float* u, Int3 size, float* out, const int* skip) {
  const dim3 grid(Blocks(size.x, 32), Blocks(size.y, kComposeY), size.z);
  return LaunchDependent(ctx, BchPlanesKernel, grid, kComposeBlock, v, u, size, out, skip);
}

namespace {

template <typename Work, bool kBytes>
absl::Status EnqueueExponentialWarp(const ExecContext& ctx, const ExponentialWarpTask& task, const int* skip) {
  const int depth = ComposeDepth(task.size);
  const StepTask step{task.velocity, task.largest, task.factor, task.max_squarings, {task.work[0], task.work[1]},
                      task.size,     depth};
  const dim3 grid = ComposeGrid(task.size, depth);
  INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, FirstStepKernel<Work>, grid, kComposeBlock, step, task.too_few, skip));
  for (int left = task.max_squarings - 2; left >= 0; --left) {
    INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, SquaringKernel<Work>, grid, kComposeBlock, step, left, skip));
  }
  const Int3 out_size = task.warp.out_size;
  if (out_size == task.size) {
    return LaunchDependent(ctx, LastStepKernel<Work, kBytes>, grid, kComposeBlock, step, task.warp, task.warp_bytes,
                           skip);
  }
  INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, LastFieldKernel<Work>, grid, kComposeBlock, step, skip));
  const int out_depth = ComposeDepth(out_size);
  return LaunchDependent(ctx, WarpByCoarserKernel<Work, kBytes>, ComposeGrid(out_size, out_depth), kComposeBlock, step,
                         MakeGridScale(task.size, out_size), out_depth, task.warp, task.warp_bytes, skip);
}

template <bool kBytes>
absl::Status EnqueueExponentialWarp(const ExecContext& ctx, const ExponentialWarpTask& task, const int* skip) {
  return task.half ? EnqueueExponentialWarp<Halves, kBytes>(ctx, task, skip)
                   : EnqueueExponentialWarp<Planes, kBytes>(ctx, task, skip);
}

}  // namespace

absl::Status ExponentialWarp(const ExecContext& ctx, const ExponentialWarpTask& task, const int* skip) {
  return task.warp_bytes.in == nullptr ? EnqueueExponentialWarp<false>(ctx, task, skip)
                                       : EnqueueExponentialWarp<true>(ctx, task, skip);
}

}  // namespace intrawarp::cuda
