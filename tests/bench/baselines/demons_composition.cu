// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "tests/bench/baselines/demons_variants.h"
#include "tests/bench/baselines/texture.cuh"

namespace intrawarp::baselines::cuda {
namespace {

using Textures = std::array<std::shared_ptr<Texture>, 3>;

const dim3 kThreads(32, 4, 2);

dim3 Blocks(Int3 size) { return dim3((size.x + 31) / 32, (size.y + 3) / 4, (size.z + 1) / 2); }

struct Position {
  int x, y, z;
};

__device__ Position ThisPosition() {
  return {static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x),
          static_cast<int>(blockIdx.y * blockDim.y + threadIdx.y),
          static_cast<int>(blockIdx.z * blockDim.z + threadIdx.z)};
}

__device__ bool IsInside(Position p, Int3 size) { return p.x < size.x && p.y < size.y && p.z < size.z; }

__device__ int64_t OffsetOf(Position p, Int3 size) { return (static_cast<int64_t>(p.z) * size.y + p.y) * size.x + p.x; }

// Two neighbours along one axis, and the weight of the second.
struct Neighbours {
  int first, second;
  float weight;
};

__device__ Neighbours MakeNeighbours(float at, int length) {
  at = fminf(fmaxf(at, 0.0f), length - 1.0f);
  const int first = min(static_cast<int>(at), max(length - 2, 0));
  return {first, min(first + 1, length - 1), at - first};
}

__device__ float Mix(float a, float b, float w) { return fmaf(w, b - a, a); }

// load(offset in a plane, component).
template <typename Load>
__device__ void ComposeVoxel(const float* inner, Int3 size, int64_t voxels, float* out, const Load& load) {
  const Position p = ThisPosition();
  if (!IsInside(p, size)) return;
  const int64_t v = OffsetOf(p, size);
  const float u[] = {inner[v], inner[voxels + v], inner[2 * voxels + v]};
  const Neighbours x = MakeNeighbours(p.x + u[0], size.x), y = MakeNeighbours(p.y + u[1], size.y),
                   z = MakeNeighbours(p.z + u[2], size.z);
  for (int c = 0; c < 3; ++c) {
    const auto row = [&](int row_y, int row_z) {
      const int64_t r = (static_cast<int64_t>(row_z) * size.y + row_y) * size.x;
      return Mix(load(r + x.first, c), load(r + x.second, c), x.weight);
    };
    const float low = Mix(row(y.first, z.first), row(y.second, z.first), y.weight);
    const float high = Mix(row(y.first, z.second), row(y.second, z.second), y.weight);
    out[c * voxels + v] = u[c] + Mix(low, high, z.weight);
  }
}

__global__ void GlobalKernel(const float* __restrict__ inner, const float* __restrict__ outer, Int3 size,
                             int64_t voxels, float* __restrict__ out) {
  ComposeVoxel(inner, size, voxels, out, [=](int64_t offset, int c) { return outer[c * voxels + offset]; });
}

__global__ void TexturePathKernel(const float* __restrict__ inner, cudaTextureObject_t x, cudaTextureObject_t y,
                                  cudaTextureObject_t z, Int3 size, int64_t voxels, float* __restrict__ out) {
  ComposeVoxel(inner, size, voxels, out, [=](int64_t offset, int c) {
    return tex1Dfetch<float>(c == 0 ? x : c == 1 ? y : z, static_cast<int>(offset));
  });
}

__global__ void FilteredPlanesKernel(const float* __restrict__ inner, cudaTextureObject_t x, cudaTextureObject_t y,
                                     cudaTextureObject_t z, Int3 size, int64_t voxels, float* __restrict__ out) {
  const Position p = ThisPosition();
  if (!IsInside(p, size)) return;
  const int64_t v = OffsetOf(p, size);
  const float ux = inner[v], uy = inner[voxels + v], uz = inner[2 * voxels + v];
  const float at_x = p.x + ux + 0.5f, at_y = p.y + uy + 0.5f, at_z = p.z + uz + 0.5f;
  out[v] = ux + tex3D<float>(x, at_x, at_y, at_z);
  out[voxels + v] = uy + tex3D<float>(y, at_x, at_y, at_z);
  out[2 * voxels + v] = uz + tex3D<float>(z, at_x, at_y, at_z);
}

__global__ void FilteredVectorsKernel(const float* __restrict__ inner, cudaTextureObject_t outer, Int3 size,
                                      int64_t voxels, float* __restrict__ out) {
  const Position p = ThisPosition();
  if (!IsInside(p, size)) return;
  const int64_t v = OffsetOf(p, size);
  const float ux = inner[v], uy = inner[voxels + v], uz = inner[2 * voxels + v];
  const float4 u = tex3D<float4>(outer, p.x + ux + 0.5f, p.y + uy + 0.5f, p.z + uz + 0.5f);
  out[v] = ux + u.x;
  out[voxels + v] = uy + u.y;
  out[2 * voxels + v] = uz + u.z;
}

__global__ void FillVectorsKernel(const float* __restrict__ planes, cudaSurfaceObject_t vectors, Int3 size,
                                  int64_t voxels) {
  const Position p = ThisPosition();
  if (!IsInside(p, size)) return;
  const int64_t v = OffsetOf(p, size);
  surf3Dwrite(make_float4(planes[v], planes[voxels + v], planes[2 * voxels + v], 0), vectors,
              p.x * static_cast<int>(sizeof(float4)), p.y, p.z);
}

class Surface {
 public:
  explicit Surface(cudaSurfaceObject_t object) : object_(object) {}
  Surface(const Surface&) = delete;
  ~Surface() { cudaDestroySurfaceObject(object_); }
  cudaSurfaceObject_t object() const { return object_; }

