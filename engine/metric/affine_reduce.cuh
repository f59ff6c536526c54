// SPDX-License-Identifier: Apache-2.0
// The shared parts of the affine objective's kernels on CUDA: their arguments, the map of indices, and the sums over
// blocks in a fixed order.
#ifndef INTRAWARP_ENGINE_METRIC_AFFINE_REDUCE_CUH_
#define INTRAWARP_ENGINE_METRIC_AFFINE_REDUCE_CUH_

#include <cstdint>

#include "engine/geometry/vec.h"
#include "engine/metric/affine_objective.h"
#include "engine/metric/metric.h"
#include "engine/metric/nmi.h"

namespace intrawarp::cuda {

// Sums of one block, padded to three warps' width: SSD 60 + 12 + 3, NGF 78 + 12 + 3 (2-D: 21 + 6 + 3).
inline constexpr int kObjectiveSums = 96;
inline constexpr int kMaxObjectiveBlocks = 2048;
inline constexpr int kObjectiveGroup = 32;
// Maps that one launch evaluates side by side; together they have at most kMaxObjectiveBlocks blocks.
inline constexpr int kMaxMapsAtOnce = 64;
// The last group of each map can be smaller than the others.
inline constexpr int kMaxObjectiveGroups = kMaxObjectiveBlocks / kObjectiveGroup + kMaxMapsAtOnce;
// SetUpObjective's part of the workspace but for images; the rest is for NMI's tables, positions and results.
static_assert(sizeof(double) * kObjectiveSums * (kMaxObjectiveBlocks + kMaxObjectiveGroups) + (128 << 10) <=
              kAffineSumsBytes);

// The lanes of one warp, for functions that take a Lanes.
struct WarpLanes {
  __device__ int rank() const { return threadIdx.x & 31; }
  __device__ int size() const { return 32; }
  __device__ void Sync() const { __syncwarp(); }
};

struct ObjectiveArgs {
  const float* fixed;
  const float* moving;
  const uint8_t* fixed_mask;
  const uint8_t* moving_mask;
  float fixed_weight_per_unit;
  float moving_weight_per_unit;
  Int3 fixed_size;
  Int3 moving_size;
  Vec3f inverse_radius;
  Vec3f center;
  float intensity_scale;
  Vec3f half_inverse_spacing;
  float fixed_eta2;
  float moving_eta2;
  // Pieces of work; `run` is their length along the axis that a thread marches.
  int run;
  int pieces;
  int pieces_per_worker;
  // Workspace: kMaxObjectiveBlocks and kMaxObjectiveGroups rows of kObjectiveSums, and tickets (one a group and one a
  // map) that are 0 between launches.
  double* block_sums;
  double* group_sums;
  unsigned* tickets;
  // NMI and LNCC, in device memory: D and the number of its samples, and whether the evaluation is skipped.
  MetricValue* value;
  int* skip;
  // NMI: kNmiBins x kNmiBins counts, which are 0 between evaluations, the derivative table and a curvature a bin.
  NmiScale fixed_bins, moving_bins;
  unsigned long long* histogram;
  float* nmi_derivative;
  float* nmi_curvature;
  // LNCC, on the fixed grid: the warped moving image, and the derivative and the curvature by each of its voxels.
  float* warped;
  float* voxel_derivative;
  float* voxel_curvature;
};

// Moving index as a float function of the fixed index, from W; in shared memory of each block.
__device__ inline void LoadIndexMap(const AffineMap& w, const ObjectiveArgs& args, AffineMapF& map) {
  if (threadIdx.x < 3) {
    const int r = threadIdx.x;
    double offset = w.m[r][3];
    for (int c = 0; c < 3; ++c) {
      const double linear = w.m[r][c] * args.inverse_radius[c];
      map.m[r][c] = static_cast<float>(linear);
      offset -= linear * args.center[c];
    }
    map.m[r][3] = static_cast<float>(offset);
  }
  __syncthreads();
}

template <int kOffset>
__device__ inline void ReduceScatterStep(float (&v)[32], int lane) {
  const bool upper = lane & kOffset;
#pragma unroll
  for (int i = 0; i < kOffset; ++i) {
    const float send = upper ? v[i] : v[i + kOffset];
    const float keep = upper ? v[i + kOffset] : v[i];
    v[i] = keep + __shfl_xor_sync(0xffffffffu, send, kOffset);
  }
  if constexpr (kOffset > 1) ReduceScatterStep<kOffset / 2>(v, lane);
}

// Sums 32 values over the 32 lanes; lane i gets the sum of value i. 31 shuffles instead of 160.
__device__ inline float ReduceScatter(float (&v)[32]) {
  ReduceScatterStep<16>(v, threadIdx.x & 31);
  return v[0];
}

// Column sums of `count` rows of kObjectiveSums doubles into total[0..95]; all threads (192 or more) call it.
__device__ inline void SumRows(const double* rows, int count, double (*scratch)[kObjectiveSums], double* total) {
  const int column = threadIdx.x % kObjectiveSums, slice = threadIdx.x / kObjectiveSums;
  if (slice < 2) {
    double sum = 0;
#pragma unroll 8
    for (int row = slice; row < count; row += 2) sum += __ldcg(rows + row * kObjectiveSums + column);
    scratch[slice][column] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kObjectiveSums) total[threadIdx.x] = scratch[0][threadIdx.x] + scratch[1][threadIdx.x];
  __syncthreads();
}

// Whether this block is the last of `count` to arrive at the ticket, which it then resets. All threads call it.
__device__ inline bool IsLast(unsigned* ticket, unsigned count, bool& shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared = atomicAdd(ticket, 1u) == count - 1;
    if (shared) *ticket = 0;
  }
  __syncthreads();
  const bool last = shared;
  __threadfence();
  return last;
}

// From the block's sums (warp_sums, one row a warp) to the total of all blocks of its map. True only in the last block
// of the map, where total[] then holds it.
__device__ inline bool ReduceBlocks(const ObjectiveArgs& args, double (*warp_sums)[kObjectiveSums], double* total) {
  __shared__ bool last;
  __syncthreads();
  const int groups = (gridDim.x + kObjectiveGroup - 1) / kObjectiveGroup;
  double* block_sums = args.block_sums + blockIdx.y * gridDim.x * kObjectiveSums;
  double* group_sums = args.group_sums + blockIdx.y * groups * kObjectiveSums;
  unsigned* tickets = args.tickets + blockIdx.y * (groups + 1);
  if (threadIdx.x < kObjectiveSums) {
    double sum = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += warp_sums[w][threadIdx.x];
    block_sums[blockIdx.x * kObjectiveSums + threadIdx.x] = sum;
  }
  const int group = blockIdx.x / kObjectiveGroup, first = group * kObjectiveGroup;
  const int members = min(kObjectiveGroup, static_cast<int>(gridDim.x) - first);
  if (!IsLast(tickets + 1 + group, members, last)) return false;
  SumRows(block_sums + first * kObjectiveSums, members, warp_sums, total);
  if (groups == 1) return true;
  if (threadIdx.x < kObjectiveSums) group_sums[group * kObjectiveSums + threadIdx.x] = total[threadIdx.x];
  if (!IsLast(tickets, groups, last)) return false;
  SumRows(group_sums, groups, warp_sums, total);
  return true;
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_METRIC_AFFINE_REDUCE_CUH_
