// SPDX-License-Identifier: Apache-2.0
// Costs: a block has one label and a column of 32 x 8 nodes, and walks along z. It smooths each plane in shared memory
// along x and y, and keeps the last five planes of its threads in registers for z. Labels: each warp of a block has
// every eighth row of labels of the same 64 nodes.
#include <climits>
#include <cstdint>
#include <cstring>

#include "engine/device/cuda_device.h"
#include "engine/search/discrete_search_kernels.h"
#include "engine/transform/displacement.h"

namespace intrawarp::cuda {
namespace {

constexpr int kTileX = 32, kTileY = 8, kHalo = 2;
constexpr int kTileThreads = kTileX * kTileY;
constexpr int kWideX = kTileX + 2 * kHalo, kWideY = kTileY + 2 * kHalo;

constexpr int kNodesAtOnce = 64, kLabelGroups = 8, kWarp = 32;
constexpr int kThreads = 128;

// M's squares less twice the product of F and M.
__device__ int Added(const PooledDescriptor& f, const PooledDescriptor& m) {
  const auto* a = reinterpret_cast<const uint32_t*>(f.channel);
  const auto* b = reinterpret_cast<const uint32_t*>(m.channel);
  uint32_t product = 0;
  for (int i = 0; i < kDescriptorChannels / 4; ++i) product = __dp4a(a[i], b[i], product);
  return static_cast<int>(m.squares - 2 * product);
}

__device__ PooledDescriptor Load(const PooledDescriptor* p) {
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(p));
  PooledDescriptor out;
  memcpy(&out, &bits, sizeof(out));
  return out;
}

// A place of the tile with its halo, which a thread computes on every plane.
struct TilePlace {
  // In descriptors, on plane 0 of the fixed image, and of the moving one at the label.
  int fixed = 0, moving = 0;
  bool is_in_fixed = false, is_in_moving = false;
};

__device__ TilePlace MakeTilePlace(const DiscreteSearch& in, Int3 label, int x, int y) {
  const Int3 n = in.size;
  TilePlace place;
  place.fixed = y * n.x + x;
  place.moving = (label.z * n.y + y + label.y) * n.x + x + label.x;
  place.is_in_fixed = x >= 0 && y >= 0 && x < n.x && y < n.y;
  place.is_in_moving = x + label.x >= 0 && y + label.y >= 0 && x + label.x < n.x && y + label.y < n.y;
  return place;
}

template <bool kWeighted>
__device__ int CostAt(const DiscreteSearch& in, const TilePlace& place, int plane, bool has_other_plane) {
  if (!place.is_in_fixed) return 0;
  const PooledDescriptor f = Load(in.fixed + place.fixed + plane);
  if (f.squares == 0) return 0;
  const int squares = static_cast<int>(f.squares);
  const bool has_other = place.is_in_moving && has_other_plane;
  if constexpr (kWeighted) {
    const int added = has_other ? Added(f, Load(in.moving + place.moving + plane)) : 0;
    return WeightedCost(squares, added, WeightSteps(in.weights.fixed, place.fixed + plane),
                        has_other ? WeightSteps(in.weights.moving, place.moving + plane) : 0);
  } else {
    if (!has_other) return squares;
    return squares + Added(f, Load(in.moving + place.moving + plane));
  }
}

__device__ int Smoothed(int a, int b, int c, int d, int e) { return a + e + 2 * (b + d) + 3 * c; }

template <bool kWeighted>
__global__ void __launch_bounds__(kTileThreads) CostKernel(const __grid_constant__ DiscreteSearch in) {
  constexpr int kWide = kWideX * kWideY, kTall = kTileX * kWideY;
  constexpr int kPlaces = (kWide + kTileThreads - 1) / kTileThreads;
  __shared__ int plane[kWide];
  __shared__ int along_x[kTall];
  const int tiles_x = (in.size.x + kTileX - 1) / kTileX, plane_nodes = in.size.x * in.size.y;
  const int first_x = blockIdx.x % tiles_x * kTileX, first_y = blockIdx.x / tiles_x * kTileY;
  const Int3 label = LabelAt(in.reach, blockIdx.y);
  TilePlace places[kPlaces];
  for (int i = 0; i < kPlaces; ++i) {
    const int place = i * kTileThreads + threadIdx.x;
    places[i] = MakeTilePlace(in, label, first_x + place % kWideX - kHalo, first_y + place / kWideX - kHalo);
  }
  const int tx = threadIdx.x % kTileX, ty = threadIdx.x / kTileX;
  const Int3 node{first_x + tx, first_y + ty, 0};
  const bool writes = node.x < in.size.x && node.y < in.size.y;
  uint16_t* out = in.costs + blockIdx.y * in.stride + node.y * in.size.x + node.x;
  int last[5] = {};
  for (int z = 0; z < in.size.z + kHalo; ++z) {
    int sum = 0;
    if (z < in.size.z) {
      const bool has_other_plane = z + label.z >= 0 && z + label.z < in.size.z;
      for (int i = 0; i < kPlaces; ++i) {
        const int place = i * kTileThreads + threadIdx.x;
        if (place < kWide) plane[place] = CostAt<kWeighted>(in, places[i], z * plane_nodes, has_other_plane);
      }
      __syncthreads();
      for (int place = threadIdx.x; place < kTall; place += kTileThreads) {
        const int* row = plane + place / kTileX * kWideX + place % kTileX;
        along_x[place] = Smoothed(row[0], row[1], row[2], row[3], row[4]);
      }
      __syncthreads();
      const int* column = along_x + threadIdx.x;
      sum = Smoothed(column[0], column[kTileX], column[2 * kTileX], column[3 * kTileX], column[4 * kTileX]);
    }
    for (int i = 0; i < 4; ++i) last[i] = last[i + 1];
    last[4] = sum;
    const int done = z - kHalo;
    if (done < 0 || !writes) continue;
    const int total = Smoothed(last[0], last[1], last[2], last[3], last[4]);
    const float scale = CostScale(in.size, {node.x, node.y, done});
    out[done * plane_nodes] = static_cast<uint16_t>(__float2uint_rn(__int2float_rn(total) * scale));
  }
}

__global__ void __launch_bounds__(kThreads)
    PullKernel(const __grid_constant__ DiscreteSearch in, const __grid_constant__ PulledCosts pulled) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < pulled.count) AddPull(in, pulled.pulls[i], blockIdx.y);
}

