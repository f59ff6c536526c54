// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/transform/velocity_unfolding_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

unsigned Blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

__device__ int64_t ThreadIndex() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

__device__ Int3 VoxelAt(Int3 size, int64_t i) {
  const int64_t row = i / size.x;
  return {static_cast<int>(i - row * size.x), static_cast<int>(row % size.y), static_cast<int>(row / size.y)};
}

__global__ void MarkFoldsKernel(const __grid_constant__ FoldCheck t) {
  const int64_t i = ThreadIndex();
  bool folds = false;
  if (i < t.voxels()) {
    const Int3 v = VoxelAt(t.size, i);
    if (IsCell(t.size, v)) {
      Vec3f low[4], high[4];
      t.LoadColumn(v.x, v.y, v.z, low);
      t.LoadColumn(min(v.x + 1, t.size.x - 1), v.y, v.z, high);
      folds = CellFolds(low, high);
    }
    t.folds[i] = folds;
  }
  // The count is an integer, so its order does not show.
  const int folded = __syncthreads_count(folds);
  if (threadIdx.x == 0 && folded > 0) atomicAdd(t.folded, static_cast<unsigned long long>(folded));
}

// Marks are all the same value, so their order does not show.
__global__ void MarkPathsKernel(const __grid_constant__ FoldPaths t) {
  const int64_t i = ThreadIndex();
  if (i >= t.voxels() || t.folds[i] == 0) return;
  ForPathsOfCell(t, i, [&](int64_t at) { t.marks[at] = 1; });
}

__global__ void DilateKernel(const uint8_t* marks, Int3 size, int64_t voxels, uint8_t* out) {
  const int64_t i = ThreadIndex();
  if (i < voxels) out[i] = AnyMarked(marks + i, size, VoxelAt(size, i));
}

__global__ void SmoothMarkedKernel(const float* in, const uint8_t* marks, Int3 size, int64_t voxels, float* out) {
  const int64_t i = ThreadIndex();
  if (i >= voxels || marks[i] == 0) return;
  StoreVector(BinomialMean(in + 3 * i, size, VoxelAt(size, i)), out + 3 * i);
}

__global__ void HalveKernel(int64_t floats, float* field) {
  const int64_t i = ThreadIndex();
  if (i < floats) field[i] *= 0.5f;
}

int64_t Voxels(Int3 size) { return int64_t{size.x} * size.y * size.z; }

}  // namespace

absl::Status MarkFolds(const ExecContext& ctx, const FoldCheck& t) {
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(t.folded, 0, sizeof(*t.folded), ctx.stream()));
  MarkFoldsKernel<<<Blocks(t.voxels()), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status MarkPaths(const ExecContext& ctx, const FoldPaths& t) {
  MarkPathsKernel<<<Blocks(t.voxels()), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status Dilate(const ExecContext& ctx, const uint8_t* marks, Int3 size, uint8_t* out) {
  DilateKernel<<<Blocks(Voxels(size)), kThreads, 0, CudaStream(ctx)>>>(marks, size, Voxels(size), out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status SmoothMarked(const ExecContext& ctx, const float* in, const uint8_t* marks, Int3 size, float* out) {
  SmoothMarkedKernel<<<Blocks(Voxels(size)), kThreads, 0, CudaStream(ctx)>>>(in, marks, size, Voxels(size), out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status Halve(const ExecContext& ctx, int64_t floats, float* field) {
  HalveKernel<<<Blocks(floats), kThreads, 0, CudaStream(ctx)>>>(floats, field);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
