// SPDX-License-Identifier: Apache-2.0
// CudaPartitions: two green contexts of a GPU, one for frames and one for batch work, on disjoint multiprocessors.
//
// A kernel runs in the green context of the stream that it is launched on, whatever context is current to the thread
// (CUDA runtime API, "Execution Context Management": resources are inferred from the stream). So threads stay in the
// primary context, and memory, events and modules are shared by all streams. L2 and memory bandwidth are shared, too.
//
// The entry points of the driver are looked up at run time: programs start on machines that have no driver.
//
// Thread safety: the const functions are safe for concurrent use.
#ifndef INTRAWARP_ENGINE_DEVICE_CUDA_PARTITIONS_H_
#define INTRAWARP_ENGINE_DEVICE_CUDA_PARTITIONS_H_

#include <cuda.h>
#include <cuda_runtime.h>

#include <memory>

#include "absl/status/statusor.h"
#include "engine/device/device.h"

namespace intrawarp {

class CudaPartitions {
 public:
  // Fewer multiprocessors than these on a side are not worth a partition.
  static constexpr int kLeastMultiprocessors = 16;

  // Gives frames `frames_multiprocessors`, rounded up to what the GPU can separate (groups of 8 on compute capability
  // 9.0), and batch the rest. 0: 8 of every 11, 96 on a GPU of 132. The GPU `ordinal` is the thread's current device
  // and has its primary context. UNIMPLEMENTED when the driver has no green contexts, FAILED_PRECONDITION when a side
  // would get less than kLeastMultiprocessors; other errors are the driver's.
  static absl::StatusOr<std::unique_ptr<CudaPartitions>> Create(int ordinal, int frames_multiprocessors);
  CudaPartitions(const CudaPartitions&) = delete;
  // Every stream of the partitions is destroyed by then.
  ~CudaPartitions();

  // `partition` is kFrames or kBatch.
  int multiprocessors(Partition partition) const { return Of(partition).multiprocessors; }
  // A stream of kFrames or kBatch; cudaStreamDestroy destroys it.
  absl::StatusOr<cudaStream_t> CreateStream(Partition partition, int priority) const;
  // kWhole for a stream of the primary context.
  absl::StatusOr<Partition> PartitionOf(cudaStream_t stream) const;

 private:
  struct Driver;
  struct Side {
    CUgreenCtx context = nullptr;
    int multiprocessors = 0;
  };

  explicit CudaPartitions(std::unique_ptr<const Driver> driver);
  absl::Status Split(int ordinal, int frames_multiprocessors);
  absl::Status Open(CUdevice device, CUdevResource resource, Side* side);
  const Side& Of(Partition partition) const { return partition == Partition::kFrames ? frames_ : batch_; }

  const std::unique_ptr<const Driver> driver_;
  Side frames_, batch_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_CUDA_PARTITIONS_H_
