// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/bspline_variants.h"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kBlock = 4;  // tiles along each axis of a block
constexpr int kThreads = kBlock * kBlock * kBlock;
constexpr int kBlocksPerSm = 4;  // 256 threads of 255 registers, the thesis's occupancy

struct Float3 {
  float x, y, z;
};

// Where a thread's tile begins, as its first node and its voxels [begin, end) along each axis.
struct Tile {
  Int3 node, begin, end;
};

__device__ bool FindTile(Int3 size, int tile, Tile* t) {
  t->node = {static_cast<int>(blockIdx.x * kBlock + threadIdx.x), static_cast<int>(blockIdx.y * kBlock + threadIdx.y),
             static_cast<int>(blockIdx.z * kBlock + threadIdx.z)};
  t->begin = tile * t->node;
  t->end = {min(t->begin.x + tile, size.x), min(t->begin.y + tile, size.y), min(t->begin.z + tile, size.z)};
  return t->begin.x < size.x && t->begin.y < size.y && t->begin.z < size.z;
}

// Straight to registers, through the caches ("Skipping shared memory", section 2.5.2).
__device__ Float3 LoadNode(const float4* control, Int3 nodes, Int3 first, int l, int m, int n) {
  const float* p = &control[((first.z + n) * nodes.y + first.y + m) * nodes.x + first.x + l].x;
  return {__ldg(p), __ldg(p + 1), __ldg(p + 2)};
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    ThreadPerTileKernel(const float4* __restrict__ control, Int3 size, Int3 nodes, int tile,
                        const __grid_constant__ WeightTable weights, float4* __restrict__ out) {
  Tile t;
  if (!FindTile(size, tile, &t)) return;
  Float3 points[4][4][4];
#pragma unroll
  for (int p = 0; p < 64; ++p)
    points[p / 16][p / 4 % 4][p % 4] = LoadNode(control, nodes, t.node, p % 4, p / 4 % 4, p / 16);
#pragma unroll 1
  for (int z = t.begin.z; z < t.end.z; ++z) {
    const float* wz = weights.w[z - t.begin.z];
#pragma unroll 1
    for (int y = t.begin.y; y < t.end.y; ++y) {
      const float* wy = weights.w[y - t.begin.y];
      float4* row = out + (static_cast<size_t>(z) * size.y + y) * size.x;
#pragma unroll 1
      for (int x = t.begin.x; x < t.end.x; ++x) {
        const float* wx = weights.w[x - t.begin.x];
        Float3 sum{0, 0, 0};
#pragma unroll
        for (int p = 0; p < 64; ++p) {
          const int n = p / 16, m = p / 4 % 4, l = p % 4;
          const float w = wx[l] * wy[m] * wz[n];
          sum.x += w * points[n][m][l].x;
          sum.y += w * points[n][m][l].y;
          sum.z += w * points[n][m][l].z;
        }
        row[x] = make_float4(sum.x, sum.y, sum.z, 0);
      }
    }
  }
}

// a + w (b - a): a subtraction and a fused multiply and add.
__device__ __forceinline__ Float3 Lerp(Float3 a, Float3 b, float w) {
  return {fmaf(w, b.x - a.x, a.x), fmaf(w, b.y - a.y, a.y), fmaf(w, b.z - a.z, a.z)};
}

// The nodes of a tile: three planes in registers, the fourth in shared memory.
class TileNodes {
 public:
  __device__ TileNodes(const float4* control, Int3 nodes, Int3 first, float (*shared)[kThreads]) : shared_(shared) {
#pragma unroll
    for (int p = 0; p < 48; ++p) {
      registers_[p] = LoadNode(control, nodes, first, p % 4, p / 4 % 4, p / 16);
    }
#pragma unroll
    for (int p = 0; p < 16; ++p) {
      const Float3 v = LoadNode(control, nodes, first, p % 4, p / 4, 3);
      shared_[3 * p][0] = v.x;
      shared_[3 * p + 1][0] = v.y;
      shared_[3 * p + 2][0] = v.z;
    }
  }
  __device__ __forceinline__ Float3 operator()(int l, int m, int n) const {
    if (n < 3) return registers_[16 * n + 4 * m + l];
    const int p = 3 * (4 * m + l);
    return {shared_[p][0], shared_[p + 1][0], shared_[p + 2][0]};
  }

 private:
  Float3 registers_[48];
  float (*shared_)[kThreads];  // this thread's column
};

struct LerpWeights {
  float low, high, mix;
};
__device__ __forceinline__ LerpWeights At(const LerpTable& table, int i) {
  return {table.low[i], table.high[i], table.mix[i]};
}

__device__ __forceinline__ Float3 Trilinear(const TileNodes& nodes, LerpWeights wx, LerpWeights wy, LerpWeights wz) {
  Float3 cubes[2][2][2];
#pragma unroll
  for (int cube = 0; cube < 8; ++cube) {
    const int l = cube % 2 * 2, m = cube / 2 % 2 * 2, n = cube / 4 * 2;
    const float u = l ? wx.high : wx.low, v = m ? wy.high : wy.low, w = n ? wz.high : wz.low;
    const auto row = [&](int dm, int dn) { return Lerp(nodes(l, m + dm, n + dn), nodes(l + 1, m + dm, n + dn), u); };
    cubes[n / 2][m / 2][l / 2] = Lerp(Lerp(row(0, 0), row(1, 0), v), Lerp(row(0, 1), row(1, 1), v), w);
  }
  const auto row = [&](int m, int n) { return Lerp(cubes[n][m][0], cubes[n][m][1], wx.mix); };
  return Lerp(Lerp(row(0, 0), row(1, 0), wy.mix), Lerp(row(0, 1), row(1, 1), wy.mix), wz.mix);
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    ThreadPerTileLerpKernel(const float4* __restrict__ control, Int3 size, Int3 nodes, int tile,
                            const __grid_constant__ LerpTable table, float4* __restrict__ out) {
  __shared__ float plane[48][kThreads];
  Tile t;
  if (!FindTile(size, tile, &t)) return;
  const int thread = threadIdx.x + kBlock * (threadIdx.y + kBlock * threadIdx.z);
  const TileNodes points(control, nodes, t.node, reinterpret_cast<float(*)[kThreads]>(&plane[0][thread]));
#pragma unroll 1
  for (int z = t.begin.z; z < t.end.z; ++z) {
    const LerpWeights wz = At(table, z - t.begin.z);
#pragma unroll 1
    for (int y = t.begin.y; y < t.end.y; ++y) {
      const LerpWeights wy = At(table, y - t.begin.y);
      float4* row = out + (static_cast<size_t>(z) * size.y + y) * size.x;
#pragma unroll 1
      for (int x = t.begin.x; x < t.end.x; ++x) {
        const Float3 v = Trilinear(points, At(table, x - t.begin.x), wy, wz);
        row[x] = make_float4(v.x, v.y, v.z, 0);
      }
    }
  }
}

dim3 Blocks(Int3 tiles) {
  return dim3((tiles.x + kBlock - 1) / kBlock, (tiles.y + kBlock - 1) / kBlock, (tiles.z + kBlock - 1) / kBlock);
}

}  // namespace

absl::StatusOr<Work> MakeThreadPerTile(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                       float* out) {
  const cudaStream_t stream = CudaStream(ctx);
  return Work([=] {
    ThreadPerTileKernel<<<Blocks(volume.tiles()), dim3(kBlock, kBlock, kBlock), 0, stream>>>(
        reinterpret_cast<const float4*>(control), volume.size, volume.nodes(), volume.tile,
        MakeWeightTable(volume.tile), reinterpret_cast<float4*>(out));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  });
}

absl::StatusOr<Work> MakeThreadPerTileLerp(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                           float* out) {
  const cudaStream_t stream = CudaStream(ctx);
  return Work([=] {
    ThreadPerTileLerpKernel<<<Blocks(volume.tiles()), dim3(kBlock, kBlock, kBlock), 0, stream>>>(
        reinterpret_cast<const float4*>(control), volume.size, volume.nodes(), volume.tile, MakeLerpTable(volume.tile),
        reinterpret_cast<float4*>(out));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  });
}

}  // namespace intrawarp::baselines::cuda
