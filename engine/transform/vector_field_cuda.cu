// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/image/rows.h"
#include "engine/transform/vector_field_kernels.h"

namespace intrawarp::cuda {
namespace {

__device__ bool IsSkipped(const int* skip) { return skip != nullptr && *skip != 0; }

unsigned Blocks(int64_t count, int64_t per_block) { return static_cast<unsigned>((count + per_block - 1) / per_block); }

// The largest of a value that is not negative: its bits are ordered as integers. Every lane of the warp calls it.
__device__ void AddLargest(float value, float* largest) {
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_down_sync(kAllLanes, value, offset));
  if (threadIdx.x % 32 == 0 && value > 0) atomicMax(reinterpret_cast<int*>(largest), __float_as_int(value));
}

__global__ void ClearLargestKernel(float* largest, const int* skip) {
  if (!IsSkipped(skip)) *largest = 0;
}

// Smoothing along x. A block smooths kTileX voxels of kTileRows rows, which lie in shared memory with `radius`
// neighbours on either side (0 outside the row); a thread makes kVoxels outputs of one component.
constexpr int kTileX = 128, kTileRows = 4, kVoxels = 4, kRowThreads = 3 * kTileX / kVoxels;

// kRadius: that of the kernel, or more; -1: any.
template <int kRadius>
__global__ void __launch_bounds__(kRowThreads* kTileRows)
    SmoothXKernel(const SmoothPass pass, int64_t rows, const __grid_constant__ GaussianKernel kernel) {
  if (IsSkipped(pass.skip)) return;
  extern __shared__ float tile[];
  const int radius = kRadius < 0 ? kernel.radius : kRadius;
  const int width = 3 * (kTileX + 2 * radius), floats = 3 * pass.size.x;
  const int t = threadIdx.x, e0 = 3 * (blockIdx.x * kTileX - radius);
  const int64_t row = int64_t{blockIdx.y} * kTileRows + threadIdx.y + int64_t{blockIdx.z} * kTileRows * gridDim.y;
  float* const mine = tile + threadIdx.y * width;
  const int64_t start = row * floats;
  if (row < rows) {
    for (int i = t; i < width; i += kRowThreads) {
      const int e = e0 + i;
      mine[i] = e >= 0 && e < floats ? pass.in[start + e] : 0.0f;
    }
  }
  __syncthreads();
  const int c = t % 3, voxel = t / 3 * kVoxels;
  float sums[kVoxels] = {};
  if constexpr (kRadius >= 0) {
#pragma unroll
    for (int j = 0; j < kVoxels + 2 * kRadius; ++j) {
      const float v = mine[3 * (voxel + j) + c];
#pragma unroll
      for (int o = 0; o < kVoxels; ++o) {
        const int k = j - kRadius - o;
        if (k >= -kRadius && k <= kRadius) sums[o] = fmaf(kernel.weights[k < 0 ? -k : k], v, sums[o]);
      }
    }
  } else {
    for (int j = 0; j < kVoxels + 2 * radius; ++j) {
      const float v = mine[3 * (voxel + j) + c];
#pragma unroll
      for (int o = 0; o < kVoxels; ++o) sums[o] = fmaf(kernel.weights[abs(j - radius - o)], v, sums[o]);
    }
  }
  // Back through shared memory, so that whole lines are stored.
  __syncthreads();
#pragma unroll
  for (int o = 0; o < kVoxels; ++o) {
    const int x = blockIdx.x * kTileX + voxel + o;
    mine[3 * (voxel + o) + c] = x < pass.size.x ? kernel.Scale(x, pass.size.x) * sums[o] : 0.0f;
  }
  __syncthreads();
  if (row >= rows) return;
  for (int i = t; i < 3 * kTileX; i += kRowThreads) {
    const int e = 3 * kTileX * blockIdx.x + i;
    if (e >= floats) break;
    pass.out[start + e] = mine[i] + (pass.add == nullptr ? 0.0f : pass.add[start + e]);
  }
}

// Smoothing along y or z. A thread makes kRun consecutive outputs of one line of floats, `stride` apart, from
// registers.
constexpr int kAcrossX = 64, kAcrossY = 4, kRun = 16;
// The weights beyond a kernel's radius are 0 for so many (smooth_kernels.h).
constexpr int kGenericRun = kSmoothRun;

template <int kRadius>
__global__ void __launch_bounds__(kAcrossX* kAcrossY)
    SmoothAcrossKernel(const SmoothPass pass, int n, int64_t stride, int64_t other, int others,
                       const __grid_constant__ GaussianKernel kernel) {
  if (IsSkipped(pass.skip)) return;
  constexpr int kOutputs = kRadius < 0 ? kGenericRun : kRun;
  const int e = blockIdx.x * kAcrossX + threadIdx.x, first = (blockIdx.y * kAcrossY + threadIdx.y) * kOutputs;
  const bool inside = e < 3 * pass.size.x && first < n;
  float largest = 0;
  // The grid's z reaches 65535, `others` less.
  if (inside && static_cast<int>(blockIdx.z) < others) {
    const int64_t line = int64_t{blockIdx.z} * other + e;
    float sums[kOutputs] = {};
    if constexpr (kRadius >= 0) {
#pragma unroll
      for (int j = 0; j < kOutputs + 2 * kRadius; ++j) {
        const int i = first - kRadius + j;
        const float v = i >= 0 && i < n ? pass.in[line + i * stride] : 0.0f;
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) {
          const int k = j - kRadius - o;
          if (k >= -kRadius && k <= kRadius) sums[o] = fmaf(kernel.weights[k < 0 ? -k : k], v, sums[o]);
        }
      }
    } else {
      const int r = kernel.radius, begin = max(first - r, 0), end = min(first + kOutputs + r, n);
      for (int i = begin; i < end; ++i) {
        const float v = pass.in[line + i * stride];
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) sums[o] = fmaf(kernel.weights[abs(i - first - o)], v, sums[o]);
      }
    }
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      if (first + o >= n) break;
      const int64_t at = line + (first + o) * stride;
      const float value = kernel.Scale(first + o, n) * sums[o] + (pass.add == nullptr ? 0.0f : pass.add[at]);
      pass.out[at] = value;
      largest = fmaxf(largest, fabsf(value));
    }
  }
  if (pass.largest != nullptr) AddLargest(largest, pass.largest);
}

