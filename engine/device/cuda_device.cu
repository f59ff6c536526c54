// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/device/cuda_partitions.h"
#include "engine/device/graph_pool.h"

namespace intrawarp {
namespace {

// Errors that leave the context usable. Any other is taken as sticky: the device needs a new process.
bool IsRecoverable(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorInvalidDevice:
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorNotReady:
    case cudaErrorNotSupported:
      return true;
    default:
      return false;
  }
}

__global__ void ProbeKernel(int* out) { *out = 1; }

// Lower numbers go first.
struct StreamPriorities {
  int least = 0, greatest = 0;
};

// Makes a GPU the thread's current one and puts back what was, for calls that threads of another GPU's work make, too:
// kernels of that work are launched for the current GPU.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal) {
    (void)cudaGetDevice(&before_);
    status_ = cudaSetDevice(ordinal);
  }
  ScopedDevice(const ScopedDevice&) = delete;
  ~ScopedDevice() { (void)cudaSetDevice(before_); }
  cudaError_t status() const { return status_; }

 private:
  int before_ = 0;
  cudaError_t status_ = cudaSuccess;
};

class CudaDevice final : public Device {
 public:
  // `partitions` may be null.
  CudaDevice(int ordinal, const cudaDeviceProp& properties, cudaMemPool_t pool, StreamPriorities priorities,
             std::unique_ptr<const CudaPartitions> partitions)
      : ordinal_(ordinal),
        multiprocessors_(properties.multiProcessorCount),
        pool_(pool),
        priorities_(priorities),
        name_(absl::StrCat("cuda:", ordinal)),
        model_(properties.name),
        partitions_(std::move(partitions)) {}
  // The green contexts are destroyed while the GPU is the current device.
  ~CudaDevice() override {
    (void)cudaSetDevice(ordinal_);
    DropExecutables(*this);
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const std::string& name() const override { return name_; }
  const std::string& model() const override { return model_; }

  absl::StatusOr<DeviceMemory> memory() const override {
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaSetDevice(ordinal_));
    size_t free = 0, total = 0, reserved = 0, used = 0;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free, &total));
    // What the pool holds but does not use is free to us.
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used));
    return DeviceMemory{static_cast<int64_t>(total), static_cast<int64_t>(free + (reserved - used))};
  }

  absl::Status health() const override {
    const cudaError_t error = sticky_.load();
    if (error == cudaSuccess) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(name_, " failed: ", cudaGetErrorName(error)));
  }

  absl::StatusOr<Stream> CreateStream(Partition partition) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    return CreateStream(partition, partition == Partition::kFrames ? priorities_.greatest : priorities_.least);
  }
  absl::StatusOr<Stream> CreateStreamLike(StreamView like) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    int priority = 0;
    INTRAWARP_RETURN_IF_ERROR(Check(cudaStreamGetPriority(Handle(like), &priority), "cudaStreamGetPriority"));
    Partition partition = Partition::kWhole;
    if (partitions_ != nullptr) {
      INTRAWARP_ASSIGN_OR_RETURN(partition, partitions_->PartitionOf(Handle(like)));
    }
    return CreateStream(partition, priority);
  }
  bool partitioned() const override { return partitions_ != nullptr; }
  int multiprocessors(Partition partition) const override {
    if (partitions_ == nullptr || partition == Partition::kWhole) return multiprocessors_;
    return partitions_->multiprocessors(partition);
  }
  absl::Status Warm(int64_t bytes) override {
    INTRAWARP_RETURN_IF_ERROR(Device::Warm(bytes));
    INTRAWARP_ASSIGN_OR_RETURN(const Stream stream, CreateStream(Partition::kWhole));
    // The pool keeps what is freed (OpenCudaDevice).
    INTRAWARP_RETURN_IF_ERROR(Allocate(static_cast<size_t>(bytes), stream.view()).status());
    return Synchronize(stream.view());
  }
  absl::StatusOr<Event> CreateEvent() override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    cudaEvent_t event = nullptr;
    INTRAWARP_RETURN_IF_ERROR(Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate"));
    return Event(this, event);
  }
  absl::StatusOr<Buffer> Allocate(size_t bytes, StreamView stream) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    void* p = nullptr;
    INTRAWARP_RETURN_IF_ERROR(Check(cudaMallocFromPoolAsync(&p, std::max<size_t>(bytes, 1), pool_, Handle(stream)),
                                    "cudaMallocFromPoolAsync"));
    return Buffer(this, p, bytes, stream);
  }
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t bytes) override {
    INTRAWARP_RETURN_IF_ERROR(health());
    const ScopedDevice device(ordinal_);
    INTRAWARP_RETURN_IF_ERROR(Check(device.status(), "cudaSetDevice"));
    void* p = nullptr;
    // Portable: every GPU copies to and from it at full speed.
    INTRAWARP_RETURN_IF_ERROR(
        Check(cudaHostAlloc(&p, std::max<size_t>(bytes, 1), cudaHostAllocPortable), "cudaHostAlloc"));
    return PinnedBuffer(this, p, bytes);
  }
  absl::Status Copy(void* to, const void* from, size_t bytes, StreamView stream) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    return Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Handle(stream)), "cudaMemcpyAsync");
  }
  absl::Status Fill(void* to, uint8_t value, size_t bytes, StreamView stream) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    return Check(cudaMemsetAsync(to, value, bytes, Handle(stream)), "cudaMemsetAsync");
  }
  absl::Status Synchronize(StreamView stream) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    return Check(cudaStreamSynchronize(Handle(stream)), "cudaStreamSynchronize");
  }

 private:
  static cudaStream_t Handle(StreamView stream) { return static_cast<cudaStream_t>(stream.handle()); }

  absl::StatusOr<Stream> CreateStream(Partition partition, int priority) {
    cudaStream_t stream = nullptr;
    if (partitions_ != nullptr && partition != Partition::kWhole) {
      INTRAWARP_ASSIGN_OR_RETURN(stream, partitions_->CreateStream(partition, priority));
    } else {
      INTRAWARP_RETURN_IF_ERROR(Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                                      "cudaStreamCreateWithPriority"));
    }
    return Stream(this, stream);
  }

  // Any thread may call; CUDA's current device is a property of the thread.
  absl::Status Use() {
    if (absl::Status s = health(); !s.ok()) return s;
    return Check(cudaSetDevice(ordinal_), "cudaSetDevice");
  }
  absl::Status Check(cudaError_t error, const char* call) {
    if (error == cudaSuccess) return absl::OkStatus();
    if (!IsRecoverable(error)) {
      cudaError_t none = cudaSuccess;
      sticky_.compare_exchange_strong(none, error);
    }
    return CudaStatus(error, call);
  }

  void DestroyStream(void* handle) override {
    const ScopedDevice device(ordinal_);
    (void)cudaStreamSynchronize(static_cast<cudaStream_t>(handle));
    (void)cudaStreamDestroy(static_cast<cudaStream_t>(handle));
  }
  void DestroyEvent(void* handle) override { (void)cudaEventDestroy(static_cast<cudaEvent_t>(handle)); }
  absl::Status RecordEvent(void* handle, StreamView stream) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    return Check(cudaEventRecord(static_cast<cudaEvent_t>(handle), Handle(stream)), "cudaEventRecord");
  }
  absl::Status WaitEvent(void* handle) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    return Check(cudaEventSynchronize(static_cast<cudaEvent_t>(handle)), "cudaEventSynchronize");
  }
  void Free(void* data, StreamView stream) override {
    const ScopedDevice device(ordinal_);
    (void)cudaFreeAsync(data, Handle(stream));
  }
  void FreePinned(void* data) override {
    const ScopedDevice device(ordinal_);
    (void)cudaFreeHost(data);
  }

  const int ordinal_;
  const int multiprocessors_;
  const cudaMemPool_t pool_;
  const StreamPriorities priorities_;
  const std::string name_;
  const std::string model_;
  const std::unique_ptr<const CudaPartitions> partitions_;
  std::atomic<cudaError_t> sticky_{cudaSuccess};
};