struct Candidate {
  int score, label;
};

__device__ void Take(Candidate other, Candidate* best) {
  const bool is_better = other.score < best->score || (other.score == best->score && other.label < best->label);
  if (is_better) *best = other;
}

// Against the labels of a row, from the first on: `term` is what is added to 256 costs, and grows by `step`, which
// grows by 128 couplings.
struct RowTerm {
  int term, step;
};

__device__ RowTerm MakeRowTerm(Int3 u, int reach, int y, int z, int coupling) {
  const int length = y * y + z * z + reach * reach;
  return {coupling * (kDisplacementSteps * length - 2 * (y * u.y + z * u.z - reach * u.x)),
          coupling * (kDisplacementSteps * (1 - 2 * reach) - 2 * u.x)};
}

__device__ void TakeNext(int cost, int label, int coupling, RowTerm* row, Candidate* best) {
  const int score = 256 * cost + row->term;
  if (score < best->score) *best = {score, label};
  row->term += row->step;
  row->step += 2 * kDisplacementSteps * coupling;
}

__global__ void __launch_bounds__(kWarp* kLabelGroups)
    BestKernel(const __grid_constant__ DiscreteSearch in, int coupling, int64_t nodes) {
  __shared__ Candidate found[kLabelGroups][kNodesAtOnce];
  const int lane = threadIdx.x % kWarp, group = threadIdx.x / kWarp;
  const int64_t place = int64_t{blockIdx.x} * kNodesAtOnce + 2 * lane;
  Int3 u[2];
  for (int i = 0; i < 2; ++i) {
    for (int a = 0; a < 3; ++a) u[i][a] = place + i < nodes ? in.u[a * in.stride + place + i] : 0;
  }
  Candidate best[2] = {{INT_MAX, INT_MAX}, {INT_MAX, INT_MAX}};
  const Int3 r = in.reach;
  const int labels = 2 * r.x + 1, rows_y = 2 * r.y + 1, rows = rows_y * (2 * r.z + 1);
  for (int row = group; row < rows; row += kLabelGroups) {
    const int y = row % rows_y - r.y, z = row / rows_y - r.z;
    RowTerm terms[2] = {MakeRowTerm(u[0], r.x, y, z, coupling), MakeRowTerm(u[1], r.x, y, z, coupling)};
    const uint16_t* costs = in.costs + int64_t{row} * labels * in.stride + place;
#pragma unroll 4
    for (int x = 0; x < labels; ++x) {
      const ushort2 cost = *reinterpret_cast<const ushort2*>(costs + x * in.stride);
      TakeNext(cost.x, row * labels + x, coupling, &terms[0], &best[0]);
      TakeNext(cost.y, row * labels + x, coupling, &terms[1], &best[1]);
    }
  }
  found[group][2 * lane] = best[0];
  found[group][2 * lane + 1] = best[1];
  __syncthreads();
  if (threadIdx.x >= kNodesAtOnce || blockIdx.x * int64_t{kNodesAtOnce} + threadIdx.x >= nodes) return;
  Candidate least = found[0][threadIdx.x];
  for (int g = 1; g < kLabelGroups; ++g) Take(found[g][threadIdx.x], &least);
  in.best[int64_t{blockIdx.x} * kNodesAtOnce + threadIdx.x] = least.label;
}