// body(std::integral_constant<int, kRadius>()) with the smallest unrolled radius that is enough.
template <typename Body>
void WithRadius(int radius, const Body& body) {
  if (radius <= 3) return body(std::integral_constant<int, 3>());
  if (radius <= 6) return body(std::integral_constant<int, 6>());
  if (radius <= 9) return body(std::integral_constant<int, 9>());
  if (radius <= 12) return body(std::integral_constant<int, 12>());
  body(std::integral_constant<int, -1>());
}

// Composition: a block takes kComposeX x kComposeY voxels of kComposeZ planes, so that planes and rows that voxels
// share are read from the cache; a warp takes 32 voxels of a row, through its own part of shared memory.
constexpr int kComposeX = 32, kComposeY = 8, kComposeZ = 8;

struct ComposeTask {
  const float* a;
  const float* b;
  float* out;
  Int3 size;
  ComposeScales scales;
};

__device__ void ComposeBlock(const ComposeTask& t) {
  __shared__ float rows[kComposeY][3 * kComposeX];
  float* const mine = rows[threadIdx.y];
  const int lane = threadIdx.x, x0 = blockIdx.x * kComposeX, y = blockIdx.y * kComposeY + threadIdx.y;
  if (y >= t.size.y) return;
  const int z0 = blockIdx.z * kComposeZ, z1 = min(z0 + kComposeZ, t.size.z);
  const int floats = min(3 * kComposeX, 3 * (t.size.x - x0));
  for (int z = z0; z < z1; ++z) {
    const size_t start = 3 * ((static_cast<size_t>(z) * t.size.y + y) * t.size.x + x0);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const int i = lane + 32 * k;
      if (i < floats) mine[i] = t.a[start + i];
    }
    __syncwarp();
    if (3 * lane < floats) {
      const Vec3f at{static_cast<float>(x0 + lane), static_cast<float>(y), static_cast<float>(z)};
      StoreVector(ComposeVoxel(LoadVector(mine + 3 * lane), t.b, t.size, at, t.scales), mine + 3 * lane);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const int i = lane + 32 * k;
      if (i < floats) t.out[start + i] = mine[i];
    }
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kComposeX* kComposeY) ComposeKernel(const ComposeTask task, const int* skip) {
  if (!IsSkipped(skip)) ComposeBlock(task);
}

// Step `step` of an exponential with at most `limit` squarings (0: the first step); those that are not needed are the
// ones right after the first.
struct ExponentialTask {
  const float* velocity;
  const float* largest;
  float factor;
  int limit, step;
  float* buffers[2];  // the result's, the other
  Int3 size;
};

