// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/dependent_launch.cuh"
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

// The corners of a trilinear sample, and SampleVector's arithmetic on them.
struct Corners {
  int at[8];
  float x, y, z;

  __device__ Corners(Int3 size, Vec3f index) {
    const LinearAxis ax = MakeLinearAxis(index.x, size.x), ay = MakeLinearAxis(index.y, size.y),
                     az = MakeLinearAxis(index.z, size.z);
    x = ax.weight;
    y = ay.weight;
    z = az.weight;
    const int r00 = (az.lower * size.y + ay.lower) * size.x, r01 = (az.lower * size.y + ay.upper) * size.x;
    const int r10 = (az.upper * size.y + ay.lower) * size.x, r11 = (az.upper * size.y + ay.upper) * size.x;
    at[0] = r00 + ax.lower;
    at[1] = r00 + ax.upper;
    at[2] = r01 + ax.lower;
    at[3] = r01 + ax.upper;
    at[4] = r10 + ax.lower;
    at[5] = r10 + ax.upper;
    at[6] = r11 + ax.lower;
    at[7] = r11 + ax.upper;
  }

  // T: float or Vec3f.
  template <typename T>
  __device__ T Interpolate(const T (&v)[8]) const {
    const T c00 = v[0] + x * (v[1] - v[0]), c01 = v[2] + x * (v[3] - v[2]);
    const T c10 = v[4] + x * (v[5] - v[4]), c11 = v[6] + x * (v[7] - v[6]);
    const T c0 = c00 + y * (c01 - c00), c1 = c10 + y * (c11 - c10);
    return c0 + z * (c1 - c0);
  }
};

// Fields as kernels read and write them: Load, Sample and, when it is not const, Store.
struct Planes {
  float *x, *y, *z;

  __device__ Planes(float* field, int64_t voxels) : x(field), y(field + voxels), z(field + 2 * voxels) {}
  __device__ Vec3f Load(int i) const { return {__ldg(x + i), __ldg(y + i), __ldg(z + i)}; }
  __device__ Vec3f Sample(const Corners& corners) const {
    return {SampleOne(x, corners), SampleOne(y, corners), SampleOne(z, corners)};
  }
  __device__ void Store(Vec3f v, int i) const {
    x[i] = v.x;
    y[i] = v.y;
    z[i] = v.z;
  }

 private:
  __device__ static float SampleOne(const float* plane, const Corners& corners) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __ldg(plane + corners.at[i]);
    return corners.Interpolate(v);
  }
};
// What is only read.
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
  __device__ Vec3f Sample(const Corners& corners) const {
    Vec3f v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = Load(corners.at[i]);
    return corners.Interpolate(v);
  }
  __device__ void Store(Vec3f v, int i) const {
    const __half2 xy = __floats2half2_rn(v.x, v.y), z = __floats2half2_rn(v.z, 0);
    voxels[i] = {reinterpret_cast<const unsigned&>(xy), reinterpret_cast<const unsigned&>(z)};
  }
};

template <typename Field>
__device__ Vec3f ComposeAt(Vec3f a, const Field& b, Int3 size, Vec3f at, ComposeScales s) {
  const Vec3f sample = b.Sample(Corners(size, at + s.position * a));
  return s.inner * a + s.outer * sample;
}

// Smoothing along x and y in one pass. A block takes kWidth columns of a plane and so many rows that with their
// neighbours they are kRows; the tile is smoothed along x, back into itself, then along y. In shared memory a row has
// an odd number of floats: along x a warp takes 32 rows, so that its threads use 32 banks. A thread makes a run of
// outputs from registers.
constexpr int kWidth = 64, kRows = 96, kRunX = 16, kRunsX = kWidth / kRunX, kRunsY = 6;
constexpr int kXyThreads = kRows * kRunsX;
static_assert(kXyThreads == kWidth * kRunsY && kRows % 32 == 0 && kWidth % 32 == 0);
constexpr int kLargestRadius = 12;

