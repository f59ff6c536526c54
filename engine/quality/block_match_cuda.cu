// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/quality/block_match_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWindowSide = kBlockSide + 2 * kSearchRadius;
constexpr int kWindowNodes = kWindowSide * kWindowSide * kWindowSide;

// CostKernel: one thread for each plane z of the block's nodes and each (y, z) of a displacement.
constexpr int kRowsOfDisplacements = kSearchSide * kSearchSide;
constexpr int kCostThreads = 256;
static_assert(kCostThreads >= kBlockSide * kRowsOfDisplacements);
constexpr int kMinimaThreads = 128;

// The channels of a descriptor in three words, and the sum of their squares; -1: the node does not count.
struct alignas(16) PackedNode {
  uint32_t channels[kDescriptorChannels / 4];
  int squares;
};

struct Shared {
  PackedNode fixed[kBlockNodes];
  PackedNode moving[kWindowNodes];
  float fixed_variation[kBlockNodes], moving_variation[kBlockNodes];
  // The sum of squared distances and the number of nodes of each displacement.
  int sums[kSearchCount], counts[kSearchCount];
  BlockMatch match;
};

__device__ int ProductSum(const PackedNode& a, const PackedNode& b) {
  unsigned sum = 0;
#pragma unroll
  for (int w = 0; w < kDescriptorChannels / 4; ++w) sum = __dp4a(a.channels[w], b.channels[w], sum);
  return static_cast<int>(sum);
}

// The node at l from the block's first one: its place in the window.
__device__ int WindowPlace(int x, int y, int z) {
  return ((z + kSearchRadius) * kWindowSide + y + kSearchRadius) * kWindowSide + x + kSearchRadius;
}

// Copies the cube of `side` nodes from `first`; nodes outside the grid do not count. The variations of the block's own
// nodes, which begin `margin` nodes inside the cube, go to `variation`. All threads call it.
__device__ void CopyCube(const DescriptorVolume& from, Int3 size, Int3 first, int side, int margin, PackedNode* nodes,
                         float* variation) {
  for (int i = threadIdx.x; i < side * side * side; i += kCostThreads) {
    const Int3 at{i % side, i / side % side, i / (side * side)};
    const int x = first.x + at.x, y = first.y + at.y, z = first.z + at.z;
    const bool inside = x >= 0 && y >= 0 && z >= 0 && x < size.x && y < size.y && z < size.z;
    const int64_t place = (int64_t{z} * size.y + y) * size.x + x;
    PackedNode node{{0, 0, 0}, -1};
    if (inside && from.valid[place] != 0) {
      const uint4 words = *reinterpret_cast<const uint4*>(from.descriptors + place);
      node = {{words.x, words.y, words.z}, 0};
      node.squares = ProductSum(node, node);
      const int bx = at.x - margin, by = at.y - margin, bz = at.z - margin;
      const bool is_own = bx >= 0 && by >= 0 && bz >= 0 && bx < kBlockSide && by < kBlockSide && bz < kBlockSide;
      if (is_own) variation[(bz * kBlockSide + by) * kBlockSide + bx] = __uint_as_float(words.w);
    }
    nodes[i] = node;
  }
}

// By the first warp: the nodes that count without a displacement, and whether the block is to be matched.
__device__ void CountNodes(const BlockMatchInput& in, Int3 first, Shared* s) {
  int nodes = 0;
  BlockSums sums;
  for (int i = threadIdx.x; i < kBlockNodes; i += kWarp) {
    const int x = i % kBlockSide, y = i / kBlockSide % kBlockSide, z = i / (kBlockSide * kBlockSide);
    sums.present += first.x + x < in.size.x && first.y + y < in.size.y && first.z + z < in.size.z;
    if ((s->fixed[i].squares | s->moving[WindowPlace(x, y, z)].squares) < 0) continue;
    ++nodes;
    sums.fixed += s->fixed_variation[i];
    sums.moving += s->moving_variation[i];
  }
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    sums.present += __shfl_down_sync(~0u, sums.present, lanes);
    nodes += __shfl_down_sync(~0u, nodes, lanes);
    sums.fixed += __shfl_down_sync(~0u, sums.fixed, lanes);
    sums.moving += __shfl_down_sync(~0u, sums.moving, lanes);
  }
  if (threadIdx.x != 0) return;
  BlockMatch match;
  match.nodes = nodes;
  SetVariation(in, sums, &match);
  s->match = match;
}

// Adds the nodes of plane z to the kSearchSide displacements (x, ly, lz), of which the first is (-kSearchRadius, ly,
// lz): each node of a row of the window meets up to kBlockSide nodes of the block, which stay in registers. ly and lz
// count from 0. With n nodes in common, sum (f - m)^2 = sum (f^2 + m^2 - 2 f m) in exact integers.
__device__ void AddPlane(int z, int ly, int lz, Shared* s) {
  int sums[kSearchSide] = {}, counts[kSearchSide] = {};
  for (int y = 0; y < kBlockSide; ++y) {
    PackedNode fixed[kBlockSide];
#pragma unroll
    for (int x = 0; x < kBlockSide; ++x) fixed[x] = s->fixed[(z * kBlockSide + y) * kBlockSide + x];
    const PackedNode* row = s->moving + ((z + lz) * kWindowSide + y + ly) * kWindowSide;
#pragma unroll
    for (int there = 0; there < kWindowSide; ++there) {
      const PackedNode moving = row[there];
#pragma unroll
      for (int x = 0; x < kBlockSide; ++x) {
        const int lx = there - x;
        if (lx < 0 || lx >= kSearchSide || (fixed[x].squares | moving.squares) < 0) continue;
        sums[lx] += fixed[x].squares + moving.squares - 2 * ProductSum(fixed[x], moving);
        ++counts[lx];
      }
    }
  }
  const int first = (lz * kSearchSide + ly) * kSearchSide;
#pragma unroll
  for (int lx = 0; lx < kSearchSide; ++lx) {
    atomicAdd(&s->sums[first + lx], sums[lx]);
    atomicAdd(&s->counts[first + lx], counts[lx]);
  }
}

