// SPDX-License-Identifier: Apache-2.0
// EvaluateNgf on CUDA. The formulas stand in ngf_kernels.h. Bytes of global memory a voxel: 8 + 4, and 8 for the
// division by W, which makes 20; and 4 for weights.
#include <algorithm>
#include <cstdint>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/metric/ngf_kernels.h"

namespace intrawarp::cuda {
namespace {

__device__ inline bool Skipped(const int* skip) { return skip != nullptr && *skip != 0; }

inline unsigned CeilDivide(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

// A block marches through planes; a thread makes c at one column of 32 x kNgfRows, of which those not at the rim are
// the block's own.
constexpr int kNgfRows = 16;
constexpr int kNgfThreads = 32 * kNgfRows;
constexpr int kNgfOwnX = 30, kNgfOwnY = kNgfRows - 2;
constexpr int kNgfSums = 3;

struct NgfArgs {
  const float* fixed;
  const float* warped;
  // Null where all samples weigh 1.
  const float* weights;
  Int3 size;
  // Planes of a block.
  int run;
  NgfScales scales;
  float* voxel_gradient;
  MetricValue* value;
  const int* skip;
  double* partial;
  int partials;
  // 1 / W
  float* scale;
};

struct NgfVoxel {
  float c[3] = {};
  float value = 0, weight = 0;
};

__device__ inline NgfVoxel EvaluateNgf(const NgfScales& s, const float (&g)[3], const float (&h)[3]) {
  const float g2 = g[0] * g[0] + g[1] * g[1] + g[2] * g[2], h2 = h[0] * h[0] + h[1] * h[1] + h[2] * h[2];
  const float inverse_g = rsqrtf(g2 + s.moving_eta2), inverse_h = rsqrtf(h2 + s.fixed_eta2);
  float u[3], v[3];
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    u[a] = g[a] * inverse_g;
    v[a] = h[a] * inverse_h;
  }
  const float cosine = u[0] * v[0] + u[1] * v[1] + u[2] * v[2];
  const float p = u[1] * v[2] - u[2] * v[1], q = u[2] * v[0] - u[0] * v[2], r = u[0] * v[1] - u[1] * v[0];
  NgfVoxel voxel;
  voxel.weight = h2 * inverse_h * inverse_h;
  // |v|^2 - <u, v>^2 without its cancellation: |u x v|^2 + |v|^2 (1 - |u|^2).
  voxel.value = p * p + q * q + r * r + voxel.weight * (s.moving_eta2 * inverse_g * inverse_g);
  const float factor = -2.0f * cosine * inverse_g;
#pragma unroll
  for (int a = 0; a < 3; ++a) voxel.c[a] = factor * s.half_inverse[a] * (v[a] - cosine * u[a]);
  return voxel;
}

__device__ inline void Weigh(float weight, NgfVoxel* voxel) {
  voxel->value *= weight;
  voxel->weight *= weight;
#pragma unroll
  for (int a = 0; a < 3; ++a) voxel->c[a] *= weight;
}

template <bool kVoxelGradient, bool kWeighted>
__global__ void __launch_bounds__(kNgfThreads) NgfKernel(const __grid_constant__ NgfArgs args) {
  if (Skipped(args.skip)) return;
  __shared__ float rows[2][kNgfRows][32];
  const Int3 n = args.size;
  const int lane = threadIdx.x, row = threadIdx.y;
  const int x = blockIdx.x * kNgfOwnX + lane - 1, y = blockIdx.y * kNgfOwnY + row - 1;
  const int z0 = blockIdx.z * args.run, z1 = min(z0 + args.run, n.z);
  const bool own = lane >= 1 && lane <= kNgfOwnX && row >= 1 && row <= kNgfOwnY && x < n.x && y < n.y;
  const bool has_neighbors = HasNeighbors(x, n.x) && HasNeighbors(y, n.y);
  const int dx = n.x > 1 ? 1 : 0, dy = n.y > 1 ? n.x : 0;
  const size_t plane = static_cast<size_t>(n.x) * n.y,
               column = has_neighbors || own ? static_cast<size_t>(y) * n.x + x : 0;
  const auto load = [&](const float* image, int z) {
    return has_neighbors && z >= 0 && z < n.z ? __ldg(image + z * plane + column) : 0.0f;
  };
  // Along an axis of one voxel the neighbours are the voxel itself.
  const int dz = n.z > 1 ? 1 : 0, first = z0 - (kVoxelGradient ? 1 : 0), end = z1 + (kVoxelGradient ? 1 : 0);
  float m_below = load(args.warped, first - dz), m_here = load(args.warped, first);
  float f_below = load(args.fixed, first - dz), f_here = load(args.fixed, first);
  // The part of the voxel gradient from x and y in the plane before, and c_z of the last two planes.
  float across = 0, c_before = 0, c_last = 0;
  float value = 0, weight = 0, samples = 0;
  for (int z = first; z < end; ++z) {
    const float m_above = load(args.warped, z + 1), f_above = load(args.fixed, z + 1);
    NgfVoxel voxel;
    if (has_neighbors && HasNeighbors(z, n.z)) {
      const float *m = args.warped + z * plane + column, *f = args.fixed + z * plane + column;
      const float m_minus[3] = {m[-dx], m[-dy], dz ? m_below : m_here},
                  m_plus[3] = {m[dx], m[dy], dz ? m_above : m_here};
      const float f_minus[3] = {f[-dx], f[-dy], dz ? f_below : f_here},
                  f_plus[3] = {f[dx], f[dy], dz ? f_above : f_here};
      float g[3], h[3], all = m_here;
#pragma unroll
      for (int a = 0; a < 3; ++a) {
        all += m_plus[a] + m_minus[a];
        g[a] = args.scales.half_inverse[a] * (m_plus[a] - m_minus[a]);
        h[a] = args.scales.half_inverse[a] * (f_plus[a] - f_minus[a]);
      }
      if (all == all) {
        voxel = EvaluateNgf(args.scales, g, h);
        if constexpr (kWeighted) Weigh(__ldg(args.weights + z * plane + column), &voxel);
        if (own && z >= z0 && z < z1) {
          value += voxel.value;
          weight += voxel.weight;
          samples += 1;
        }
      }
    }
    if constexpr (kVoxelGradient) {
      float(&mine)[kNgfRows][32] = rows[z & 1];
      mine[row][lane] = voxel.c[1];
      __syncthreads();
      const float left = __shfl_up_sync(0xffffffffu, voxel.c[0], 1);
      const float right = __shfl_down_sync(0xffffffffu, voxel.c[0], 1);
      if (own) {
        if (z > z0) args.voxel_gradient[(z - 1) * plane + column] = across + (c_before - voxel.c[2]);
        across = (left - right) + (mine[row - 1][lane] - mine[row + 1][lane]);
      }
      c_before = c_last;
      c_last = voxel.c[2];
    }
    m_below = m_here;
    m_here = m_above;
    f_below = f_here;
    f_here = f_above;
  }
  __shared__ double block[kNgfSums][kNgfRows];
  const double sums[kNgfSums] = {WarpSum(static_cast<double>(value)), WarpSum(static_cast<double>(weight)),
                                 WarpSum(static_cast<double>(samples))};
  if (lane == 0) {
    for (int i = 0; i < kNgfSums; ++i) block[i][row] = sums[i];
  }
  __syncthreads();
  if (row == 0 && lane < kNgfSums) {
    double sum = 0;
    for (int i = 0; i < kNgfRows; ++i) sum += block[lane][i];
    const int64_t index = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    args.partial[kNgfSums * index + lane] = sum;
  }
}

// One block.
__global__ void FinishNgfKernel(const __grid_constant__ NgfArgs args) {
  if (Skipped(args.skip)) return;
  __shared__ double scratch[kReduceWarps];
  double sums[kNgfSums] = {};
  for (int i = threadIdx.x; i < args.partials; i += kReduceThreads) {
    for (int k = 0; k < kNgfSums; ++k) sums[k] += args.partial[kNgfSums * int64_t{i} + k];
  }
  for (double& sum : sums) sum = BlockSum(sum, scratch);
  if (threadIdx.x != 0) return;
  args.value->metric = sums[1] > 0 ? sums[0] / sums[1] : __longlong_as_double(0x7ff8000000000000ll);
  args.value->samples = sums[2];
  *args.scale = sums[1] > 0 ? static_cast<float>(1 / sums[1]) : 0.0f;
}

__global__ void ScaleKernel(const __grid_constant__ NgfArgs args) {
  if (Skipped(args.skip)) return;
  const float scale = *args.scale;
  const size_t voxels = static_cast<size_t>(args.size.x) * args.size.y * args.size.z;
  const size_t begin = size_t{blockIdx.x} * (4 * kReduceThreads) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const size_t i = begin + k * kReduceThreads;
    if (i < voxels) args.voxel_gradient[i] *= scale;
  }
}

template <bool kVoxelGradient>
void LaunchNgf(const NgfArgs& args, dim3 grid, cudaStream_t stream) {
  const dim3 threads(32, kNgfRows);
  if (args.weights != nullptr) {
    NgfKernel<kVoxelGradient, true><<<grid, threads, 0, stream>>>(args);
  } else {
    NgfKernel<kVoxelGradient, false><<<grid, threads, 0, stream>>>(args);
  }
}

// Planes of a block: many where there are blocks enough without, as each run computes two planes more.
int NgfRun(Int3 n) {
  const int64_t columns = int64_t{CeilDivide(n.x, kNgfOwnX)} * CeilDivide(n.y, kNgfOwnY);
  int run = 32;
  while (run > 4 && columns * CeilDivide(n.z, run) < 1024) run /= 2;
  return run;
}

dim3 NgfGrid(Int3 n) { return dim3(CeilDivide(n.x, kNgfOwnX), CeilDivide(n.y, kNgfOwnY), CeilDivide(n.z, NgfRun(n))); }

int64_t NgfPartials(Int3 n) {
  const dim3 grid = NgfGrid(n);
  return int64_t{grid.x} * grid.y * grid.z;
}

}  // namespace

