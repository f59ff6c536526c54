// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/transform/transform_kernels.h"

namespace intrawarp::cuda {
namespace {

// A multiple of 3, so that a thread keeps to one component, and of 32, so that a warp writes whole lines.
constexpr int kRowThreads = 96;
constexpr int kRowsPerBlock = 4;
constexpr int kThreads = 256;
constexpr int kVoxelsPerThread = 4;
constexpr int kVoxelsPerBlock = kThreads * kVoxelsPerThread;

// The grid's x dimension reaches 2^31 - 1 blocks: 2^41 voxels, more than any device holds.
template <typename Int>
unsigned Blocks(Int count, Int per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

__global__ void AffineFieldKernel(AffineMap field, Int3 size, int64_t first, int64_t count, int64_t first_row,
                                  int64_t rows, float* out) {
  const int64_t r = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.y;
  if (r >= rows) return;
  const int64_t row = first_row + r, start = row * size.x;
  const int begin = static_cast<int>(max(first - start, int64_t{0})),
            end = static_cast<int>(min(first + count - start, static_cast<int64_t>(size.x)));
  const int c = threadIdx.x % 3;
  const Vec3d step{field.m[0][0], field.m[1][0], field.m[2][0]};
  const Vec3d base = field({0, static_cast<double>(row % size.y), static_cast<double>(row / size.y)});
  const double step_c = step[c], base_c = base[c];
  float* to = out + 3 * (start - first) + c;
  for (int i = begin + threadIdx.x / 3; i < end; i += kRowThreads / 3)
    to[3 * int64_t{i}] = static_cast<float>(base_c + step_c * i);
}

__global__ void FieldKernel(ForwardMap map, Int3 size, int64_t first, int64_t count, float* out) {
  // Through shared memory, so that consecutive threads write consecutive floats.
  __shared__ float stage[3 * kThreads];
  const int64_t block = int64_t{blockIdx.x} * kVoxelsPerBlock;
  const Int3 base = VoxelAt(size, first + block);
  for (int part = 0; part < kVoxelsPerThread; ++part) {
    const int64_t from = block + part * kThreads, i = from + threadIdx.x;
    if (i < count) {
      Vec3d d;
      map(ToVec3d(VoxelAfter(size, base, part * kThreads + threadIdx.x)), &d);
      stage[3 * threadIdx.x] = static_cast<float>(d.x);
      stage[3 * threadIdx.x + 1] = static_cast<float>(d.y);
      stage[3 * threadIdx.x + 2] = static_cast<float>(d.z);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 3 * kThreads; e += kThreads) {
      if (3 * from + e < 3 * count) out[3 * from + e] = stage[e];
    }
    __syncthreads();
  }
}

template <Interpolation kInterpolation, typename Map>
__global__ void WarpKernel(Map map, Int3 size, int64_t count, const float* moving, Int3 moving_size, float fill,
                           float* out) {
  const int64_t block = int64_t{blockIdx.x} * kVoxelsPerBlock;
  const Int3 base = VoxelAt(size, block);
  for (int part = 0; part < kVoxelsPerThread; ++part) {
    const int offset = part * kThreads + threadIdx.x;
    if (block + offset >= count) return;
    out[block + offset] = WarpVoxel<kInterpolation>(map, VoxelAfter(size, base, offset), moving, moving_size, fill);
  }
}

template <typename Map>
__global__ void MapPointsKernel(Map map, int64_t count, double* points) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) MapPoint(map, points + 3 * i);
}

template <typename Map>
absl::Status Warp(const ExecContext& ctx, const Map& map, ConstVolumeView moving, Interpolation interpolation,
                  float fill, VolumeView out) {
  const int64_t count = out.geometry.voxels();
  WithInterpolation(interpolation, [&](auto kind) {
    WarpKernel<kind.value><<<Blocks<int64_t>(count, kVoxelsPerBlock), kThreads, 0, CudaStream(ctx)>>>(
        map, out.geometry.size, count, moving.data, moving.geometry.size, fill, out.data);
  });
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

template <typename Map>
absl::Status MapAll(const ExecContext& ctx, const Map& map, absl::Span<double> points) {
  ArenaScope scope(ctx.arena());
  INTRAWARP_ASSIGN_OR_RETURN(double* on_device, ctx.arena().Allocate<double>(points.size()));
  const size_t bytes = points.size() * sizeof(double);
  const int64_t count = points.size() / 3;
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(on_device, points.data(), bytes, ctx.stream()));
  MapPointsKernel<<<Blocks<int64_t>(count, kThreads), kThreads, 0, CudaStream(ctx)>>>(map, count, on_device);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(points.data(), on_device, bytes, ctx.stream()));
  return ctx.device().Synchronize(ctx.stream());
}

}  // namespace

absl::Status EvaluateAffineField(const ExecContext& ctx, const AffineMap& field, Int3 size, int64_t first,
                                 int64_t count, float* out) {
  const int64_t first_row = first / size.x, rows = (first + count - 1) / size.x - first_row + 1;
  AffineFieldKernel<<<Blocks<int64_t>(rows, kRowsPerBlock), dim3(kRowThreads, kRowsPerBlock), 0, CudaStream(ctx)>>>(
      field, size, first, count, first_row, rows, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status EvaluateField(const ExecContext& ctx, const ForwardMap& map, Int3 size, int64_t first, int64_t count,
                           float* out) {
  FieldKernel<<<Blocks<int64_t>(count, kVoxelsPerBlock), kThreads, 0, CudaStream(ctx)>>>(map, size, first, count, out);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status WarpThrough(const ExecContext& ctx, const ForwardMap& map, ConstVolumeView moving,
                         Interpolation interpolation, float fill, VolumeView out) {
  return Warp(ctx, map, moving, interpolation, fill, out);
}

absl::Status WarpThrough(const ExecContext& ctx, const InverseMap& map, ConstVolumeView moving,
                         Interpolation interpolation, float fill, VolumeView out) {
  return Warp(ctx, map, moving, interpolation, fill, out);
}

absl::Status MapThrough(const ExecContext& ctx, const ForwardMap& map, absl::Span<double> points) {
  return MapAll(ctx, map, points);
}

absl::Status MapThrough(const ExecContext& ctx, const InverseMap& map, absl::Span<double> points) {
  return MapAll(ctx, map, points);
}

}  // namespace intrawarp::cuda
