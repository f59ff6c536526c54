// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "engine/device/cuda_device.h"
#include "engine/image/convert_kernels.h"

namespace intrawarp::cuda {
namespace {

constexpr int kThreads = 256;

// Four neighbours, moved in one access where they fit 16 bytes.
template <typename T>
struct alignas(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) Four {
  T v[4];
};

template <typename T>
bool AlignedForFour(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(Four<T>) == 0;
}

// out[i] = map(in[i]). `vectors` is the number of whole fours to move as such: all, or none when a pointer is
// unaligned. Each thread reads what it replaces before it writes, so `in` may be `out` where elements have one size.
template <typename In, typename Out, typename Map>
__global__ void MapKernel(const In* in, Out* out, int64_t count, int64_t vectors, Map map) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = first; i < vectors; i += step) {
    const Four<In> a = reinterpret_cast<const Four<In>*>(in)[i];
    Four<Out> b;
#pragma unroll
    for (int k = 0; k < 4; ++k) b.v[k] = map(a.v[k]);
    reinterpret_cast<Four<Out>*>(out)[i] = b;
  }
  for (int64_t i = vectors * 4 + first; i < count; i += step) out[i] = map(in[i]);
}

template <typename In, typename Out, typename Map>
absl::Status LaunchMap(const ExecContext& ctx, const In* in, Out* out, int64_t count, Map map) {
  const int64_t vectors = AlignedForFour(in) && AlignedForFour(out) ? count / 4 : 0;
  const int64_t work = vectors > 0 ? vectors : count;
  const int blocks = static_cast<int>(std::min<int64_t>((work + kThreads - 1) / kThreads, 1 << 20));
  MapKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(in, out, count, vectors, map);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

struct Rescale {
  double slope, intercept;
  // Not contracted to a fused multiply-add, so that the CPU device gives the same bits.
  template <typename T>
  __device__ float operator()(T pixel) const {
    return static_cast<float>(__dadd_rn(__dmul_rn(static_cast<double>(pixel), slope), intercept));
  }
};

struct IsNonzero {
  __device__ uint8_t operator()(float value) const { return value != 0.0f; }
};

__global__ void QuantizeKernel(const float* weights, const float* mask, int64_t count, uint8_t* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const bool counts = mask == nullptr || mask[i] != 0.0f;
  out[i] = counts ? WeightByte(weights[i]) : 0;
}

}  // namespace

absl::Status ConvertPixels(const ExecContext& ctx, const void* pixels, PixelType type, double slope, double intercept,
                           VolumeView out) {
  return VisitPixelType(type, [&](auto pixel) {
    return LaunchMap(ctx, static_cast<const decltype(pixel)*>(pixels), out.data, out.geometry.voxels(),
                     Rescale{slope, intercept});
  });
}

absl::Status BinarizeMask(const ExecContext& ctx, ConstVolumeView volume, MaskView out) {
  return LaunchMap(ctx, volume.data, out.data, volume.geometry.voxels(), IsNonzero());
}

absl::Status QuantizeWeights(const ExecContext& ctx, ConstVolumeView weights, ConstVolumeView mask, MaskView out) {
  const int64_t count = out.geometry.voxels();
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  QuantizeKernel<<<blocks, kThreads, 0, CudaStream(ctx)>>>(weights.data, mask.data, count, out.data);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda
