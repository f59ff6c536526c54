// SPDX-License-Identifier: Apache-2.0
// The CUDA device, and how its errors become statuses. Only in builds with CUDA.
#ifndef INTRAWARP_ENGINE_DEVICE_CUDA_DEVICE_H_
#define INTRAWARP_ENGINE_DEVICE_CUDA_DEVICE_H_

#include <cuda_runtime.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/device/exec_context.h"

namespace intrawarp {

// RESOURCE_EXHAUSTED for memory, UNAVAILABLE for an error after which the context is lost, INTERNAL otherwise; the text
// names the call and the error. Clears an error that is not sticky.
absl::Status CudaStatus(cudaError_t error, const char* call);

#define INTRAWARP_CUDA_RETURN_IF_ERROR(call)                                                      \
  do {                                                                                            \
    const cudaError_t intrawarp_error_ = (call);                                                  \
    if (intrawarp_error_ != cudaSuccess) return ::intrawarp::CudaStatus(intrawarp_error_, #call); \
  } while (false)

inline cudaStream_t CudaStream(const ExecContext& ctx) { return static_cast<cudaStream_t>(ctx.stream().handle()); }

struct CudaPartitionOptions {
  // False: streams of kFrames and kBatch differ by priority alone, as on a GPU or a driver without green contexts.
  bool green_contexts = true;
  // As CudaPartitions::Create takes them.
  int frames_multiprocessors = 0;
};

// NOT_FOUND when there is no such GPU or no driver; FAILED_PRECONDITION when this build has no code for it. A GPU or a
// driver that refuses the green contexts of `partitions` is opened without them.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal, const CudaPartitionOptions& partitions = {});
int CudaDeviceCount();

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_CUDA_DEVICE_H_
