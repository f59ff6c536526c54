// SPDX-License-Identifier: Apache-2.0
// Divides one buffer into arrays. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_CARVER_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_CARVER_H_

#include <cstdint>

#include "engine/device/device.h"
#include "engine/device/exec_context.h"

namespace intrawarp::cuda::spgemm {

// Takes arrays one after another from `memory`, each aligned like arena memory. Without memory it only counts bytes, so
// that one function both sizes and divides a buffer.
class Carver {
 public:
  explicit Carver(const Buffer& memory) : memory_(memory.as<char>()) {}
  Carver() = default;

  template <typename T>
  T* Take(int64_t count) {
    T* const taken = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += static_cast<int64_t>(Arena::Rounded(count * sizeof(T)));
    return taken;
  }
  // Bytes taken so far.
  int64_t bytes() const { return bytes_; }

 private:
  char* memory_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_CARVER_H_
