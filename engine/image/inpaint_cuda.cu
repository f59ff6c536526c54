// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/device/cuda_device.h"
#include "engine/image/inpaint_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

int BlocksFor(int64_t count) { return static_cast<int>(std::min<int64_t>((count + kThreads - 1) / kThreads, 1 << 16)); }

// at(voxel, index) for every voxel.
template <typename At>
__device__ void ForVoxels(Int3 n, const At& at) {
  const int64_t count = int64_t{n.x} * n.y * n.z, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const int64_t row = i / n.x;
    at(Int3{static_cast<int>(i % n.x), static_cast<int>(row % n.y), static_cast<int>(row / n.y)}, i);
  }
}

__global__ void MarkKernel(const float* volume, int64_t count, ExtremeLimits limits, uint8_t* marks) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    marks[i] = MarkOf(limits, volume[i]);
}

__global__ void CoreKernel(InpaintGrid grid, const uint8_t* marks, uint8_t* cores) {
  ForVoxels(grid.n, [&](Int3 at, int64_t i) { cores[i] = CoreAt(grid, marks, at); });
}

__global__ void ThinKernel(InpaintGrid grid, const uint8_t* cores, uint8_t* marks) {
  ForVoxels(grid.n, [&](Int3 at, int64_t i) { marks[i] = ThinOrNot(grid, marks[i], cores, at); });
}

__global__ void KindKernel(InpaintGrid grid, const uint8_t* marks, uint8_t* kinds) {
  ForVoxels(grid.n, [&](Int3 at, int64_t i) { kinds[i] = KindAt(grid, marks, at); });
}

__global__ void FillKernel(InpaintGrid grid, const uint8_t* kinds, float* volume) {
  ForVoxels(grid.n, [&](Int3 at, int64_t i) {
    if (kinds[i] == kPainted) volume[i] = FilledIn(grid, kinds, volume, at);
  });
}

}  // namespace

absl::Status MarkExtremes(const ExecContext& ctx, const ExtremeLimits& limits, ConstVolumeView volume, uint8_t* marks) {
  const int64_t count = volume.geometry.voxels();
  MarkKernel<<<BlocksFor(count), kThreads, 0, CudaStream(ctx)>>>(volume.data, count, limits, marks);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status InpaintThin(const ExecContext& ctx, const InpaintGrid& grid, uint8_t* marks, uint8_t* scratch,
                         VolumeView volume) {
  const int blocks = BlocksFor(volume.geometry.voxels());
  const cudaStream_t stream = CudaStream(ctx);
  CoreKernel<<<blocks, kThreads, 0, stream>>>(grid, marks, scratch);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  ThinKernel<<<blocks, kThreads, 0, stream>>>(grid, scratch, marks);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  KindKernel<<<blocks, kThreads, 0, stream>>>(grid, marks, scratch);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  FillKernel<<<blocks, kThreads, 0, stream>>>(grid, scratch, volume.data);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