// A kernel of this build must run on the stream.
absl::Status Probe(cudaStream_t stream) {
  int* word = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMalloc(&word, sizeof(int)));
  ProbeKernel<<<1, 1, 0, stream>>>(word);
  const cudaError_t launched = cudaGetLastError(), ran = cudaStreamSynchronize(stream);
  (void)cudaFree(word);
  if (launched == cudaErrorNoKernelImageForDevice) {
    return absl::FailedPreconditionError("this build has no code for this GPU");
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(launched);
  INTRAWARP_CUDA_RETURN_IF_ERROR(ran);
  return absl::OkStatus();
}

absl::Status ProbePartition(const CudaPartitions& partitions, Partition partition) {
  INTRAWARP_ASSIGN_OR_RETURN(const cudaStream_t stream, partitions.CreateStream(partition, 0));
  const absl::Status ran = Probe(stream);
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaStreamDestroy(stream));
  return ran;
}

// Partitions in which kernels of this build run.
absl::StatusOr<std::unique_ptr<CudaPartitions>> OpenPartitions(int ordinal, int frames_multiprocessors) {
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<CudaPartitions> partitions,
                             CudaPartitions::Create(ordinal, frames_multiprocessors));
  INTRAWARP_RETURN_IF_ERROR(ProbePartition(*partitions, Partition::kFrames));
  INTRAWARP_RETURN_IF_ERROR(ProbePartition(*partitions, Partition::kBatch));
  return partitions;
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  (void)cudaGetLastError();
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return IsRecoverable(error) ? absl::InternalError(text) : absl::UnavailableError(text);
}

int CudaDeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal, const CudaPartitionOptions& partitions) {
  const int count = CudaDeviceCount();
  if (ordinal < 0 || ordinal >= count) {
    return absl::NotFoundError(absl::StrCat("no CUDA device ", ordinal, "; there are ", count));
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaSetDevice(ordinal));
  cudaDeviceProp properties;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, ordinal));
  INTRAWARP_RETURN_IF_ERROR(Probe(nullptr));
  cudaMemPool_t pool = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetDefaultMemPool(&pool, ordinal));
  // Freed memory stays in the pool: a job that repeats never waits for the driver.
  uint64_t keep = std::numeric_limits<uint64_t>::max();
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  StreamPriorities priorities;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&priorities.least, &priorities.greatest));
  std::unique_ptr<const CudaPartitions> opened;
  if (partitions.green_contexts) {
    if (auto made = OpenPartitions(ordinal, partitions.frames_multiprocessors); made.ok()) opened = *std::move(made);
  }
  return std::make_unique<CudaDevice>(ordinal, properties, pool, priorities, std::move(opened));
}

}  // namespace intrawarp