template <int kRadius>
struct XyTile {
  static constexpr int kLoaded = kWidth + 2 * kRadius, kPitch = kLoaded | 1;
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

// What normalises a run near the faces; elsewhere it is 1.
template <int kRun>
__device__ void NormaliseRun(const GaussianKernel& kernel, int first, int n, float (&sums)[kRun]) {
  if (first >= kernel.radius && first + kRun + kernel.radius <= n) return;
#pragma unroll
  for (int o = 0; o < kRun; ++o) {
    if (first + o < n) sums[o] *= kernel.Scale(first + o, n);
  }
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

// A float from memory to shared memory, 0 where it does not count; there after AwaitFloats and a barrier. `from` is
// valid anyway.
__device__ void FetchFloat(float* to, const float* from, bool counts) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(counts ? 4 : 0) : "memory");
#else
  *to = counts ? *from : 0.0f;
#endif
}
__device__ void AwaitFloats() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// The tile, all of its loads in flight at once; `plane` is the block's.
template <int kRadius>
__device__ void FetchTile(const float* plane, Int3 size, int x0, int y0, int rows, float* tile) {
  constexpr int kAcross = (XyTile<kRadius>::kLoaded + 31) / 32, kWarps = kXyThreads / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int columns[kAcross];
  bool counts[kAcross];
#pragma unroll
  for (int i = 0; i < kAcross; ++i) {
    const int x = x0 - kRadius + lane + 32 * i;
    columns[i] = min(max(x, 0), size.x - 1);
    counts[i] = columns[i] == x;
  }
#pragma unroll
  for (int first = 0; first < kRows; first += kWarps) {
    const int r = first + warp;
    if (r >= rows) break;
    const int y = y0 - kRadius + r, inside = min(max(y, 0), size.y - 1);
    const float* const row = plane + static_cast<size_t>(inside) * size.x;
#pragma unroll
    for (int i = 0; i < kAcross; ++i) {
      const int column = lane + 32 * i;
      if (32 * (i + 1) > XyTile<kRadius>::kLoaded && column >= XyTile<kRadius>::kLoaded) continue;
      FetchFloat(tile + r * XyTile<kRadius>::kPitch + column, row + columns[i], counts[i] && inside == y);
    }
  }
  AwaitFloats();
}

// `size`: of the stack of all planes. `height` is XyTile's or less.
template <int kRadius>
__global__ void __launch_bounds__(kXyThreads, 4)
    SmoothXyKernel(const float* __restrict__ in, float* __restrict__ out, Int3 size, int height, float* clear,
                   const int* skip, const __grid_constant__ GaussianKernel along_x,
                   const __grid_constant__ GaussianKernel along_y) {
  using Tile = XyTile<kRadius>;
  __shared__ float tile[kRows * Tile::kPitch];
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int x0 = blockIdx.x * kWidth, y0 = blockIdx.y * height;
  const int rows = min(height, size.y - y0) + 2 * kRadius;
  const size_t plane = static_cast<size_t>(blockIdx.z) * size.y * size.x;
  if (clear != nullptr && threadIdx.x == 0 && blockIdx.x + blockIdx.y + blockIdx.z == 0) *clear = 0;
  FetchTile<kRadius>(in + plane, size, x0, y0, rows, tile);
  __syncthreads();
  {
    const int row = warp / kRunsX * 32 + lane, first = warp % kRunsX * kRunX;
    const bool mine = row < rows && x0 + first < size.x;
    float* const at = tile + row * Tile::kPitch + first;
    float sums[kRunX];
    if (mine)
      SmoothRun<kRadius>(
          along_x, [&](int j) { return at[j]; }, sums);
    __syncthreads();
    if (mine) {
      NormaliseRun(along_x, x0 + first, size.x, sums);
#pragma unroll
      for (int o = 0; o < kRunX; ++o) at[o] = sums[o];
    }
    __syncthreads();
  }
  constexpr int kRunY = Tile::kRunY;
  const int column = warp % (kWidth / 32) * 32 + lane, x = x0 + column, first = warp / (kWidth / 32) * kRunY;
  if (x >= size.x || first >= rows - 2 * kRadius) return;
  float sums[kRunY];
  // Rows beyond the last may hold anything: they are not part of what is stored.
  SmoothRun<kRadius>(
      along_y, [&](int j) { return tile[(first + j) * Tile::kPitch + column]; }, sums);
  NormaliseRun(along_y, y0 + first, size.y, sums);
  float* const to = out + plane + static_cast<size_t>(y0 + first) * size.x + x;
#pragma unroll
  for (int o = 0; o < kRunY; ++o) {
    if (first + o >= rows - 2 * kRadius) break;
    to[static_cast<size_t>(o) * size.x] = sums[o];
  }
}

