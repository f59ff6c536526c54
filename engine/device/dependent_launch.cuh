// SPDX-License-Identifier: Apache-2.0
// Kernels that follow one another on a stream: one is launched while the one before still runs (programmatic dependent
// launch, compute capability 9.0; elsewhere an ordinary launch), which hides microseconds that small volumes are bound
// by. Works on streams and in recordings. Its blocks do not take places before the last one's have left theirs: a
// multiprocessor that never is empty keeps the division into cache and shared memory that the first kernel had.
#ifndef INTRAWARP_ENGINE_DEVICE_DEPENDENT_LAUNCH_CUH_
#define INTRAWARP_ENGINE_DEVICE_DEPENDENT_LAUNCH_CUH_

#include <utility>

#include "engine/device/cuda_device.h"

namespace intrawarp::cuda {

// Every thread of a kernel that LaunchDependent launches calls it before it touches memory: the kernel before has ended
// then, and with it, as it waited, all before that one.
__device__ inline void AwaitPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

inline absl::StatusOr<bool> CanLaunchDependent() {
  int device = 0, major = 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9;
}

template <typename... Parameters, typename... Arguments>
absl::Status LaunchDependent(const ExecContext& ctx, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                             Arguments&&... arguments) {
  const absl::StatusOr<bool> can = CanLaunchDependent();
  if (!can.ok()) return can.status();
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = CudaStream(ctx);
  config.attrs = &attribute;
  config.numAttrs = *can ? 1 : 0;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
  return absl::OkStatus();
}

}  // namespace intrawarp::cuda

#endif  // INTRAWARP_ENGINE_DEVICE_DEPENDENT_LAUNCH_CUH_