 private:
  cudaSurfaceObject_t object_;
};

struct FilteredArray {
  cudaArray_t array = nullptr;  // the texture's
  std::shared_ptr<Texture> texture;
};

cudaResourceDesc ResourceOf(cudaArray_t array) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  return resource;
}

template <typename T>
absl::StatusOr<FilteredArray> MakeFilteredArray(Int3 size) {
  FilteredArray result;
  const cudaChannelFormatDesc channels = cudaCreateChannelDesc<T>();
  INTRAWARP_CUDA_RETURN_IF_ERROR(
      cudaMalloc3DArray(&result.array, &channels, make_cudaExtent(size.x, size.y, size.z), cudaArraySurfaceLoadStore));
  result.texture = std::make_shared<Texture>(0, result.array);
  const cudaResourceDesc resource = ResourceOf(result.array);
  cudaTextureDesc description{};
  description.filterMode = cudaFilterModeLinear;
  for (auto& mode : description.addressMode) mode = cudaAddressModeClamp;
  description.readMode = cudaReadModeElementType;
  cudaTextureObject_t object = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaCreateTextureObject(&object, &resource, &description, nullptr));
  result.texture->set_object(object);
  return result;
}

absl::StatusOr<CompositionWork> MakeTexturePath(const ExecContext& ctx, Int3 size, const float* inner,
                                                const float* outer, float* out) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  // A texture begins at a multiple of 512 bytes, where a plane does not: planes of their own.
  Textures textures;
  INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer, ctx.device().Allocate(3 * (voxels * sizeof(float) + 512), ctx.stream()));
  const auto planes = std::make_shared<Buffer>(std::move(buffer));
  const int64_t pitch = (voxels * static_cast<int64_t>(sizeof(float)) + 511) / 512 * 512;
  for (int c = 0; c < 3; ++c) {
    char* const plane = planes->as<char>() + c * pitch;
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(plane, outer + c * voxels, voxels * sizeof(float), ctx.stream()));
    INTRAWARP_ASSIGN_OR_RETURN(textures[c], MakeLinearTexture<float>(plane, voxels));
  }
  const cudaStream_t stream = CudaStream(ctx);
  return CompositionWork{nullptr, [=] {
                           TexturePathKernel<<<Blocks(size), kThreads, 0, stream>>>(
                               inner, textures[0]->object(), textures[1]->object(), textures[2]->object(), size, voxels,
                               out);
                           (void)planes;
                           INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
                           return absl::OkStatus();
                         }};
}