// Smoothing along z: a thread makes kRunZ voxels of a column of one component from registers.
constexpr int kAcrossX = 64, kAcrossZ = 4, kRunZ = 16;

// kRadius as in WithRadius.
template <int kRadius>
__global__ void __launch_bounds__(kAcrossX* kAcrossZ)
    SmoothZKernel(const float* __restrict__ in, const float* __restrict__ add, float* __restrict__ out, int plane,
                  int nz, float* largest, const int* skip, const __grid_constant__ GaussianKernel kernel) {
  constexpr int kRun = kRadius < 0 ? kSmoothRun : kRunZ;
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int e = blockIdx.x * kAcrossX + threadIdx.x, first = (blockIdx.y * kAcrossZ + threadIdx.y) * kRun;
  const int64_t column = int64_t{blockIdx.z} * nz * plane + e;
  float most = 0;
  if (e < plane && first < nz) {
    const float* const line = in + column;
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
      const float value = add == nullptr ? sums[o] : sums[o] + add[at];
      out[at] = value;
      most = fmaxf(most, fabsf(value));
    }
  }
  if (largest != nullptr) KeepLargest<kAcrossX * kAcrossZ>(most, largest);
}

// The same for all components, then the composition. A block takes 32 x kFusedY columns and kFusedZ runs of each.
constexpr int kFusedY = 4, kFusedZ = 2, kFusedRun = 8;

template <int kRadius>
__global__ void __launch_bounds__(32 * kFusedY * kFusedZ)
    SmoothZComposeKernel(const float* __restrict__ in, const float* __restrict__ velocity, float* __restrict__ out,
                         Int3 size, const int* skip, const __grid_constant__ GaussianKernel kernel) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * kFusedY + threadIdx.y;
  const int first = (blockIdx.z * kFusedZ + threadIdx.z) * kFusedRun;
  if (x >= size.x || y >= size.y || first >= size.z) return;
  const int plane = size.x * size.y, e = y * size.x + x;
  const int64_t voxels = int64_t{plane} * size.z;
  float sums[3][kFusedRun];
#pragma unroll
  for (int c = 0; c < 3; ++c) {
    SmoothLine<kRadius>(kernel, in + c * voxels + e, first, size.z, plane, sums[c]);
  }
  const Planes v = ReadPlanes(velocity, voxels), to(out, voxels);
#pragma unroll
  for (int o = 0; o < kFusedRun; ++o) {
    const int z = first + o;
    if (z >= size.z) break;
    const Vec3f u{sums[0][o], sums[1][o], sums[2][o]};
    const Vec3f at{static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)};
    to.Store(ComposeAt(u, v, size, at, ComposeScales()), z * plane + e);
  }
}

// Composition: a block takes 32 x kComposeY voxels of up to kComposeZ planes, so that planes and rows that voxels share
// are read from the cache; of fewer where there would be too few blocks to share out evenly.
constexpr int kComposeY = 8, kComposeZ = 8, kLeastComposeZ = 2, kComposeThreads = 32 * kComposeY;
constexpr int64_t kEnoughBlocks = 4096;

