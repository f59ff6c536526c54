// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/image/bspline.h"
#include "tests/bench/baselines/bspline_variants.h"
#include "tests/bench/baselines/texture.cuh"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileThreads = kMaxTile * kMaxTile * kMaxTile;

__device__ int FirstNode(int i, float tile, float w[4]) {
  const float at = i / tile, first = floorf(at);
  BsplineWeights(at - first, w);
  return static_cast<int>(first);
}

__global__ void __launch_bounds__(kThreads)
    ThreadPerVoxelKernel(cudaTextureObject_t control, Int3 size, Int3 nodes, float tile, float4* out) {
  const int voxel = blockIdx.x * kThreads + threadIdx.x;
  if (voxel >= size.x * size.y * size.z) return;
  const int row = voxel / size.x, z = row / size.y;
  float wx[4], wy[4], wz[4];
  const int i = FirstNode(voxel - row * size.x, tile, wx), j = FirstNode(row - z * size.y, tile, wy);
  const int k = FirstNode(z, tile, wz);
  float4 sum = make_float4(0, 0, 0, 0);
  for (int n = 0; n < 4; ++n) {
    for (int m = 0; m < 4; ++m) {
      const int line = ((k + n) * nodes.y + j + m) * nodes.x + i;
      for (int l = 0; l < 4; ++l) {
        const float4 p = tex1Dfetch<float4>(control, line + l);
        const float w = wx[l] * wy[m] * wz[n];
        sum.x += w * p.x;
        sum.y += w * p.y;
        sum.z += w * p.z;
      }
    }
  }
  out[voxel] = sum;
}

// One block a tile. All of a block's threads read the same control point at a time, which shared memory broadcasts.
__global__ void __launch_bounds__(kTileThreads) TilingKernel(const float4* control, Int3 size, Int3 nodes, int tile,
                                                             const __grid_constant__ WeightTable weights, float4* out) {
  __shared__ float4 points[64];
  __shared__ float table[kMaxTile][4];
  const int thread = threadIdx.x + tile * (threadIdx.y + tile * threadIdx.z), threads = tile * tile * tile;
  for (int p = thread; p < 64; p += threads) {
    const int line = (blockIdx.z + p / 16) * nodes.y + blockIdx.y + p / 4 % 4;
    points[p] = control[line * nodes.x + blockIdx.x + p % 4];
  }
  for (int p = thread; p < 4 * tile; p += threads) table[p / 4][p % 4] = weights.w[p / 4][p % 4];
  __syncthreads();
  const int x = blockIdx.x * tile + threadIdx.x, y = blockIdx.y * tile + threadIdx.y;
  const int z = blockIdx.z * tile + threadIdx.z;
  if (x >= size.x || y >= size.y || z >= size.z) return;
  // Two planes of nodes at a time: independent sums, the thesis's instruction level parallelism.
  const float wx[4] = {table[threadIdx.x][0], table[threadIdx.x][1], table[threadIdx.x][2], table[threadIdx.x][3]};
  float4 sums[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
#pragma unroll 1
  for (int rows = 0; rows < 8; ++rows) {
    const int m = rows % 4, half = rows / 4;
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const int n = 2 * half + p % 2, l = p / 2;
      const float4 c = points[n * 16 + m * 4 + l];
      const float w = wx[l] * (table[threadIdx.y][m] * table[threadIdx.z][n]);
      sums[p % 2].x += w * c.x;
      sums[p % 2].y += w * c.y;
      sums[p % 2].z += w * c.z;
    }
  }
  const size_t voxel = (static_cast<size_t>(z) * size.y + y) * size.x + x;
  out[voxel] = make_float4(sums[0].x + sums[1].x, sums[0].y + sums[1].y, sums[0].z + sums[1].z, 0);
}

}  // namespace

absl::StatusOr<Work> MakeThreadPerVoxel(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                        float* out) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Texture> texture,
                             MakeLinearTexture<float4>(control, volume.node_count()));
  const cudaStream_t stream = CudaStream(ctx);
  return Work([=] {
    const unsigned blocks = (volume.voxels() + kThreads - 1) / kThreads;
    ThreadPerVoxelKernel<<<blocks, kThreads, 0, stream>>>(texture->object(), volume.size, volume.nodes(), volume.tile,
                                                          reinterpret_cast<float4*>(out));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  });
}

absl::StatusOr<Work> MakeThreadPerVoxelTiling(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                              float* out) {
  const cudaStream_t stream = CudaStream(ctx);
  return Work([=] {
    const Int3 tiles = volume.tiles();
    TilingKernel<<<dim3(tiles.x, tiles.y, tiles.z), dim3(volume.tile, volume.tile, volume.tile), 0, stream>>>(
        reinterpret_cast<const float4*>(control), volume.size, volume.nodes(), volume.tile,
        MakeWeightTable(volume.tile), reinterpret_cast<float4*>(out));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  });
}

}  // namespace intrawarp::baselines::cuda
