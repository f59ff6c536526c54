// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/reduce.cuh"
#include "engine/image/gradient_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kRunThreads = 128;

// A block writes a run of kRunThreads voxels of a row, by way of shared memory, so that the interleaved components
// leave in whole lines.
__global__ void GradientKernel(const float* data, Int3 n, AffineMapF to_index, float* out) {
  __shared__ float staged[3 * kRunThreads];
  const int x0 = blockIdx.x * kRunThreads, x = x0 + threadIdx.x, y = blockIdx.y, z = blockIdx.z;
  const size_t row = (static_cast<size_t>(z) * n.y + y) * n.x;
  if (x < n.x) {
    const float* at = data + row + x;
    const Vec3f g = to_index.LinearTransposed({AxisDifference(at, 1, x, n.x), AxisDifference(at, n.x, y, n.y),
                                               AxisDifference(at, static_cast<size_t>(n.x) * n.y, z, n.z)});
    staged[3 * threadIdx.x] = g.x;
    staged[3 * threadIdx.x + 1] = g.y;
    staged[3 * threadIdx.x + 2] = g.z;
  }
  __syncthreads();
  const int count = 3 * min(kRunThreads, n.x - x0);
  for (int i = threadIdx.x; i < count; i += kRunThreads) out[3 * (row + x0) + i] = staged[i];
}

// One volume of EnqueueMeanGradients, and the first of the blocks that work on it.
struct MagnitudeTask {
  const float* data;
  Int3 size;
  RowPieces rows;
  AffineMapF to_physical;
  int first_block;
};
struct MagnitudeTasks {
  MagnitudeTask task[kMaxPyramidLevels];
  int count;
};
static_assert(sizeof(MagnitudeTasks) <= 4096, "the parameters of a kernel have room for this much");

// Block i of a task sums piece i of its interior, a warp a row.
__global__ void MagnitudeKernel(const __grid_constant__ MagnitudeTasks tasks, double* partial) {
  __shared__ double scratch[kReduceWarps];
  const int block = blockIdx.x, lane = threadIdx.x % 32;
  int t = 0;
  while (t + 1 < tasks.count && block >= tasks.task[t + 1].first_block) ++t;
  const MagnitudeTask& task = tasks.task[t];
  const GradientInterior interior = MakeGradientInterior(task.size);
  const int end = task.rows.end(block - task.first_block);
  double sum = 0;
  for (int row = task.rows.begin(block - task.first_block) + threadIdx.x / 32; row < end; row += kReduceWarps) {
    const float* first = task.data + interior.RowOffset(task.size, row);
#pragma unroll 4
    for (int x = lane; x < interior.count.x; x += 32) {
      sum += InteriorMagnitude(first + x, interior.stride, task.to_physical);
    }
  }
  sum = BlockSum(sum, scratch);
  if (threadIdx.x == 0) partial[block] = sum;
}

// Block i adds up the pieces of task i.
__global__ void MeanKernel(const __grid_constant__ MagnitudeTasks tasks, const double* partial, double* means) {
  __shared__ double scratch[kReduceWarps];
  const MagnitudeTask& task = tasks.task[blockIdx.x];
  double sum = 0;
  for (int i = threadIdx.x; i < task.rows.pieces; i += kReduceThreads) sum += partial[task.first_block + i];
  sum = BlockSum(sum, scratch);
  if (threadIdx.x != 0) return;
  means[blockIdx.x] = task.rows.pieces > 0 ? sum / static_cast<double>(MakeGradientInterior(task.size).voxels()) : 0.0;
}

}  // namespace

absl::Status Gradient(const ExecContext& ctx, ConstVolumeView volume, FieldView out) {
  const Int3 n = volume.geometry.size;
  const dim3 grid((n.x + kRunThreads - 1) / kRunThreads, n.y, n.z);
  const AffineMapF to_index = PhysicalToIndex(volume.geometry).Cast<float>();
  GradientKernel<<<grid, kRunThreads, 0, CudaStream(ctx)>>>(volume.data, n, to_index, out.data);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status EnqueueMeanGradients(const ExecContext& ctx, absl::Span<const ConstVolumeView> volumes, double* means) {
  MagnitudeTasks tasks = {};
  int blocks = 0;
  for (const ConstVolumeView& v : volumes) {
    const RowPieces rows = GradientInteriorRows(v.geometry.size);
    tasks.task[tasks.count++] = {v.data, v.geometry.size, rows, HalfPhysicalToIndex(v.geometry), blocks};
    blocks += rows.pieces;
  }
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(double* partial, ctx.arena().Allocate<double>(blocks));
  if (blocks > 0) MagnitudeKernel<<<blocks, kReduceThreads, 0, CudaStream(ctx)>>>(tasks, partial);
  if (tasks.count > 0) MeanKernel<<<tasks.count, kReduceThreads, 0, CudaStream(ctx)>>>(tasks, partial, means);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
