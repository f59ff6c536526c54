// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/transform/fold_smoothing_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

unsigned Blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

// Marks are all the same value and counts are integers, so the order does not show.
__global__ void MarkKernel(const __grid_constant__ FoldSmoothing t) {
  const int64_t voxel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  // Written so that NaN folds.
  const bool marks = voxel < t.voxels() && !(t.determinant[voxel] >= kFoldMargin);
  const bool folds = marks && !(t.determinant[voxel] > 0);
  const int folded = __syncthreads_count(folds);
  if (threadIdx.x == 0 && folded > 0) atomicAdd(t.folded, static_cast<unsigned long long>(folded));
  if (marks) ForNodesInReach(t, voxel, [&](int64_t node) { t.moves[node] = 1; });
}

__global__ void SmoothKernel(const __grid_constant__ FoldSmoothing t) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < 3 * t.nodes()) t.out[i] = Smoothed(t, i / 3, static_cast<int>(i % 3));
}

}  // namespace

absl::Status SmoothFoldsOnce(const ExecContext& ctx, const FoldSmoothing& t) {
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(t.moves, 0, t.nodes(), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Fill(t.folded, 0, sizeof(*t.folded), ctx.stream()));
  MarkKernel<<<Blocks(t.voxels()), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  SmoothKernel<<<Blocks(3 * t.nodes()), kThreads, 0, CudaStream(ctx)>>>(t);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
