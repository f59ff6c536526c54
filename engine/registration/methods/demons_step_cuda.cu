// SPDX-License-Identifier: Apache-2.0
// The force reads both images once (neighbours from the caches) and stores whole lines: 24 bytes a voxel.
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/dependent_launch.cuh"
#include "engine/device/reduce.cuh"
#include "engine/image/nearest_byte.h"
#include "engine/registration/methods/demons_iteration_kernels.h"
#include "engine/registration/methods/demons_step_kernels.h"
#include "engine/transform/vector_field_kernels.h"

namespace intrawarp::cuda {
namespace {

// A block takes 32 x 8 voxels of up to kMostPlanes planes, and of fewer when there would be too few blocks to share out
// evenly. The number of planes, and so the order of the sums, depends on the size alone.
constexpr int kTileX = 32, kTileY = 8, kMostPlanes = 8, kFewestPlanes = 4;
constexpr int64_t kEnoughBlocks = 2048;
static_assert(kTileX * kTileY == kReduceThreads);

int ForcePlanes(Int3 size) {  // of the grid of the force
  const int64_t columns = int64_t{(size.x + kTileX - 1) / kTileX} * ((size.y + kTileY - 1) / kTileY);
  int planes = kMostPlanes;
  while (planes > kFewestPlanes && columns * (size.z / planes) < kEnoughBlocks) planes /= 2;
  return planes;
}
dim3 ForceGrid(Int3 size) {
  const int planes = ForcePlanes(size);
  return dim3((size.x + kTileX - 1) / kTileX, (size.y + kTileY - 1) / kTileY, (size.z + planes - 1) / planes);
}

__global__ void PrepareKernel(const float* image, const uint8_t* mask, int64_t voxels, float scale, float offset,
                              float* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < voxels) out[i] = mask == nullptr || mask[i] != 0 ? scale * image[i] + offset : NAN;
}

constexpr int kWeightThreads = 256;

__global__ void __launch_bounds__(kWeightThreads)
    WarpWeightsKernel(const __grid_constant__ WarpTask task, const uint8_t* bytes, int64_t voxels, uint8_t* out) {
  const int64_t i = int64_t{blockIdx.x} * kWeightThreads + threadIdx.x;
  if (i >= voxels) return;
  const int64_t row = i / task.out_size.x;
  const IndexRow index(task.index_map, static_cast<int>(row % task.out_size.y),
                       static_cast<int>(row / task.out_size.y));
  Vec3f at = index(static_cast<int>(i % task.out_size.x));
  if (task.displacement != nullptr) at = at + task.displacement_map.Linear(LoadVector(task.displacement + 3 * i));
  out[i] = NearestByte(bytes, task.moving_size, at);
}

// An image at a voxel of a column that a thread walks along z; the voxel above is fetched a plane ahead.
struct Column {
  const float* p;
  Int3 size;
  int plane;
  float low, at, high;

