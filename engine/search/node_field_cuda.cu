// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/search/node_field_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    ConsistencyKernel(const __grid_constant__ ConsistencyRound in, int64_t count) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place < count) MakeNodeConsistent(in, place, VoxelAt(in.size, place));
}

__global__ void __launch_bounds__(kThreads)
    ControlGridKernel(const __grid_constant__ ControlGridTask in, int64_t count) {
  const int64_t place = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place < count) WriteControlPoint(in, place, VoxelAt(in.points, place));
}

int64_t Count(Int3 size) { return int64_t{size.x} * size.y * size.z; }

unsigned Blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

absl::Status RunConsistencyRound(const ExecContext& ctx, const ConsistencyRound& in) {
  const int64_t count = Count(in.size);
  ConsistencyKernel<<<Blocks(count), kThreads, 0, CudaStream(ctx)>>>(in, count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status ToControlGrid(const ExecContext& ctx, const ControlGridTask& in) {
  const int64_t count = Count(in.points);
  ControlGridKernel<<<Blocks(count), kThreads, 0, CudaStream(ctx)>>>(in, count);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