absl::Status FillArray(cudaArray_t array, const float* plane, Int3 size, cudaStream_t stream) {
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(const_cast<float*>(plane), size.x * sizeof(float), size.x, size.y);
  copy.dstArray = array;
  copy.extent = make_cudaExtent(size.x, size.y, size.z);
  copy.kind = cudaMemcpyDeviceToDevice;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemcpy3DAsync(&copy, stream));
  return absl::OkStatus();
}

absl::StatusOr<CompositionWork> MakeFilteredPlanes(const ExecContext& ctx, Int3 size, const float* inner,
                                                   const float* outer, float* out) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  const cudaStream_t stream = CudaStream(ctx);
  std::array<FilteredArray, 3> planes;
  for (FilteredArray& plane : planes) {
    INTRAWARP_ASSIGN_OR_RETURN(plane, MakeFilteredArray<float>(size));
  }
  CompositionWork work;
  work.fill = [=] {
    for (int c = 0; c < 3; ++c) {
      INTRAWARP_RETURN_IF_ERROR(FillArray(planes[c].array, outer + c * voxels, size, stream));
    }
    return absl::OkStatus();
  };
  work.compose = [=] {
    FilteredPlanesKernel<<<Blocks(size), kThreads, 0, stream>>>(inner, planes[0].texture->object(),
                                                                planes[1].texture->object(),
                                                                planes[2].texture->object(), size, voxels, out);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  };
  return work;
}

absl::StatusOr<CompositionWork> MakeFilteredVectors(const ExecContext& ctx, Int3 size, const float* inner,
                                                    const float* outer, float* out) {
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  const cudaStream_t stream = CudaStream(ctx);
  INTRAWARP_ASSIGN_OR_RETURN(const FilteredArray vectors, MakeFilteredArray<float4>(size));
  const cudaResourceDesc resource = ResourceOf(vectors.array);
  cudaSurfaceObject_t object = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaCreateSurfaceObject(&object, &resource));
  const auto surface = std::make_shared<Surface>(object);
  CompositionWork work;
  work.fill = [=] {
    FillVectorsKernel<<<Blocks(size), kThreads, 0, stream>>>(outer, surface->object(), size, voxels);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  };
  work.compose = [=] {
    FilteredVectorsKernel<<<Blocks(size), kThreads, 0, stream>>>(inner, vectors.texture->object(), size, voxels, out);
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
    return absl::OkStatus();
  };
  return work;
}

CompositionWork MakeGlobal(const ExecContext& ctx, Int3 size, const float* inner, const float* outer, float* out) {
  const cudaStream_t stream = CudaStream(ctx);
  const int64_t voxels = int64_t{size.x} * size.y * size.z;
  return {nullptr, [=] {
            GlobalKernel<<<Blocks(size), kThreads, 0, stream>>>(inner, outer, size, voxels, out);
            INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetLastError());
            return absl::OkStatus();
          }};
}

}  // namespace

absl::StatusOr<CompositionWork> MakeComposition(const ExecContext& ctx, Composition variant, Int3 size,
                                                const float* inner, const float* outer, float* out) {
  switch (variant) {
    case Composition::kB1:
      return MakeGlobal(ctx, size, inner, outer, out);
    case Composition::kB2:
      return MakeTexturePath(ctx, size, inner, outer, out);
    case Composition::kB3:
      return MakeFilteredPlanes(ctx, size, inner, outer, out);
    case Composition::kB4:
      return MakeFilteredVectors(ctx, size, inner, outer, out);
  }
  return absl::InvalidArgumentError("variant");
}

}  // namespace intrawarp::baselines::cuda