int64_t NgfWorkspaceBytes(Int3 size) {
  return Arena::Rounded(kNgfSums * NgfPartials(size) * sizeof(double)) + Arena::Rounded(sizeof(float));
}

absl::Status EvaluateNgf(const ExecContext& ctx, const NgfTask& task, const int* skip, float* voxel_gradient,
                         MetricValue* value) {
  ArenaScope scope(ctx.arena());
  const dim3 grid = NgfGrid(task.size);
  NgfArgs args{task.fixed,
               task.warped,
               task.weights,
               task.size,
               NgfRun(task.size),
               MakeNgfScales(task),
               voxel_gradient,
               value,
               skip,
               nullptr,
               static_cast<int>(NgfPartials(task.size)),
               nullptr};
  INTRAWARP_ASSIGN_OR_RETURN(args.partial, ctx.arena().Allocate<double>(kNgfSums * int64_t{args.partials}));
  INTRAWARP_ASSIGN_OR_RETURN(args.scale, ctx.arena().Allocate<float>(1));
  const cudaStream_t stream = CudaStream(ctx);
  if (voxel_gradient == nullptr) {
    LaunchNgf<false>(args, grid, stream);
    FinishNgfKernel<<<1, kReduceThreads, 0, stream>>>(args);
  } else {
    LaunchNgf<true>(args, grid, stream);
    FinishNgfKernel<<<1, kReduceThreads, 0, stream>>>(args);
    ScaleKernel<<<CeilDivide(Voxels(task.size), 4 * kReduceThreads), kReduceThreads, 0, stream>>>(args);
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