  __device__ Column(const float* image, Int3 image_size, int x, int y, int z)
      : p(image + (static_cast<int64_t>(z) * image_size.y + y) * image_size.x + x),
        size(image_size),
        plane(image_size.x * image_size.y) {
    low = NeighbourOr(p, -plane, z > 0);
    at = *p;
    high = NeighbourOr(p, plane, z < size.z - 1);
  }
  __device__ DemonsNeighbours Here(int x, int y) const {
    return {at,
            {NeighbourOr(p, -1, x > 0), NeighbourOr(p, -size.x, y > 0), low},
            {NeighbourOr(p, 1, x < size.x - 1), NeighbourOr(p, size.x, y < size.y - 1), high}};
  }
  // Moves to the next plane; `next` is the value above it.
  __device__ void MoveUp(float next) {
    p += plane;
    low = at;
    at = high;
    high = next;
  }
  // The value two planes above z, the current plane, when the walk goes `on`.
  __device__ float Ahead(int z, bool on) const {
    return NeighbourOr(p, 2 * static_cast<ptrdiff_t>(plane), on && z + 2 < size.z);
  }
};

// Sums over the samples of a thread; `weight` only under weights.
struct ThreadSums {
  double squares = 0;
  int samples = 0;
  double weight = 0;
};

// Where each block puts its sums; `weights` is null without weights.
struct BlockSums {
  double* squares;
  double* samples;
  double* weights;
};

template <bool kWeighted>
__device__ void StoreSums(const ThreadSums& sums, double* scratch, const BlockSums& to) {
  const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const double block_sum = BlockSum(sums.squares, scratch),
               block_count = BlockSum(static_cast<double>(sums.samples), scratch);
  if (threadIdx.x == 0) {
    to.squares[block] = block_sum;
    to.samples[block] = block_count;
  }
  if constexpr (kWeighted) {
    const double block_weight = BlockSum(sums.weight, scratch);
    if (threadIdx.x == 0) to.weights[block] = block_weight;
  }
}

// N and D of a voxel of the coarser grid; adds to the sums over its samples.
template <bool kWeighted>
__device__ DemonsPull PullOfCell(const DemonsForceTask& t, const DemonsForceScales& scales, Int3 i, ThreadSums* sums) {
  const DemonsCell cell(t.size, t.force_size, i);
  DemonsPull pulls;
  float squares = 0;
  for (int z = cell.first.z; z < cell.last.z; ++z) {
    for (int y = cell.first.y; y < cell.last.y; ++y) {
      for (int x = cell.first.x; x < cell.last.x; ++x) {
        const int64_t at = (int64_t{z} * t.size.y + y) * t.size.x + x;
        float square;
        int sample;
        DemonsPull pull = ForceVoxel(t.fixed + at, t.warped + at, t.size, {x, y, z}, scales, &square, &sample);
        if constexpr (kWeighted) {
          const float weight = WeightAt(t, at);
          pull = weight * pull;
          square *= weight;
          sums->weight += sample != 0 ? weight : 0.0f;
        }
        pulls.numerator = pulls.numerator + pull.numerator;
        pulls.denominator += pull.denominator;
        squares += square;
        sums->samples += sample;
      }
    }
  }
  sums->squares += squares;
  return cell.Mean(pulls);
}

// The threads of a block as one row, as reduce.cuh numbers them: a warp is a row of the tile. N is interleaved or
// in planes of `voxels`; D lies behind it.
template <bool kPlanes, bool kWeighted>
__global__ void __launch_bounds__(kReduceThreads, kWeighted ? 4 : 5)
    ForceKernel(const DemonsForceTask t, const DemonsForceScales scales, float* force, const BlockSums block_sums,
                int planes, int64_t voxels, const int* skip) {
  AwaitPrevious();
  if (skip != nullptr && *skip != 0) return;
  __shared__ float rows[kPlanes ? 1 : kTileY][3 * kTileX];
  __shared__ double scratch[kReduceWarps];
  const int lane = threadIdx.x % kTileX, line = threadIdx.x / kTileX;
  const int x0 = blockIdx.x * kTileX, x = x0 + lane, y = blockIdx.y * kTileY + line;
  const int z0 = blockIdx.z * planes, z1 = y < t.size.y ? min(z0 + planes, t.size.z) : z0;
  const int floats = min(3 * kTileX, 3 * (t.size.x - x0));
  ThreadSums sums;
  // Threads beyond the row walk along its last voxel.
  const int walked = min(x, t.size.x - 1);
  Column fixed(t.fixed, t.size, walked, min(y, t.size.y - 1), z0),
      warped(t.warped, t.size, walked, min(y, t.size.y - 1), z0);
  for (int z = z0; z < z1; ++z) {
    const float fixed_next = fixed.Ahead(z, z + 1 < z1), warped_next = warped.Ahead(z, z + 1 < z1);
    const size_t start = (static_cast<size_t>(z) * t.size.y + y) * t.size.x + x0;
    DemonsPull pull;
    if (x < t.size.x) {
      float square;
      int sample;
      pull = ForceOf(fixed.Here(x, y), warped.Here(x, y), scales, &square, &sample);
      if constexpr (kWeighted) {
        const float weight = WeightAt(t, static_cast<int64_t>(start + lane));
        pull = weight * pull;
        square *= weight;
        sums.weight += sample != 0 ? weight : 0.0f;
      }
      sums.squares += square;
      sums.samples += sample;
    }
    fixed.MoveUp(fixed_next);
    warped.MoveUp(warped_next);
    float* const to = force + start + lane;
    if (x < t.size.x) to[3 * voxels] = t.accumulate ? to[3 * voxels] + pull.denominator : pull.denominator;
    if constexpr (kPlanes) {
      if (x >= t.size.x) continue;
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        to[c * voxels] = t.accumulate ? to[c * voxels] + pull.numerator[c] : pull.numerator[c];
      }
    } else {
      float* const mine = rows[line];
      StoreVector(pull.numerator, mine + 3 * lane);
      __syncwarp();
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        const int i = lane + 32 * k;
        if (i < floats) {
          float* const at = force + 3 * start + i;
          *at = t.accumulate ? *at + mine[i] : mine[i];
        }
      }
      __syncwarp();
    }
  }
  StoreSums<kWeighted>(sums, scratch, block_sums);
}

