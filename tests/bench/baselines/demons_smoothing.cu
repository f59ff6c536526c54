// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/demons_variants.h"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;  // lines of one block of A3

// In constant memory, as a kernel's argument.
struct Window {
  float weight[kMaxWindow];
  int radius;
};

// A pass over three planes, as lines: value `at` of line (inner, outer) is outer * outer_stride + inner + at * stride.
struct Pass {
  int length;
  int64_t stride;
  int64_t inner;  // neighbouring lines; 1 along x
  int64_t outer_stride, outer;
  int64_t floats;
};

Pass MakePass(Int3 size, int axis) {
  const int64_t row = size.x, plane = row * size.y, voxels = plane * size.z;
  if (axis == 0) return {size.x, 1, 1, row, int64_t{3} * size.y * size.z, 3 * voxels};
  if (axis == 1) return {size.y, row, row, plane, int64_t{3} * size.z, 3 * voxels};
  return {size.z, plane, plane, voxels, 3, 3 * voxels};
}

// kRadius 0: window.radius.
template <int kRadius>
__device__ int RadiusOf(const Window& window) {
  return kRadius > 0 ? kRadius : window.radius;
}

template <int kRadius>
__global__ void NaiveKernel(const float* __restrict__ in, float* __restrict__ out, Pass p, Window window) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.floats) return;
  const int at = static_cast<int>(i / p.stride % p.length), radius = RadiusOf<kRadius>(window);
  float sum = 0;
#pragma unroll
  for (int n = -radius; n <= radius; ++n) {
    if (at + n >= 0 && at + n < p.length) sum = fmaf(window.weight[abs(n)], in[i + n * p.stride], sum);
  }
  out[i] = sum;
}

template <int kRadius, int kStep>
__device__ float Convolve(const float* centre, const Window& window) {
  const int radius = RadiusOf<kRadius>(window);
  float sum = window.weight[0] * centre[0];
#pragma unroll
  for (int n = 1; n <= radius; ++n) {
    sum = fmaf(window.weight[n], centre[-n * kStep], sum);
    sum = fmaf(window.weight[n], centre[n * kStep], sum);
  }
  return sum;
}

// A2: a block a line, with zeros outside the image.
template <int kRadius>
__global__ void LineKernel(const float* __restrict__ in, float* __restrict__ out, Pass p, Window window) {
  extern __shared__ float line[];
  const int radius = RadiusOf<kRadius>(window);
  const int64_t base = blockIdx.x / p.inner * p.outer_stride + blockIdx.x % p.inner;
  for (int i = threadIdx.x; i < p.length + 2 * radius; i += blockDim.x) {
    const int at = i - radius;
    line[i] = at >= 0 && at < p.length ? in[base + at * p.stride] : 0.0f;
  }
  __syncthreads();
  for (int at = threadIdx.x; at < p.length; at += blockDim.x)
    out[base + at * p.stride] = Convolve<kRadius, 1>(line + radius + at, window);
}

// A3 along y and z: a block 32 neighbouring lines, its threads going on along them.
template <int kRadius>
__global__ void ColumnsKernel(const float* __restrict__ in, float* __restrict__ out, Pass p, Window window) {
  extern __shared__ float lines[];
  const int radius = RadiusOf<kRadius>(window);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const int64_t base = blockIdx.y * p.outer_stride + column;
  const bool inside = column < p.inner;
  for (int i = threadIdx.y; i < p.length + 2 * radius; i += blockDim.y) {
    const int at = i - radius;
    lines[i * kColumns + threadIdx.x] = inside && at >= 0 && at < p.length ? in[base + at * p.stride] : 0.0f;
  }
  __syncthreads();
  if (!inside) return;
  for (int at = threadIdx.y; at < p.length; at += blockDim.y)
    out[base + at * p.stride] = Convolve<kRadius, kColumns>(lines + (at + radius) * kColumns + threadIdx.x, window);
}

