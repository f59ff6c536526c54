// SPDX-License-Identifier: Apache-2.0
// CountingDevice: another device that counts the bytes allocated through it and not yet freed.
#ifndef INTRAWARP_TESTS_SERVER_COUNTING_DEVICE_H_
#define INTRAWARP_TESTS_SERVER_COUNTING_DEVICE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/device/device.h"

namespace intrawarp {

// `inner` must outlive this. Thread-safe.
class CountingDevice final : public Device {
 public:
  explicit CountingDevice(Device& inner) : inner_(inner) {}

  int64_t bytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return bytes_;
  }
  int64_t peak_bytes() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return peak_bytes_;
  }

  DeviceKind kind() const override { return inner_.kind(); }
  const std::string& name() const override { return inner_.name(); }
  const std::string& model() const override { return inner_.model(); }
  absl::StatusOr<DeviceMemory> memory() const override { return inner_.memory(); }
  absl::Status health() const override { return inner_.health(); }
  absl::StatusOr<Stream> CreateStream(Partition partition) override { return inner_.CreateStream(partition); }
  absl::StatusOr<Stream> CreateStreamLike(StreamView like) override { return inner_.CreateStreamLike(like); }
  bool partitioned() const override { return inner_.partitioned(); }
  absl::StatusOr<Event> CreateEvent() override { return inner_.CreateEvent(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes, StreamView stream) override {
    absl::StatusOr<Buffer> buffer = inner_.Allocate(bytes, stream);
    if (!buffer.ok()) return buffer;
    void* const data = buffer->as<void>();
    std::lock_guard<std::mutex> lock(mutex_);
    bytes_ += static_cast<int64_t>(bytes);
    peak_bytes_ = std::max(peak_bytes_, bytes_);
    buffers_[data] = *std::move(buffer);
    return Buffer(this, data, bytes, stream);
  }
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t bytes) override { return inner_.AllocatePinned(bytes); }
  absl::Status Copy(void* to, const void* from, size_t bytes, StreamView stream) override {
    return inner_.Copy(to, from, bytes, stream);
  }
  absl::Status Fill(void* to, uint8_t value, size_t bytes, StreamView stream) override {
    return inner_.Fill(to, value, bytes, stream);
  }
  absl::Status Synchronize(StreamView stream) override { return inner_.Synchronize(stream); }

 private:
  // Streams, events and pinned memory are the inner device's.
  void DestroyStream(void*) override {}
  void DestroyEvent(void*) override {}
  absl::Status RecordEvent(void*, StreamView) override { return absl::OkStatus(); }
  absl::Status WaitEvent(void*) override { return absl::OkStatus(); }
  void FreePinned(void*) override {}
  void Free(void* data, StreamView) override {
    Buffer freed;  // after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = buffers_.find(data);
    freed = std::move(it->second);
    bytes_ -= static_cast<int64_t>(freed.bytes());
    buffers_.erase(it);
  }

  Device& inner_;
  mutable std::mutex mutex_;
  int64_t bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::map<void*, Buffer> buffers_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_SERVER_COUNTING_DEVICE_H_