__global__ void __launch_bounds__(kThreads) AverageKernel(const __grid_constant__ DiscreteSearch in, int64_t nodes) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place < nodes) AverageLabels(in, place, VoxelAt(in.size, place));
}

__global__ void __launch_bounds__(kThreads) WriteKernel(const __grid_constant__ DiscreteSearch in, int64_t nodes) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place < nodes) WriteDisplacement(in, place);
}

int64_t Nodes(const DiscreteSearch& in) { return int64_t{in.size.x} * in.size.y * in.size.z; }

unsigned Blocks(int64_t count, int threads) { return static_cast<unsigned>((count + threads - 1) / threads); }

}  // namespace

absl::Status ComputeCosts(const ExecContext& ctx, const DiscreteSearch& in) {
  const unsigned tiles = Blocks(in.size.x, kTileX) * Blocks(in.size.y, kTileY);
  const dim3 blocks(tiles, static_cast<unsigned>(LabelCount(in.reach)));
  if (in.weighted()) {
    CostKernel<true><<<blocks, kTileThreads, 0, CudaStream(ctx)>>>(in);
  } else {
    CostKernel<false><<<blocks, kTileThreads, 0, CudaStream(ctx)>>>(in);
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status PullCosts(const ExecContext& ctx, const DiscreteSearch& in, const PulledCosts& pulled) {
  const dim3 blocks(Blocks(pulled.count, kThreads), static_cast<unsigned>(LabelCount(in.reach)));
  PullKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(in, pulled);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status CoupledStep(const ExecContext& ctx, const DiscreteSearch& in, int coupling) {
  const int64_t nodes = Nodes(in);
  BestKernel<<<Blocks(nodes, kNodesAtOnce), kWarp * kLabelGroups, 0, CudaStream(ctx)>>>(in, coupling, nodes);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  AverageKernel<<<Blocks(nodes, kThreads), kThreads, 0, CudaStream(ctx)>>>(in, nodes);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status WriteDisplacements(const ExecContext& ctx, const DiscreteSearch& in) {
  const int64_t nodes = Nodes(in);
  WriteKernel<<<Blocks(nodes, kThreads), kThreads, 0, CudaStream(ctx)>>>(in, nodes);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
