// SPDX-License-Identifier: Apache-2.0
// Device: the CPU or one CUDA GPU, behind one interface: streams, memory, copies, health.
//
// Work is stream-ordered: a call that takes a Stream enqueues and returns; Synchronize waits. On the CPU device every
// call has finished when it returns, which satisfies the same contract.
//
// Errors: RESOURCE_EXHAUSTED when memory runs out; UNAVAILABLE once the device has failed in a way that only a restart
// repairs (a sticky CUDA error): from then on every call answers so, and health() too.
//
// Thread safety: Device is safe for concurrent use. A Stream, Event or buffer belongs to one thread at a time.
#ifndef INTRAWARP_ENGINE_DEVICE_DEVICE_H_
#define INTRAWARP_ENGINE_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp {

class Device;

enum class DeviceKind { kCpu, kCuda };

// The multiprocessors that a stream's kernels may occupy.
enum class Partition { kWhole, kFrames, kBatch };

// A non-owning name of a stream of one device. Not made from integers or null, so that no default stream slips in.
class StreamView {
 public:
  explicit StreamView(void* handle) : handle_(handle) {}
  StreamView(int) = delete;
  StreamView(std::nullptr_t) = delete;
  // cudaStream_t on a CUDA device; meaningless on the CPU.
  void* handle() const { return handle_; }

 private:
  void* handle_;
};

// Owns a stream. Destruction waits for the work in it.
class Stream {
 public:
  Stream(Device* device, void* handle) : device_(device), handle_(handle) {}
  Stream(Stream&& other) noexcept : device_(std::exchange(other.device_, nullptr)), handle_(other.handle_) {}
  Stream& operator=(Stream&&) = delete;
  ~Stream();
  StreamView view() const { return StreamView(handle_); }

 private:
  Device* device_;
  void* handle_;
};

// A point in a stream that another thread or stream can wait for.
class Event {
 public:
  Event(Device* device, void* handle) : device_(device), handle_(handle) {}
  Event(Event&& other) noexcept : device_(std::exchange(other.device_, nullptr)), handle_(other.handle_) {}
  Event& operator=(Event&&) = delete;
  ~Event();
  absl::Status Record(StreamView stream);
  // Blocks until the work before Record is done.
  absl::Status Wait() const;

 private:
  Device* device_;
  void* handle_;
};

// Owns device memory (256-byte aligned). Freed in the order of the stream that it was allocated on, which must
// outlive it. Not copyable: there would be no place to name a stream.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, void* data, size_t bytes, StreamView stream)
      : device_(device), data_(data), bytes_(bytes), stream_(stream.handle()) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Buffer();
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  bool empty() const { return data_ == nullptr; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* stream_ = nullptr;
};

// Owns host memory that the device copies to and from at full speed (page-locked on CUDA). Expensive to make: take it
// from a PinnedPool on any path that repeats.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Device* device, void* data, size_t bytes) : device_(device), data_(data), bytes_(bytes) {}
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedBuffer();
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  bool empty() const { return data_ == nullptr; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  // "cpu" or "cuda:N".
  virtual const std::string& name() const = 0;
  // What the hardware calls itself.
  virtual const std::string& model() const = 0;
  virtual absl::StatusOr<DeviceMemory> memory() const = 0;
  // OK, or why the device can no longer be used.
  virtual absl::Status health() const = 0;

  virtual absl::StatusOr<Stream> CreateStream(Partition partition = Partition::kWhole) = 0;
  // A stream of the partition and priority of `like`, a stream of this device.
  virtual absl::StatusOr<Stream> CreateStreamLike(StreamView /*like*/) { return CreateStream(); }
  // Whether kFrames and kBatch are disjoint multiprocessors; otherwise they differ by stream priority alone (frames
  // high), or, on the CPU, not at all. Kernels of kWhole take multiprocessors of both: nothing runs there while frames
  // are due.
  virtual bool partitioned() const = 0;
  // The multiprocessors of a partition; 0 on a device that has none.
  virtual int multiprocessors(Partition /*partition*/) const { return 0; }
  // Makes the device's pool hold at least `bytes` that no buffer uses, so that later allocations of as many in all do
  // not wait for the driver. Waits. RESOURCE_EXHAUSTED beyond the free memory, INVALID_ARGUMENT below 0.
  virtual absl::Status Warm(int64_t bytes) {
    return bytes < 0 ? absl::InvalidArgumentError("a pool cannot hold less than nothing") : absl::OkStatus();
  }
  virtual absl::StatusOr<Event> CreateEvent() = 0;
  virtual absl::StatusOr<Buffer> Allocate(size_t bytes, StreamView stream) = 0;
  virtual absl::StatusOr<PinnedBuffer> AllocatePinned(size_t bytes) = 0;
  // Between any two of device memory, pinned and ordinary host memory. With ordinary host memory the call may wait.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes, StreamView stream) = 0;
  virtual absl::Status Fill(void* to, uint8_t value, size_t bytes, StreamView stream) = 0;
  virtual absl::Status Synchronize(StreamView stream) = 0;

 private:
  friend class Stream;
  friend class Event;
  friend class Buffer;
  friend class PinnedBuffer;
  virtual void DestroyStream(void* handle) = 0;
  virtual void DestroyEvent(void* handle) = 0;
  virtual absl::Status RecordEvent(void* handle, StreamView stream) = 0;
  virtual absl::Status WaitEvent(void* handle) = 0;
  virtual void Free(void* data, StreamView stream) = 0;
  virtual void FreePinned(void* data) = 0;
};

inline Stream::~Stream() {
  if (device_ != nullptr) device_->DestroyStream(handle_);
}
inline Event::~Event() {
  if (device_ != nullptr) device_->DestroyEvent(handle_);
}
inline absl::Status Event::Record(StreamView stream) { return device_->RecordEvent(handle_, stream); }
inline absl::Status Event::Wait() const { return device_->WaitEvent(handle_); }
inline Buffer::~Buffer() {
  if (data_ != nullptr) device_->Free(data_, StreamView(stream_));
}
inline PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) device_->FreePinned(data_);
}

// Opens a device: "cpu", "cuda", "cuda:N", or "auto" (the first CUDA device that works, else the CPU).
// INVALID_ARGUMENT for another word, NOT_FOUND when there is no such device, UNIMPLEMENTED for CUDA in a build without.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(absl::string_view spec);

// Every device that works here, the CPU first. For tests, which run on each.
std::vector<std::unique_ptr<Device>> AllDevices();

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_DEVICE_H_
