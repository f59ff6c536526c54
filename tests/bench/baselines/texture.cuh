// SPDX-License-Identifier: Apache-2.0
// Textures that are given back with their last owner, and textures over linear device memory, read with tex1Dfetch: the
// path that NiftyReg's kernels load through.
#ifndef INTRAWARP_TESTS_BENCH_BASELINES_TEXTURE_CUH_
#define INTRAWARP_TESTS_BENCH_BASELINES_TEXTURE_CUH_

#include <memory>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"

namespace intrawarp::baselines::cuda {

class Texture {
 public:
  explicit Texture(cudaTextureObject_t object, cudaArray_t array = nullptr) : object_(object), array_(array) {}
  Texture(const Texture&) = delete;
  ~Texture() {
    cudaDestroyTextureObject(object_);
    if (array_ != nullptr) cudaFreeArray(array_);
  }
  cudaTextureObject_t object() const { return object_; }
  void set_object(cudaTextureObject_t object) { object_ = object; }

 private:
  cudaTextureObject_t object_;
  cudaArray_t array_;  // owned; null for linear memory
};

template <typename T>
absl::StatusOr<std::shared_ptr<Texture>> MakeLinearTexture(const void* data, size_t count) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = const_cast<void*>(data);
  resource.res.linear.desc = cudaCreateChannelDesc<T>();
  resource.res.linear.sizeInBytes = count * sizeof(T);
  cudaTextureDesc description{};
  description.readMode = cudaReadModeElementType;
  cudaTextureObject_t object = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaCreateTextureObject(&object, &resource, &description, nullptr));
  return std::make_shared<Texture>(object);
}

}  // namespace intrawarp::baselines::cuda

#endif  // INTRAWARP_TESTS_BENCH_BASELINES_TEXTURE_CUH_
