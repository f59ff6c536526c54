// SPDX-License-Identifier: Apache-2.0
#include "engine/device/cuda_device.h"
#include "engine/image/bspline.h"
#include "tests/bench/baselines/bspline_variants.h"
#include "tests/bench/baselines/texture.cuh"

namespace intrawarp::baselines::cuda {
namespace {

// Two linear interpolations stand for four weighted nodes: between nodes 0 and 1 at `low`, between 2 and 3 at `high`
// (texture coordinates; a texel's centre is at + 0.5), then between these two results with `mix`.
struct Lookup {
  float low, high, mix;
};

__device__ Lookup MakeLookup(int i, float tile) {
  const float at = i / tile, first = floorf(at);
  float w[4];
  BsplineWeights(at - first, w);
  const float g0 = w[0] + w[1], g1 = w[2] + w[3];
  return {first + 0.5f + w[1] / g0, first + 2.5f + w[3] / g1, g1};
}

__device__ float4 Lerp(float4 a, float4 b, float w) {
  return make_float4(fmaf(w, b.x - a.x, a.x), fmaf(w, b.y - a.y, a.y), fmaf(w, b.z - a.z, a.z), 0);
}

__global__ void TextureHardwareKernel(cudaTextureObject_t control, Int3 size, float tile, float4* out) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  const int z = blockIdx.z * blockDim.z + threadIdx.z;
  if (x >= size.x || y >= size.y || z >= size.z) return;
  const Lookup lx = MakeLookup(x, tile), ly = MakeLookup(y, tile), lz = MakeLookup(z, tile);
  const auto row = [&](float v, float w) {
    return Lerp(tex3D<float4>(control, lx.low, v, w), tex3D<float4>(control, lx.high, v, w), lx.mix);
  };
  const float4 low = Lerp(row(ly.low, lz.low), row(ly.high, lz.low), ly.mix);
  const float4 high = Lerp(row(ly.low, lz.high), row(ly.high, lz.high), ly.mix);
  out[(static_cast<size_t>(z) * size.y + y) * size.x + x] = Lerp(low, high, lz.mix);
}

absl::StatusOr<std::shared_ptr<Texture>> MakeFilteredTexture(const ExecContext& ctx, Int3 nodes,
                                                             const Float4* control) {
  const cudaExtent extent = make_cudaExtent(nodes.x, nodes.y, nodes.z);
  const cudaChannelFormatDesc channels = cudaCreateChannelDesc<float4>();
  cudaArray_t array = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMalloc3DArray(&array, &channels, extent));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc description{};
  description.filterMode = cudaFilterModeLinear;
  for (auto& mode : description.addressMode) mode = cudaAddressModeClamp;
  description.readMode = cudaReadModeElementType;
  cudaTextureObject_t object = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaCreateTextureObject(&object, &resource, &description, nullptr));
  auto texture = std::make_shared<Texture>(object, array);
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(const_cast<Float4*>(control), nodes.x * sizeof(float4), nodes.x, nodes.y);
  copy.dstArray = array;
  copy.extent = extent;
  copy.kind = cudaMemcpyDeviceToDevice;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemcpy3DAsync(&copy, CudaStream(ctx)));
  return texture;
}

}  // namespace

absl::StatusOr<Work> MakeTextureHardware(const ExecContext& ctx, const TiledVolume& volume, const Float4* control,
                                         float* out) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Texture> texture, MakeFilteredTexture(ctx, volume.nodes(), control));
  const cudaStream_t stream = CudaStream(ctx);
  return Work([=] {
    const dim3 threads(32, 4, 2);
    const dim3 blocks((volume.size.x + 31) / 32, (volume.size.y + 3) / 4, (volume.size.z + 1) / 2);
    TextureHardwareKernel<<<blocks, threads, 0, stream>>>(texture->object(), volume.size, volume.tile,
                                                          reinterpret_cast<float4*>(out));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  });
}

}  // namespace intrawarp::baselines::cuda
