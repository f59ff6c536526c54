// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/convolution_schemes.h"
#include "tests/bench/baselines/texture.cuh"

namespace intrawarp::baselines::cuda {
namespace {

constexpr int kThreads = 256;

// Intrinsics that the compiler does not fuse.
struct Ops {
  using V = float;
  static __device__ float Add(float a, float b) { return __fadd_rn(a, b); }
  static __device__ float Sub(float a, float b) { return __fsub_rn(a, b); }
  static __device__ float Mul(float a, float b) { return __fmul_rn(a, b); }
  static __device__ float MulAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
  static __device__ float Zero() { return 0; }
};
#define BASELINES_INLINE __device__ __forceinline__
#include "tests/bench/baselines/convolution_summation.inc"

struct Line {
  int at, length, stride;
};

__device__ Line FindLine(int voxel, Int3 size, int axis) {
  const int row = voxel / size.x, z = row / size.y;
  if (axis == 0) return {voxel - row * size.x, size.x, 1};
  if (axis == 1) return {row - z * size.y, size.y, size.x};
  return {z, size.z, size.x * size.y};
}

// A thread makes a voxel; image and window come through the texture path.
template <Summation kSummation, bool kBranch, int kUnroll>
__global__ void ConvolveKernel(cudaTextureObject_t image, cudaTextureObject_t window, Int3 size, int axis, int radius,
                               float4* out) {
  const int voxel = blockIdx.x * kThreads + threadIdx.x;
  if (voxel >= size.x * size.y * size.z) return;
  const Line line = FindLine(voxel, size, axis);
  const int first = line.at - radius, base = voxel - radius * line.stride, width = 2 * radius + 1;
  Accumulator<kSummation, Ops> x, y, z;
  const auto add = [&](int i) {
    const float4 value = tex1Dfetch<float4>(image, base + i * line.stride);
    const float weight = tex1Dfetch<float>(window, i);
    x.Add(value.x, weight);
    y.Add(value.y, weight);
    z.Add(value.z, weight);
  };
  if constexpr (kBranch) {
#pragma unroll kUnroll
    for (int i = 0; i < width; ++i) {
      if (0 <= first + i && first + i < line.length) add(i);
    }
  } else {
    const int high = min(width, line.length - first);
#pragma unroll kUnroll
    for (int i = max(0, -first); i < high; ++i) add(i);
  }
  out[voxel] = make_float4(x.Result(), y.Result(), z.Result(), 0);
}

using Kernel = void (*)(cudaTextureObject_t, cudaTextureObject_t, Int3, int, int, float4*);

template <Summation kSummation, bool kBranch>
Kernel UnrolledKernel(int unroll) {
  if (unroll == 5) return ConvolveKernel<kSummation, kBranch, 5>;
  if (unroll == 20) return ConvolveKernel<kSummation, kBranch, 20>;
  return unroll == 1 ? ConvolveKernel<kSummation, kBranch, 1> : nullptr;
}

template <Summation kSummation>
Kernel LoopKernel(WindowLoop loop) {
  return loop.branch ? UnrolledKernel<kSummation, true>(loop.unroll) : UnrolledKernel<kSummation, false>(loop.unroll);
}

Kernel FindKernel(Summation summation, WindowLoop loop) {
  switch (summation) {
    case Summation::kPlain:
      return LoopKernel<Summation::kPlain>(loop);
    case Summation::kKahan:
      return LoopKernel<Summation::kKahan>(loop);
    case Summation::kPichat:
      return LoopKernel<Summation::kPichat>(loop);
    case Summation::kFma:
      return LoopKernel<Summation::kFma>(loop);
    case Summation::kPichatFma:
      return LoopKernel<Summation::kPichatFma>(loop);
    case Summation::kKahanFma:
      return LoopKernel<Summation::kKahanFma>(loop);
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Work> MakeConvolution(const ExecContext& ctx, Summation summation, WindowLoop loop,
                                     const Convolution& convolution, const float* in, float* out) {
  const Kernel kernel = FindKernel(summation, loop);
  if (kernel == nullptr) return absl::InvalidArgumentError("unroll: not 1, 5 or 20");
  const Int3 size = convolution.size;
  const int axis = convolution.axis, radius = convolution.radius();
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  const size_t bytes = convolution.window.size() * sizeof(float);
  INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer, ctx.device().Allocate(bytes, ctx.stream()));
  const auto window = std::make_shared<Buffer>(std::move(buffer));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(window->as<void>(), convolution.window.data(), bytes, ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Texture> image_texture, MakeLinearTexture<float4>(in, voxels));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Texture> window_texture,
                             MakeLinearTexture<float>(window->as<void>(), convolution.window.size()));
  const cudaStream_t stream = CudaStream(ctx);
  return Work([=] {
    const unsigned blocks = (voxels + kThreads - 1) / kThreads;
    kernel<<<blocks, kThreads, 0, stream>>>(image_texture->object(), window_texture->object(), size, axis, radius,
                                            reinterpret_cast<float4*>(out));
    (void)window;  // kept until the last run
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  });
}

}  // namespace intrawarp::baselines::cuda