// N and D on a coarser grid: a thread makes whole voxels of it. Otherwise as ForceKernel.
template <bool kPlanes, bool kWeighted>
__global__ void __launch_bounds__(kReduceThreads, 4)
    CoarseForceKernel(const DemonsForceTask t, const DemonsForceScales scales, float* force, const BlockSums block_sums,
                      int planes, const int* skip) {
  AwaitPrevious();
  if (skip != nullptr && *skip != 0) return;
  __shared__ double scratch[kReduceWarps];
  const Int3 n = t.force_size;
  const int64_t voxels = int64_t{n.x} * n.y * n.z;
  const int x = blockIdx.x * kTileX + threadIdx.x % kTileX, y = blockIdx.y * kTileY + threadIdx.x / kTileX;
  const int z0 = blockIdx.z * planes, z1 = x < n.x && y < n.y ? min(z0 + planes, n.z) : z0;
  ThreadSums sums;
  for (int z = z0; z < z1; ++z) {
    const DemonsPull pull = PullOfCell<kWeighted>(t, scales, {x, y, z}, &sums);
    const int64_t i = (int64_t{z} * n.y + y) * n.x + x;
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      float* const to = force + (kPlanes ? c * voxels + i : 3 * i + c);
      *to = t.accumulate ? *to + pull.numerator[c] : pull.numerator[c];
    }
    float* const to = force + 3 * voxels + i;
    *to = t.accumulate ? *to + pull.denominator : pull.denominator;
  }
  StoreSums<kWeighted>(sums, scratch, block_sums);
}

template <bool kWeighted>
__global__ void AdvanceKernel(const BlockSums sums, int64_t blocks, DemonsState* state, const int* skip) {
  AwaitPrevious();
  if (skip != nullptr && *skip != 0) return;
  __shared__ double scratch[kReduceWarps];
  double sum = 0, count = 0, weight = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < blocks; i += kReduceThreads) {
    sum += sums.squares[i];
    count += sums.samples[i];
    if constexpr (kWeighted) weight += sums.weights[i];
  }
  sum = BlockSum(sum, scratch);
  count = BlockSum(count, scratch);
  if constexpr (kWeighted) weight = BlockSum(weight, scratch);
  if (threadIdx.x == 0) AdvanceDemons(sum, kWeighted ? weight : count, count, state);
}

struct MomentSum {
  __device__ void operator()(PairMoments& a, const PairMoments& b) const { AddMoments(b, &a); }
};

__global__ void __launch_bounds__(kReduceThreads)
    PairKernel(const DemonsPair pair, int64_t voxels, PairMoments* partial) {
  __shared__ alignas(16) unsigned char scratch[kReduceThreads * sizeof(PairMoments)];
  const int64_t first = blockIdx.x * kMomentPiece, last = min(voxels, first + kMomentPiece);
  PairMoments sums;
  for (int64_t i = first + threadIdx.x; i < last; i += kReduceThreads) AddPair(pair, i, &sums);
  sums = BlockReduce(sums, reinterpret_cast<PairMoments*>(scratch), MomentSum());
  if (threadIdx.x == 0) partial[blockIdx.x] = sums;
}

