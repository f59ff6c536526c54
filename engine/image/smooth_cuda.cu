// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/image/smooth_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kTileX = 64, kTileY = 4;

// A block smooths kTileX voxels of kTileY rows, which lie in shared memory with `radius` neighbours on either side (0
// outside the volume).
__global__ void SmoothXKernel(const float* in, float* out, Int3 n, const __grid_constant__ GaussianKernel kernel) {
  extern __shared__ float tile[];
  const int r = kernel.radius, width = kTileX + 2 * r;
  const int x0 = blockIdx.x * kTileX, y = blockIdx.y * kTileY + threadIdx.y;
  const size_t row = (static_cast<size_t>(blockIdx.z) * n.y + y) * n.x;
  float* mine = tile + threadIdx.y * width;
  if (y < n.y) {
    for (int i = threadIdx.x; i < width; i += kTileX) {
      const int x = x0 - r + i;
      mine[i] = x >= 0 && x < n.x ? in[row + x] : 0.0f;
    }
  }
  __syncthreads();
  const int x = x0 + threadIdx.x;
  if (y >= n.y || x >= n.x) return;
  const float* center = mine + threadIdx.x + r;
  float sum = kernel.weights[0] * center[0];
  for (int k = 1; k <= r; ++k) sum += kernel.weights[k] * (center[k] + center[-k]);
  out[row + x] = kernel.Scale(x, n.x) * sum;
}

// Along y or z: a thread makes kSmoothRun consecutive outputs of one line. n voxels a line, `stride` apart; blockIdx.z
// numbers what the third axis holds, `other` apart.
__global__ void SmoothAcrossKernel(const float* in, float* out, int nx, int n, size_t stride, size_t other,
                                   const __grid_constant__ GaussianKernel kernel) {
  const int x = blockIdx.x * kTileX + threadIdx.x, first = (blockIdx.y * kTileY + threadIdx.y) * kSmoothRun;
  if (x >= nx || first >= n) return;
  const size_t line = blockIdx.z * other + x;
  float sums[kSmoothRun] = {};
  const int r = kernel.radius, begin = max(first - r, 0), end = min(first + kSmoothRun + r, n);
  for (int i = begin; i < end; ++i) {
    const float v = in[line + i * stride];
#pragma unroll
    for (int o = 0; o < kSmoothRun; ++o) sums[o] += kernel.weights[abs(i - first - o)] * v;
  }
#pragma unroll
  for (int o = 0; o < kSmoothRun; ++o) {
    if (first + o < n) out[line + (first + o) * stride] = kernel.Scale(first + o, n) * sums[o];
  }
}

}  // namespace

absl::Status SmoothAxis(const ExecContext& ctx, const float* in, float* out, Int3 size, int axis,
                        const GaussianKernel& kernel) {
  const dim3 threads(kTileX, kTileY);
  const unsigned tiles_x = (size.x + kTileX - 1) / kTileX;
  if (axis == 0) {
    const dim3 grid(tiles_x, (size.y + kTileY - 1) / kTileY, size.z);
    const size_t shared = kTileY * (kTileX + 2 * kernel.radius) * sizeof(float);
    SmoothXKernel<<<grid, threads, shared, CudaStream(ctx)>>>(in, out, size, kernel);
  } else {
    const size_t row = size.x, plane = row * size.y;
    const int n = axis == 1 ? size.y : size.z;
    constexpr int kRun = kTileY * kSmoothRun;
    const dim3 grid(tiles_x, (n + kRun - 1) / kRun, axis == 1 ? size.z : size.y);
    SmoothAcrossKernel<<<grid, threads, 0, CudaStream(ctx)>>>(in, out, size.x, n, axis == 1 ? row : plane,
                                                              axis == 1 ? plane : row, kernel);
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
