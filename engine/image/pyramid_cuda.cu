// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "engine/device/cuda_device.h"
#include "engine/image/pyramid_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kTileX = 64, kTileY = 4;

dim3 Grid(const Boxes& box) { return dim3((box.x.m + kTileX - 1) / kTileX, (box.y.m + kTileY - 1) / kTileY, box.z.m); }

// The sum of in[2 x] and in[2 x + 1], or in[x].
template <bool kHalveX>
__device__ float Pair(const float* in, int x) {
  if constexpr (!kHalveX) return in[x];
  const float2 pair = reinterpret_cast<const float2*>(in)[x];
  return pair.x + pair.y;
}

// The mean of whole voxels; step_y and step_z are 1 or 2, and in.x is even when kHalveX.
template <bool kHalveX>
__global__ void AverageWholeKernel(const float* in, Int3 n, int step_y, int step_z, float* out, Int3 m) {
  const int x = blockIdx.x * kTileX + threadIdx.x, y = blockIdx.y * kTileY + threadIdx.y, z = blockIdx.z;
  if (x >= m.x || y >= m.y) return;
  const size_t row = n.x, plane = row * n.y;
  const float* at = in + z * step_z * plane + y * step_y * row;
  float sum = Pair<kHalveX>(at, x);
  if (step_y == 2) sum += Pair<kHalveX>(at + row, x);
  if (step_z == 2) {
    float second = Pair<kHalveX>(at + plane, x);
    if (step_y == 2) second += Pair<kHalveX>(at + plane + row, x);
    sum += second;
  }
  const float scale = 1.0f / ((kHalveX ? 2 : 1) * step_y * step_z);
  out[(static_cast<size_t>(z) * m.y + y) * m.x + x] = scale * sum;
}

// Adds weight * value(offset) over the voxels of a box; the weights of a box add up to box.total().
template <typename Sum, typename Value>
__device__ Sum SumBox(const Boxes& box, int x, int y, int z, const Value& value) {
  Sum sum = 0;
  for (int k = box.z.first(z); k <= box.z.last(z); ++k) {
    Sum plane = 0;
    for (int j = box.y.first(y); j <= box.y.last(y); ++j) {
      const size_t offset = (static_cast<size_t>(k) * box.y.n + j) * box.x.n;
      Sum row = 0;
      for (int i = box.x.first(x); i <= box.x.last(x); ++i)
        row += static_cast<Sum>(box.x.overlap(i, x)) * value(offset + i);
      plane += static_cast<Sum>(box.y.overlap(j, y)) * row;
    }
    sum += static_cast<Sum>(box.z.overlap(k, z)) * plane;
  }
  return sum;
}

__global__ void AverageAnyKernel(const float* in, Boxes box, float* out) {
  const int x = blockIdx.x * kTileX + threadIdx.x, y = blockIdx.y * kTileY + threadIdx.y, z = blockIdx.z;
  if (x >= box.x.m || y >= box.y.m) return;
  const double sum = SumBox<double>(box, x, y, z, [&](size_t i) { return static_cast<double>(in[i]); });
  out[(static_cast<size_t>(z) * box.y.m + y) * box.x.m + x] =
      static_cast<float>(sum * (1.0 / static_cast<double>(box.total())));
}

// Without weights nobody asks for the integral of the bytes.
template <bool kHasWeights>
__global__ void MaskKernel(const uint8_t* in, Boxes box, uint8_t* out) {
  const int x = blockIdx.x * kTileX + threadIdx.x, y = blockIdx.y * kTileY + threadIdx.y, z = blockIdx.z;
  if (x >= box.x.m || y >= box.y.m) return;
  MaskSums sums;
  sums.counted = SumBox<int64_t>(box, x, y, z, [&](size_t i) { return int64_t{in[i] != 0}; });
  if (kHasWeights) sums.bytes = SumBox<int64_t>(box, x, y, z, [&](size_t i) { return int64_t{in[i]}; });
  out[(static_cast<size_t>(z) * box.y.m + y) * box.x.m + x] = sums.ByteOf(box, kHasWeights);
}

}  // namespace

absl::Status Downsample(const ExecContext& ctx, ConstVolumeView in, VolumeView out) {
  const Boxes box(in.geometry.size, out.geometry.size);
  const dim3 grid = Grid(box), threads(kTileX, kTileY);
  const int step_y = box.y.halved() ? 2 : 1, step_z = box.z.halved() ? 2 : 1;
  const bool aligned = reinterpret_cast<uintptr_t>(in.data) % sizeof(float2) == 0;
  if (box.whole() && box.x.halved() && aligned) {
    AverageWholeKernel<true>
        <<<grid, threads, 0, CudaStream(ctx)>>>(in.data, in.geometry.size, step_y, step_z, out.data, out.geometry.size);
  } else if (box.whole() && box.x.kept()) {
    AverageWholeKernel<false>
        <<<grid, threads, 0, CudaStream(ctx)>>>(in.data, in.geometry.size, step_y, step_z, out.data, out.geometry.size);
  } else {
    AverageAnyKernel<<<grid, threads, 0, CudaStream(ctx)>>>(in.data, box, out.data);
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status DownsampleMask(const ExecContext& ctx, ConstMaskView in, MaskView out) {
  const Boxes box(in.geometry.size, out.geometry.size);
  const auto kernel = HasWeights(in) ? MaskKernel<true> : MaskKernel<false>;
  kernel<<<Grid(box), dim3(kTileX, kTileY), 0, CudaStream(ctx)>>>(in.data, box, out.data);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