// One block of threads a block of nodes: everything but the minima; the costs go to in.costs.
__global__ void __launch_bounds__(kCostThreads) CostKernel(BlockMatchInput in, BlockMatch* out) {
  // BlockMatch has initialisers, which __shared__ variables may not have.
  __shared__ alignas(alignof(Shared)) unsigned char raw[sizeof(Shared)];
  Shared* s = reinterpret_cast<Shared*>(raw);
  const int block = blockIdx.x;
  const Int3 at = BlockAt(in.blocks, block);
  const Int3 first{at.x * kBlockSide, at.y * kBlockSide, at.z * kBlockSide};
  CopyCube(in.fixed, in.size, first, kBlockSide, 0, s->fixed, s->fixed_variation);
  CopyCube(in.moving, in.size, {first.x - kSearchRadius, first.y - kSearchRadius, first.z - kSearchRadius}, kWindowSide,
           kSearchRadius, s->moving, s->moving_variation);
  for (int i = threadIdx.x; i < kSearchCount; i += kCostThreads) s->sums[i] = s->counts[i] = 0;
  __syncthreads();
  if (threadIdx.x < kWarp) CountNodes(in, first, s);
  __syncthreads();
  const bool matched = s->match.matched != 0;
  if (matched && threadIdx.x < kBlockSide * kRowsOfDisplacements) {
    const int row = threadIdx.x % kRowsOfDisplacements;
    AddPlane(threadIdx.x / kRowsOfDisplacements, row % kSearchSide, row / kSearchSide, s);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kSearchCount; i += kCostThreads) {
    const bool wanted = matched && IsSearched(in.size, DisplacementOf(i));
    in.costs[int64_t{block} * kSearchCount + i] =
        wanted ? MeanCost(s->sums[i], s->counts[i], s->match.nodes) : INFINITY;
  }
  if (threadIdx.x == 0) out[block] = s->match;
}

// By a whole warp: BestDisplacement. Costs are not negative, so that their bits are in their order.
__device__ int BestOfWarp(const float* costs) {
  unsigned long long least = ~0ull;
  for (int i = threadIdx.x % kWarp; i < kSearchCount; i += kWarp) {
    const unsigned long long cost = __float_as_uint(costs[i]);
    least = min(least, cost << 32 | static_cast<unsigned>(SquaredLength(DisplacementOf(i))) << 16 | i);
  }
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) least = min(least, __shfl_xor_sync(~0u, least, lanes));
  return static_cast<int>(least & 0xffff);
}

// By a whole warp: MinimumOf, which its first thread writes.
__device__ void MinimumOfWarp(const float* costs, CostMinimum* minimum) {
  const int best = BestOfWarp(costs);
  CostSurroundings around;
  for (int i = threadIdx.x % kWarp; i < kSearchCount; i += kWarp) AddCost(best, i, costs[i], &around);
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    around.sum += __shfl_down_sync(~0u, around.sum, lanes);
    around.count += __shfl_down_sync(~0u, around.count, lanes);
    around.rival = fminf(around.rival, __shfl_down_sync(~0u, around.rival, lanes));
  }
  if (threadIdx.x % kWarp == 0) *minimum = MinimumAt(costs, best, around);
}

// One block of threads a block of nodes, after CostKernel.
__global__ void __launch_bounds__(kMinimaThreads) MinimaKernel(BlockMatchInput in, BlockMatch* out) {
  __shared__ float own[kSearchCount], smoothed[kSearchCount];
  const int block = blockIdx.x;
  // The same for every thread of the block.
  if (out[block].matched == 0) return;
  const Int3 at = BlockAt(in.blocks, block);
  for (int i = threadIdx.x; i < kSearchCount; i += kMinimaThreads) {
    own[i] = in.costs[int64_t{block} * kSearchCount + i];
    smoothed[i] = SmoothedCost(in, at, i);
  }
  __syncthreads();
  // Two warps, one minimum each; the others are done.
  const int warp = threadIdx.x / kWarp;
  if (warp == 0) MinimumOfWarp(own, &out[block].own);
  if (warp == 1) MinimumOfWarp(smoothed, &out[block].smoothed);
}

}  // namespace

absl::Status MatchBlocks(const ExecContext& ctx, const BlockMatchInput& in, BlockMatch* out) {
  const auto blocks = static_cast<unsigned>(BlockCount(in.size));
  CostKernel<<<blocks, kCostThreads, 0, CudaStream(ctx)>>>(in, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  MinimaKernel<<<blocks, kMinimaThreads, 0, CudaStream(ctx)>>>(in, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
