// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/image/warp_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kTileX = 64, kTileY = 4;
// A thread takes this many voxels of a row, kTileX apart, to share the row's start.
constexpr int kVoxelsPerThread = 4;

template <Interpolation kInterpolation, bool kDisplaced>
__global__ void WarpKernel(const __grid_constant__ WarpTask t) {
  const int y = blockIdx.y * kTileY + threadIdx.y, z = blockIdx.z;
  if (y >= t.out_size.y) return;
  const IndexRow index(t.index_map, y, z);
  const size_t row = (static_cast<size_t>(z) * t.out_size.y + y) * t.out_size.x;
  const int x0 = blockIdx.x * kTileX * kVoxelsPerThread + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kVoxelsPerThread; ++k) {
    const int x = x0 + k * kTileX;
    if (x >= t.out_size.x) return;
    Vec3f at = index(x);
    if (kDisplaced) {
      const float* u = t.displacement + 3 * (row + x);
      at = at + t.displacement_map.Linear({u[0], u[1], u[2]});
    }
    t.out[row + x] = SampleOr<kInterpolation>(t.moving, t.moving_size, at, t.fill);
  }
}

template <Interpolation kInterpolation>
void Launch(const ExecContext& ctx, const WarpTask& t) {
  constexpr int kRun = kTileX * kVoxelsPerThread;
  const dim3 grid((t.out_size.x + kRun - 1) / kRun, (t.out_size.y + kTileY - 1) / kTileY, t.out_size.z);
  const dim3 threads(kTileX, kTileY);
  if (t.displacement == nullptr) {
    WarpKernel<kInterpolation, false><<<grid, threads, 0, CudaStream(ctx)>>>(t);
  } else {
    WarpKernel<kInterpolation, true><<<grid, threads, 0, CudaStream(ctx)>>>(t);
  }
}

}  // namespace

absl::Status Warp(const ExecContext& ctx, const WarpTask& task, Interpolation interpolation) {
  WithInterpolation(interpolation, [&](auto kind) { Launch<kind.value>(ctx, task); });
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