// A3 along x: a warp a row, loaded as float4 between the addresses that are multiples of 16 bytes.
template <int kRadius>
__global__ void RowsKernel(const float* __restrict__ in, float* __restrict__ out, Pass p, Window window,
                           int row_floats) {
  extern __shared__ float4 rows[];
  const int radius = RadiusOf<kRadius>(window);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t base = row * p.length, first = base & ~int64_t{3};
  const int margin = (radius + 3) & ~3, skew = static_cast<int>(base - first);
  float* const shared = reinterpret_cast<float*>(rows) + threadIdx.y * row_floats;
  float* const values = shared + margin + skew;  // of the row; `shared + margin` holds the float at `first`
  if (row < p.outer) {
    for (int i = threadIdx.x; i < (skew + p.length + 3) / 4; i += 32) {
      const int64_t at = first + 4 * i;
      float4 four;
      if (at + 4 <= p.floats) {
        four = *reinterpret_cast<const float4*>(in + at);
      } else {
        four = make_float4(in[at], at + 1 < p.floats ? in[at + 1] : 0, at + 2 < p.floats ? in[at + 2] : 0, 0);
      }
      reinterpret_cast<float4*>(shared + margin)[i] = four;
    }
  }
  __syncthreads();
  // Zeros over what the first and last float4 brought of other rows, and beyond.
  for (int i = threadIdx.x; i < radius; i += 32) values[-1 - i] = values[p.length + i] = 0;
  __syncthreads();
  if (row >= p.outer) return;
  for (int at = threadIdx.x; at < p.length; at += 32) out[base + at] = Convolve<kRadius, 1>(values + at, window);
}

// As much as a block can have, whatever this pass needs: the attribute is the kernel's, which other axes share.
template <typename Kernel>
absl::Status AllowShared(Kernel kernel, int64_t bytes) {
  int device = 0, most = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  if (bytes > most) return absl::InvalidArgumentError(absl::StrCat("size: a line needs ", bytes, " shared bytes"));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  return absl::OkStatus();
}

template <typename Kernel, typename... Arguments>
Work Launch(Kernel kernel, dim3 blocks, dim3 threads, int64_t shared, cudaStream_t stream, Arguments... arguments) {
  return [=] {
    kernel<<<blocks, threads, shared, stream>>>(arguments...);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  };
}

int RoundUp(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

template <int kRadius>
absl::StatusOr<Work> MakePassOfRadius(const ExecContext& ctx, Smoothing variant, const Pass& p, int axis,
                                      const Window& window, const float* in, float* out) {
  const cudaStream_t stream = CudaStream(ctx);
  const int64_t padded = p.length + 2 * window.radius;
  if (variant == Smoothing::kA1) {
    const dim3 blocks((p.floats + kThreads - 1) / kThreads);
    return Launch(NaiveKernel<kRadius>, blocks, dim3(kThreads), 0, stream, in, out, p, window);
  }
  if (variant == Smoothing::kA2) {
    const int64_t shared = padded * sizeof(float);
    INTRAWARP_RETURN_IF_ERROR(AllowShared(LineKernel<kRadius>, shared));
    const dim3 blocks(p.inner * p.outer), threads(std::min(RoundUp(p.length, 32), 1024));
    return Launch(LineKernel<kRadius>, blocks, threads, shared, stream, in, out, p, window);
  }
  if (axis == 0) {
    constexpr int kRows = 8;
    const int row_floats = 2 * RoundUp(window.radius, 4) + RoundUp(p.length, 4) + 8;
    const int64_t shared = int64_t{kRows} * row_floats * sizeof(float);
    INTRAWARP_RETURN_IF_ERROR(AllowShared(RowsKernel<kRadius>, shared));
    const dim3 blocks((p.outer + kRows - 1) / kRows), threads(32, kRows);
    return Launch(RowsKernel<kRadius>, blocks, threads, shared, stream, in, out, p, window, row_floats);
  }
  const int64_t shared = padded * kColumns * sizeof(float);
  INTRAWARP_RETURN_IF_ERROR(AllowShared(ColumnsKernel<kRadius>, shared));
  const dim3 blocks((p.inner + kColumns - 1) / kColumns, p.outer), threads(kColumns, 16);
  return Launch(ColumnsKernel<kRadius>, blocks, threads, shared, stream, in, out, p, window);
}

}  // namespace

absl::StatusOr<Work> MakeSmoothingPass(const ExecContext& ctx, Smoothing variant, Int3 size, int axis,
                                       const std::vector<float>& weights, const float* in, float* out) {
  Window window{};
  std::copy(weights.begin(), weights.end(), window.weight);
  window.radius = static_cast<int>(weights.size()) - 1;
  const Pass pass = MakePass(size, axis);
  if (window.radius == 9) return MakePassOfRadius<9>(ctx, variant, pass, axis, window, in, out);
  if (window.radius == 5) return MakePassOfRadius<5>(ctx, variant, pass, axis, window, in, out);
  return MakePassOfRadius<0>(ctx, variant, pass, axis, window, in, out);
}

}  // namespace intrawarp::baselines::cuda