__global__ void __launch_bounds__(kComposeX* kComposeY) ExponentialKernel(const ExponentialTask t, const int* skip) {
  if (IsSkipped(skip)) return;
  const int n = Squarings(*t.largest, t.factor, t.limit);
  if (t.step == 0) {
    ComposeBlock({t.velocity, t.velocity, t.buffers[n % 2], t.size, MidpointScales(ldexpf(t.factor, -n))});
    return;
  }
  const int left = t.limit - t.step;
  if (left >= n) return;
  const float* const from = t.buffers[(left + 1) % 2];
  ComposeBlock({from, from, t.buffers[left % 2], t.size, ComposeScales()});
}

dim3 ComposeGrid(Int3 size) {
  return dim3(Blocks(size.x, kComposeX), Blocks(size.y, kComposeY), Blocks(size.z, kComposeZ));
}
const dim3 kComposeThreads(kComposeX, kComposeY);

__global__ void LargestKernel(const float* field, int64_t count, float* largest, const int* skip) {
  if (IsSkipped(skip)) return;
  float value = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    value = fmaxf(value, fabsf(field[i]));
  }
  AddLargest(value, largest);
}

__global__ void BchKernel(const float* v, const float* u, Int3 size, float* out, const int* skip) {
  const int x = blockIdx.x * kComposeX + threadIdx.x, y = blockIdx.y * kComposeY + threadIdx.y, z = blockIdx.z;
  if (IsSkipped(skip) || x >= size.x || y >= size.y) return;
  const size_t at = 3 * ((static_cast<size_t>(z) * size.y + y) * size.x + x);
  StoreVector(BchVoxel(v + at, u + at, size, {x, y, z}), out + at);
}

__global__ void EnergyKernel(const float* field, Int3 size, RowPieces pieces, double* partial, const int* skip) {
  if (IsSkipped(skip)) return;
  __shared__ double scratch[kReduceWarps];
  const int begin = pieces.begin(blockIdx.x);
  const int64_t first = int64_t{begin} * size.x, last = int64_t{pieces.end(blockIdx.x)} * size.x;
  double sum = 0;
  for (int64_t i = first + threadIdx.x; i < last; i += kReduceThreads) {
    const int row = static_cast<int>(i / size.x);
    sum += EnergyVoxel(field + 3 * i, size, {static_cast<int>(i % size.x), row % size.y, row / size.y});
  }
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void EnergyTotalKernel(const double* partial, int pieces, double voxels, double* energy, const int* skip) {
  if (IsSkipped(skip)) return;
  __shared__ double scratch[kReduceWarps];
  double sum = 0;
  for (int i = threadIdx.x; i < pieces; i += kReduceThreads) sum += partial[i];
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) *energy = sum / voxels;
}

__global__ void ResampleKernel(const float* in, Int3 in_size, GridScale scale, float* out, Int3 size) {
  const int x = blockIdx.x * kComposeX + threadIdx.x, y = blockIdx.y * kComposeY + threadIdx.y, z = blockIdx.z;
  if (x >= size.x || y >= size.y) return;
  const size_t at = 3 * ((static_cast<size_t>(z) * size.y + y) * size.x + x);
  StoreVector(scale.Vector(SampleVector(in, in_size, scale.Index({x, y, z}))), out + at);
}

__global__ void MapVectorsKernel(AffineMapF map, int64_t voxels, float* field) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < voxels) StoreVector(map.Linear(LoadVector(field + 3 * i)), field + 3 * i);
}

absl::Status ClearLargest(const ExecContext& ctx, float* largest, const int* skip) {
  ClearLargestKernel<<<1, 1, 0, CudaStream(ctx)>>>(largest, skip);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status SmoothAlongX(const ExecContext& ctx, const SmoothPass& pass, const GaussianKernel& kernel) {
  const int64_t rows = int64_t{pass.size.y} * pass.size.z;
  // Rows over y and z of the grid, each below 65536.
  const int64_t groups = (rows + kTileRows - 1) / kTileRows;
  const unsigned depth = Blocks(groups, 65535);
  const dim3 grid(Blocks(pass.size.x, kTileX), Blocks(groups, depth), depth), threads(kRowThreads, kTileRows);
  WithRadius(kernel.radius, [&](auto radius) {
    constexpr int kRadius = decltype(radius)::value;
    const int reach = kRadius < 0 ? kernel.radius : kRadius;
    const size_t shared = sizeof(float) * kTileRows * 3 * (kTileX + 2 * reach);
    SmoothXKernel<kRadius><<<grid, threads, shared, CudaStream(ctx)>>>(pass, rows, kernel);
  });
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return pass.largest == nullptr ? absl::OkStatus()
                                 : cuda::LargestComponent(ctx, pass.out, pass.size, pass.largest, pass.skip);
}

}  // namespace