__global__ void __launch_bounds__(kReduceThreads)
    PairTotalKernel(const PairMoments* partial, int64_t pieces, PairMoments* moments) {
  __shared__ alignas(16) unsigned char scratch[kReduceThreads * sizeof(PairMoments)];
  PairMoments sums;
  for (int64_t i = threadIdx.x; i < pieces; i += kReduceThreads) AddMoments(partial[i], &sums);
  sums = BlockReduce(sums, reinterpret_cast<PairMoments*>(scratch), MomentSum());
  if (threadIdx.x == 0) *moments = sums;
}

}  // namespace

absl::Status MeasurePair(const ExecContext& ctx, const DemonsPair& pair, int64_t voxels, PairMoments* partial,
                         PairMoments* moments) {
  const int64_t pieces = MomentPieces(voxels);
  PairKernel<<<static_cast<unsigned>(pieces), kReduceThreads, 0, CudaStream(ctx)>>>(pair, voxels, partial);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  PairTotalKernel<<<1, kReduceThreads, 0, CudaStream(ctx)>>>(partial, pieces, moments);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

int64_t MostDemonsForceBlocks(Int3 size) {
  const dim3 grid = ForceGrid(size);
  return int64_t{grid.x} * grid.y * ((size.z + kFewestPlanes - 1) / kFewestPlanes);
}

absl::Status PrepareDemonsImage(const ExecContext& ctx, const float* image, const uint8_t* mask, int64_t voxels,
                                float scale, float offset, float* out) {
  constexpr int kThreads = 256;
  const unsigned blocks = static_cast<unsigned>((voxels + kThreads - 1) / kThreads);
  PrepareKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(image, mask, voxels, scale, offset, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status WarpWeights(const ExecContext& ctx, const WarpTask& task, const uint8_t* bytes, uint8_t* out) {
  const int64_t voxels = int64_t{task.out_size.x} * task.out_size.y * task.out_size.z;
  const auto blocks = static_cast<unsigned>((voxels + kWeightThreads - 1) / kWeightThreads);
  WarpWeightsKernel<<<blocks, kWeightThreads, 0, CudaStream(ctx)>>>(task, bytes, voxels, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

namespace {

template <bool kPlanes, bool kWeighted>
absl::Status Force(const ExecContext& ctx, const DemonsForceTask& task, float* force, DemonsState* state,
                   const int* skip) {
  const dim3 grid = ForceGrid(task.force_size);
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  const int planes = ForcePlanes(task.force_size);
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(double* const squares, ctx.arena().Allocate<double>((kWeighted ? 3 : 2) * blocks));
  const BlockSums sums{squares, squares + blocks, kWeighted ? squares + 2 * blocks : nullptr};
  if (task.force_size == task.size) {
    const int64_t voxels = int64_t{task.size.x} * task.size.y * task.size.z;
    INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, ForceKernel<kPlanes, kWeighted>, grid, dim3(kReduceThreads), task,
                                              DemonsForceScales(task), force, sums, planes, voxels, skip));
  } else {
    INTRAWARP_RETURN_IF_ERROR(LaunchDependent(ctx, CoarseForceKernel<kPlanes, kWeighted>, grid, dim3(kReduceThreads),
                                              task, DemonsForceScales(task), force, sums, planes, skip));
  }
  if (state == nullptr) return absl::OkStatus();
  return LaunchDependent(ctx, AdvanceKernel<kWeighted>, dim3(1), dim3(kReduceThreads), sums, blocks, state, skip);
}

}  // namespace

absl::Status DemonsForce(const ExecContext& ctx, const DemonsForceTask& task, float* force, DemonsState* state,
                         const int* skip) {
  return task.weighted() ? Force<false, true>(ctx, task, force, state, skip)
                         : Force<false, false>(ctx, task, force, state, skip);
}

absl::Status DemonsForcePlanes(const ExecContext& ctx, const DemonsForceTask& task, float* force, DemonsState* state,
                               const int* skip) {
  return task.weighted() ? Force<true, true>(ctx, task, force, state, skip)
                         : Force<true, false>(ctx, task, force, state, skip);
}

}  // namespace intrawarp::cuda
