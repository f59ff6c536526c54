// SPDX-License-Identifier: Apache-2.0
// Kernels with more than 48 KiB of dynamic shared memory in a block.
#ifndef INTRAWARP_ENGINE_DEVICE_SHARED_MEMORY_CUH_
#define INTRAWARP_ENGINE_DEVICE_SHARED_MEMORY_CUH_

#include <cuda_runtime.h>

#include <cstddef>

#include "absl/status/status.h"
#include "engine/device/cuda_device.h"

namespace intrawarp::cuda {

// To be called before each launch of `kernel` with `bytes` of dynamic shared memory. Safe for concurrent use: a kernel
// has one limit for all threads, so that a launch of fewer bytes must not lower it under a launch of more. It is
// therefore always set to all that the GPU has for a block.
template <typename Kernel>
absl::Status AllowSharedMemory(Kernel* kernel, size_t bytes) {
  constexpr size_t kAlwaysAllowed = 48 << 10;
  if (bytes <= kAlwaysAllowed) return absl::OkStatus();
  int device = 0, most = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  cudaFuncAttributes attributes = {};
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaFuncGetAttributes(&attributes, kernel));
  const int dynamic = most - static_cast<int>(attributes.sharedSizeBytes);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic));
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_DEVICE_SHARED_MEMORY_CUH_