// The block's part of ComposeAt(a, b); `out` is neither.
template <typename In, typename Out>
__device__ void ComposeBlock(const In& a, const In& b, const Out& out, Int3 size, int depth, ComposeScales scales) {
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * kComposeY + threadIdx.y;
  if (x >= size.x || y >= size.y) return;
  const int z0 = blockIdx.z * depth, z1 = min(z0 + depth, size.z), plane = size.x * size.y;
  int i = z0 * plane + y * size.x + x;
  Vec3f next = a.Load(i);
  for (int z = z0; z < z1; ++z, i += plane) {
    // The samples wait for it: it is fetched a plane ahead.
    const Vec3f displacement = next;
    if (z + 1 < z1) next = a.Load(i + plane);
    const Vec3f at{static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)};
    out.Store(ComposeAt(displacement, b, size, at, scales), i);
  }
}

__global__ void __launch_bounds__(kComposeThreads)
    ComposePlanesKernel(const float* inner, const float* outer, Int3 size, int depth, float* out, const int* skip) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  ComposeBlock(ReadPlanes(inner, voxels), ReadPlanes(outer, voxels), Planes(out, voxels), size, depth, ComposeScales());
}

// What the steps of an exponential share. With n squarings it is: the first step, when n > 0, to work[(n - 1) % 2];
// n - 1 squarings, the last of them to work[0]; and the last kernel, which makes of it, or of the velocity when n is 0,
// the displacement that the image is sampled at.
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
__global__ void __launch_bounds__(kComposeThreads) FirstStepKernel(const StepTask t, int* too_few, const int* skip) {
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
__global__ void __launch_bounds__(kComposeThreads) SquaringKernel(const StepTask t, int left, const int* skip) {
  AwaitPrevious();
  if (IsSkipped(skip)) return;
  const int n = t.squarings();
  if (n > t.limit || left >= n - 1) return;
  const Work from(t.before(left + 1), t.voxels());
  ComposeBlock(from, from, Work(t.before(left), t.voxels()), t.size, t.depth, ComposeScales());
}

// `starts`: the image's index at the rows of the block.
template <typename Field>
__device__ void WarpBlock(const Field& field, const StepTask& t, ComposeScales scales, const WarpTask& warp,
                          const Vec3f* starts) {
  const Int3 size = t.size;
  const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * kComposeY + threadIdx.y;
  if (x >= size.x || y >= size.y) return;
  const Vec3f step{static_cast<float>(warp.index_map.m[0][0]), static_cast<float>(warp.index_map.m[1][0]),
                   static_cast<float>(warp.index_map.m[2][0])};
  const int z0 = blockIdx.z * t.depth, z1 = min(z0 + t.depth, size.z), plane = size.x * size.y;
  int i = z0 * plane + y * size.x + x;
  Vec3f next = field.Load(i);
  for (int z = z0; z < z1; ++z, i += plane) {
    const Vec3f displacement = next;
    if (z + 1 < z1) next = field.Load(i + plane);
    const Vec3f at{static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)};
    const Vec3f u = ComposeAt(displacement, field, size, at, scales);
    const Vec3f index = starts[(z - z0) * kComposeY + threadIdx.y] + static_cast<float>(x) * step;
    warp.out[i] = SampleOr<Interpolation::kLinear>(warp.moving, warp.moving_size,
                                                   index + warp.displacement_map.Linear(u), warp.fill);
  }
}

