// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"

namespace intrawarp {
namespace {

// Errors that leave the context usable. Any other is taken as sticky: the device needs a new process.
bool IsRecoverable(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
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

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, std::string model, cudaMemPool_t pool)
      : ordinal_(ordinal), pool_(pool), name_(absl::StrCat("cuda:", ordinal)), model_(std::move(model)) {}

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

  bool partitioned() const override { return false; }
  absl::StatusOr<Stream> CreateStream(Partition) override {
    INTRAWARP_RETURN_IF_ERROR(Use());
    cudaStream_t stream = nullptr;
    INTRAWARP_RETURN_IF_ERROR(Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    return Stream(this, stream);
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
    INTRAWARP_RETURN_IF_ERROR(Use());
    void* p = nullptr;
    INTRAWARP_RETURN_IF_ERROR(
        Check(cudaHostAlloc(&p, std::max<size_t>(bytes, 1), cudaHostAllocDefault), "cudaHostAlloc"));
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
    (void)cudaSetDevice(ordinal_);
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
    (void)cudaSetDevice(ordinal_);
    (void)cudaFreeAsync(data, Handle(stream));
  }
  void FreePinned(void* data) override { (void)cudaFreeHost(data); }

  const int ordinal_;
  const cudaMemPool_t pool_;
  const std::string name_;
  const std::string model_;
  std::atomic<cudaError_t> sticky_{cudaSuccess};
};

// A kernel of this build must run on the device.
absl::Status Probe() {
  int* word = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMalloc(&word, sizeof(int)));
  ProbeKernel<<<1, 1>>>(word);
  const cudaError_t launched = cudaGetLastError(), ran = cudaDeviceSynchronize();
  (void)cudaFree(word);
  if (launched == cudaErrorNoKernelImageForDevice) {
    return absl::FailedPreconditionError("this build has no code for this GPU");
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(launched);
  INTRAWARP_CUDA_RETURN_IF_ERROR(ran);
  return absl::OkStatus();
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

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal) {
  const int count = CudaDeviceCount();
  if (ordinal < 0 || ordinal >= count) {
    return absl::NotFoundError(absl::StrCat("no CUDA device ", ordinal, "; there are ", count));
  }
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaSetDevice(ordinal));
  cudaDeviceProp properties;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, ordinal));
  if (absl::Status s = Probe(); !s.ok()) return s;
  cudaMemPool_t pool = nullptr;
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaDeviceGetDefaultMemPool(&pool, ordinal));
  // Freed memory stays in the pool: a job that repeats never waits for the driver.
  uint64_t keep = std::numeric_limits<uint64_t>::max();
  INTRAWARP_CUDA_RETURN_IF_ERROR(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  return std::make_unique<CudaDevice>(ordinal, properties.name, pool);
}

}  // namespace intrawarp
