// SPDX-License-Identifier: Apache-2.0
// Launches of kernels that do not depend on each other, so that they share the device. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_LAUNCHER_CUH_
#define INTRAWARP_ENGINE_SPARSE_CUDA_LAUNCHER_CUH_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/shared_memory.cuh"
#include "engine/sparse/cuda/row_classes.h"

namespace intrawarp::cuda::spgemm {

// Blocks of kThreads.
inline unsigned BlocksFor(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// A kernel that a Launcher launches begins with one of these. It lets the next kernel launch once all blocks of this
// one have started, and delays this kernel's completion until its predecessors have finished (programmatic dependent
// launch, from compute capability 9.0).
struct OverlapNext {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __device__ OverlapNext() { asm volatile("griddepcontrol.launch_dependents;"); }
  __device__ ~OverlapNext() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
  __device__ OverlapNext() {}
  __device__ ~OverlapNext() {}
#endif
};

// Launches kernels that do not depend on each other: none waits for the last blocks of another. Work that is put into
// the stream afterwards waits for all of them. Belongs to one thread.
class Launcher {
 public:
  explicit Launcher(const ExecContext& ctx) : ctx_(ctx) {}

  // Launches enough blocks of `threads` for `tasks`, `per_block` tasks a block, but at most `blocks_per_multiprocessor`
  // blocks a multiprocessor. Dynamic shared memory may exceed 48 KiB. No tasks, no launch.
  template <typename... Parameters, typename... Arguments>
  absl::Status LaunchCapped(int blocks_per_multiprocessor, void (*kernel)(Parameters...), int64_t tasks, int per_block,
                            int threads, int shared_bytes, Arguments... arguments) {
    if (tasks == 0) return absl::OkStatus();
    INTRAWARP_RETURN_IF_ERROR(ReadDevice());
    INTRAWARP_RETURN_IF_ERROR(AllowSharedMemory(kernel, shared_bytes));
    const int64_t most = int64_t{multiprocessors_} * blocks_per_multiprocessor,
                  blocks = (tasks + per_block - 1) / per_block;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(std::max<int64_t>(std::min(blocks, most), 1)));
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = CudaStream(ctx_);
    config.attrs = &attribute;
    config.numAttrs = launched_ && capability_ >= 9 ? 1 : 0;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaLaunchKernelEx(&config, kernel, arguments...));
    launched_ = true;
    return absl::OkStatus();
  }

  // The same for tasks of unequal length: a cap of 32 blocks evens them out over several rounds of blocks.
  template <typename Kernel, typename... Arguments>
  absl::Status LaunchUneven(Kernel kernel, int64_t tasks, int per_block, int threads, int shared_bytes,
                            Arguments... arguments) {
    return LaunchCapped(32, kernel, tasks, per_block, threads, shared_bytes, arguments...);
  }

  absl::StatusOr<int> Multiprocessors() {
    INTRAWARP_RETURN_IF_ERROR(ReadDevice());
    return multiprocessors_;
  }

 private:
  absl::Status ReadDevice() {
    if (multiprocessors_ > 0) return absl::OkStatus();
    int device = 0;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&capability_, cudaDevAttrComputeCapabilityMajor, device));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device));
    return absl::OkStatus();
  }

  const ExecContext& ctx_;
  int multiprocessors_ = 0, capability_ = 0;
  bool launched_ = false;
};

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_LAUNCHER_CUH_