template <typename Work>
__global__ void __launch_bounds__(kComposeThreads)
    LastStepKernel(const StepTask t, const __grid_constant__ WarpTask warp, const int* skip) {
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
    WarpBlock(Work(t.before(0), t.voxels()), t, ComposeScales(), warp, starts);
  } else {
    WarpBlock(ReadPlanes(t.velocity, t.voxels()), t, MidpointScales(t.factor), warp, starts);
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

absl::StatusOr<float*> SmoothPlanesXY(const ExecContext& ctx, float* in, Int3 size, double sigma, float* out,
                                      float* clear, const int* skip) {
  const GaussianKernel along_x = KernelFor(sigma, size.x), along_y = KernelFor(sigma, size.y);
  const Int3 stack{size.x, size.y, 3 * size.z};
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

absl::Status SmoothPlanesZ(const ExecContext& ctx, const float* in, Int3 size, double sigma, const float* add,
                           float* out, float* largest, const int* skip) {
  const GaussianKernel kernel = KernelFor(sigma, size.z);
  const int plane = size.x * size.y;
  return WithRadius(kernel.radius, [&](auto radius) {
    constexpr int kRadius = decltype(radius)::value;
    const dim3 grid(Blocks(plane, kAcrossX), Blocks(size.z, kAcrossZ * (kRadius < 0 ? kSmoothRun : kRunZ)), 3);
    return LaunchDependent(ctx, SmoothZKernel<kRadius>, grid, dim3(kAcrossX, kAcrossZ), in, add, out, plane, size.z,
                           largest, skip, kernel);
  });
}

absl::StatusOr<float*> SmoothPlanesZCompose(const ExecContext& ctx, float* in, Int3 size, double sigma, const float* v,
                                            float* out, const int* skip) {
  const GaussianKernel kernel = KernelFor(sigma, size.z);
  if (kernel.radius > kLargestRadius) {
    INTRAWARP_RETURN_IF_ERROR(SmoothPlanesZ(ctx, in, size, sigma, nullptr, out, nullptr, skip));
    const int depth = ComposeDepth(size);
    INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, ComposePlanesKernel, ComposeGrid(size, depth), kComposeBlock, out, v,
                                              size, depth, in, skip));
    return in;
  }
  INTRAWARP_RETURN_IF_ERROR(WithRadius(kernel.radius, [&](auto radius) {
    constexpr int kRadius = decltype(radius)::value < 0 ? kLargestRadius : decltype(radius)::value;
    const dim3 grid(Blocks(size.x, 32), Blocks(size.y, kFusedY), Blocks(size.z, kFusedZ * kFusedRun));
    return LaunchDependent(ctx, SmoothZComposeKernel<kRadius>, grid, dim3(32, kFusedY, kFusedZ), in, v, out, size, skip,
                           kernel);
  }));
  return out;
}

absl::Status BchPlanes(const ExecContext& ctx, const float* v, const float* u, Int3 size, float* out, const int* skip) {
  const dim3 grid(Blocks(size.x, 32), Blocks(size.y, kComposeY), size.z);
  return LaunchDependent(ctx, BchPlanesKernel, grid, kComposeBlock, v, u, size, out, skip);
}

namespace {

template <typename Work>
absl::Status EnqueueExponentialWarp(const ExecContext& ctx, const ExponentialWarpTask& task, const int* skip) {
  const int depth = ComposeDepth(task.size);
  const StepTask step{task.velocity, task.largest, task.factor, task.max_squarings, {task.work[0], task.work[1]},
                      task.size,     depth};
  const dim3 grid = ComposeGrid(task.size, depth);
  INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, FirstStepKernel<Work>, grid, kComposeBlock, step, task.too_few, skip));
  for (int left = task.max_squarings - 2; left >= 0; --left) {
    INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, SquaringKernel<Work>, grid, kComposeBlock, step, left, skip));
  }
  return LaunchDependent(ctx, LastStepKernel<Work>, grid, kComposeBlock, step, task.warp, skip);
}

}  // namespace

absl::Status ExponentialWarp(const ExecContext& ctx, const ExponentialWarpTask& task, const int* skip) {
  return task.half ? EnqueueExponentialWarp<Halves>(ctx, task, skip) : EnqueueExponentialWarp<Planes>(ctx, task, skip);
}

}  // namespace intrawarp::cuda