absl::Status SmoothVectorAxis(const ExecContext& ctx, const SmoothPass& pass, const GaussianKernel& kernel) {
  if (pass.axis == 0) return SmoothAlongX(ctx, pass, kernel);
  if (pass.largest != nullptr) INTRAWARP_RETURN_IF_ERROR(ClearLargest(ctx, pass.largest, pass.skip));
  const int64_t row = 3 * int64_t{pass.size.x}, plane = row * pass.size.y;
  const bool along_y = pass.axis == 1;
  const int n = along_y ? pass.size.y : pass.size.z, others = along_y ? pass.size.z : pass.size.y;
  const dim3 threads(kAcrossX, kAcrossY);
  WithRadius(kernel.radius, [&](auto radius) {
    constexpr int kRadius = decltype(radius)::value;
    const int outputs = kRadius < 0 ? kGenericRun : kRun;
    const dim3 grid(Blocks(row, kAcrossX), Blocks(n, kAcrossY * outputs), others);
    SmoothAcrossKernel<kRadius>
        <<<grid, threads, 0, CudaStream(ctx)>>>(pass, n, along_y ? row : plane, along_y ? plane : row, others, kernel);
  });
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status ComposeVectorFields(const ExecContext& ctx, const float* inner, const float* outer, Int3 size, float* out,
                                 const int* skip) {
  ComposeKernel<<<ComposeGrid(size), kComposeThreads, 0, CudaStream(ctx)>>>({inner, outer, out, size, ComposeScales()},
                                                                            skip);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status LargestComponent(const ExecContext& ctx, const float* field, Int3 size, float* largest, const int* skip) {
  constexpr int kThreads = 256, kMaxBlocks = 2048;
  INTRAWARP_RETURN_IF_ERROR(ClearLargest(ctx, largest, skip));
  const int64_t count = 3 * int64_t{size.x} * size.y * size.z;
  const unsigned blocks = std::min<unsigned>(Blocks(count, kThreads), kMaxBlocks);
  LargestKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(field, count, largest, skip);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status ExponentiateVectorField(const ExecContext& ctx, const float* velocity, Int3 size, float factor,
                                     const float* largest, int max_squarings, float* out, float* other,
                                     const int* skip) {
  ExponentialTask task{velocity, largest, factor, max_squarings, 0, {out, other}, size};
  for (task.step = 0; task.step <= max_squarings; ++task.step) {
    ExponentialKernel<<<ComposeGrid(size), kComposeThreads, 0, CudaStream(ctx)>>>(task, skip);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  }
  return absl::OkStatus();
}

absl::Status BchUpdate(const ExecContext& ctx, const float* v, const float* u, Int3 size, float* out, const int* skip) {
  const dim3 grid(Blocks(size.x, kComposeX), Blocks(size.y, kComposeY), size.z);
  BchKernel<<<grid, kComposeThreads, 0, CudaStream(ctx)>>>(v, u, size, out, skip);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status HarmonicEnergy(const ExecContext& ctx, const float* field, Int3 size, double* partial, double* energy,
                            const int* skip) {
  const RowPieces pieces = MakeRowPieces(size.y * size.z, size.x);
  EnergyKernel<<<pieces.pieces, kReduceThreads, 0, CudaStream(ctx)>>>(field, size, pieces, partial, skip);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  const double voxels = static_cast<double>(size.x) * size.y * size.z;
  EnergyTotalKernel<<<1, kReduceThreads, 0, CudaStream(ctx)>>>(partial, pieces.pieces, voxels, energy, skip);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status ResampleVectorField(const ExecContext& ctx, const float* in, Int3 in_size, const GridScale& scale,
                                 float* out, Int3 out_size) {
  const dim3 grid(Blocks(out_size.x, kComposeX), Blocks(out_size.y, kComposeY), out_size.z);
  ResampleKernel<<<grid, kComposeThreads, 0, CudaStream(ctx)>>>(in, in_size, scale, out, out_size);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status MapVectors(const ExecContext& ctx, const AffineMapF& map, Int3 size, float* field) {
  constexpr int kThreads = 256;
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  MapVectorsKernel<<<Blocks(voxels, kThreads), kThreads, 0, CudaStream(ctx)>>>(map, voxels, field);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
