// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/quality/block_match_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWindowSide = kBlockSide + 2 * kSearchRadius;
constexpr int kWindowNodes = kWindowSide * kWindowSide * kWindowSide;

struct Shared {
  Descriptor fixed[kBlockNodes];
  Descriptor moving[kWindowNodes];
  uint8_t fixed_valid[kBlockNodes];
  uint8_t moving_valid[kWindowNodes];
  int present;
  BlockMatch match;
};

// Copies the cube of `side` nodes from `first`; nodes outside the grid are not valid. All threads call it.
__device__ void CopyCube(const DescriptorVolume& from, Int3 size, Int3 first, int side, Descriptor* descriptors,
                         uint8_t* valid) {
  for (int i = threadIdx.x; i < side * side * side; i += kThreads) {
    const int x = first.x + i % side, y = first.y + i / side % side, z = first.z + i / (side * side);
    const bool inside = x >= 0 && y >= 0 && z >= 0 && x < size.x && y < size.y && z < size.z;
    const int64_t place = (int64_t{z} * size.y + y) * size.x + x;
    if (inside) descriptors[i] = from.descriptors[place];
    valid[i] = inside && from.valid[place] != 0;
  }
}

__device__ int WindowPlace(Int3 l, Int3 p) {
  return ((l.z + kSearchRadius + p.z) * kWindowSide + l.y + kSearchRadius + p.y) * kWindowSide + l.x + kSearchRadius +
         p.x;
}

__device__ Int3 BlockNode(int i) {
  return {i % kBlockSide, i / kBlockSide % kBlockSide, i / (kBlockSide * kBlockSide)};
}

// By one thread: the nodes that count without a displacement, and whether the block is to be matched.
__device__ void CountNodes(const BlockMatchInput& in, Int3 first, Shared* s) {
  BlockMatch match;
  int present = 0;
  double variation = 0;
  for (int i = 0; i < kBlockNodes; ++i) {
    const Int3 p = BlockNode(i);
    present += first.x + p.x < in.size.x && first.y + p.y < in.size.y && first.z + p.z < in.size.z;
    if (s->fixed_valid[i] == 0 || s->moving_valid[WindowPlace({0, 0, 0}, p)] == 0) continue;
    ++match.nodes;
    variation += s->fixed[i].variation;
  }
  SetVariation(in, present, variation, &match);
  s->match = match;
}

__device__ float Cost(const Shared& s, Int3 l) {
  int64_t sum = 0;
  int count = 0;
  for (int i = 0; i < kBlockNodes; ++i) {
    const int there = WindowPlace(l, BlockNode(i));
    if (s.fixed_valid[i] == 0 || s.moving_valid[there] == 0) continue;
    sum += SquaredDistance(s.fixed[i], s.moving[there]);
    ++count;
  }
  return MeanCost(sum, count, s.match.nodes);
}

// One block of threads a block of nodes: everything but the minima; the costs go to in.costs.
__global__ void __launch_bounds__(kThreads) CostKernel(BlockMatchInput in, BlockMatch* out) {
  // BlockMatch has initialisers, which __shared__ variables may not have.
  __shared__ alignas(alignof(Shared)) unsigned char raw[sizeof(Shared)];
  Shared* s = reinterpret_cast<Shared*>(raw);
  const int block = blockIdx.x;
  const Int3 at = BlockAt(in.blocks, block);
  const Int3 first{at.x * kBlockSide, at.y * kBlockSide, at.z * kBlockSide};
  CopyCube(in.fixed, in.size, first, kBlockSide, s->fixed, s->fixed_valid);
  CopyCube(in.moving, in.size, {first.x - kSearchRadius, first.y - kSearchRadius, first.z - kSearchRadius}, kWindowSide,
           s->moving, s->moving_valid);
  __syncthreads();
  if (threadIdx.x == 0) CountNodes(in, first, s);
  __syncthreads();
  const bool matched = s->match.matched != 0;
  for (int i = threadIdx.x; i < kSearchCount; i += kThreads) {
    const Int3 l = DisplacementOf(i);
    in.costs[int64_t{block} * kSearchCount + i] = matched && IsSearched(in.size, l) ? Cost(*s, l) : INFINITY;
  }
  if (threadIdx.x == 0) out[block] = s->match;
}

// One block of threads a block of nodes, after CostKernel.
__global__ void __launch_bounds__(kThreads) MinimaKernel(BlockMatchInput in, BlockMatch* out) {
  __shared__ float own[kSearchCount], smoothed[kSearchCount];
  const int block = blockIdx.x;
  // The same for every thread of the block.
  if (out[block].matched == 0) return;
  const Int3 at = BlockAt(in.blocks, block);
  for (int i = threadIdx.x; i < kSearchCount; i += kThreads) {
    own[i] = in.costs[int64_t{block} * kSearchCount + i];
    smoothed[i] = SmoothedCost(in, at, i);
  }
  __syncthreads();
  // Two warps, one minimum each; the other threads are done.
  if (threadIdx.x == 0) out[block].own = MinimumOf(own);
  if (threadIdx.x == 32) out[block].smoothed = MinimumOf(smoothed);
}

}  // namespace

absl::Status MatchBlocks(const ExecContext& ctx, const BlockMatchInput& in, BlockMatch* out) {
  const auto blocks = static_cast<unsigned>(BlockCount(in.size));
  CostKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(in, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  MinimaKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(in, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
