// SPDX-License-Identifier: Apache-2.0
// A device that counts what is allocated on it.
#ifndef INTRAWARP_TESTS_ENGINE_SPARSE_COUNTING_DEVICE_H_
#define INTRAWARP_TESTS_ENGINE_SPARSE_COUNTING_DEVICE_H_

#include <string>

#include "engine/device/device.h"

namespace intrawarp {

// Forwards to a device, which owns all that is made here, and sums the bytes of the buffers. Not thread-safe.
class CountingDevice final : public Device {
 public:
  explicit CountingDevice(Device& device) : device_(device) {}
  int64_t allocated_bytes() const { return allocated_bytes_; }

  DeviceKind kind() const override { return device_.kind(); }
  const std::string& name() const override { return device_.name(); }
  const std::string& model() const override { return device_.model(); }
  absl::StatusOr<DeviceMemory> memory() const override { return device_.memory(); }
  absl::Status health() const override { return device_.health(); }
  absl::StatusOr<Stream> CreateStream(Partition partition) override { return device_.CreateStream(partition); }
  absl::StatusOr<Stream> CreateStreamLike(StreamView like) override { return device_.CreateStreamLike(like); }
  bool partitioned() const override { return device_.partitioned(); }
  absl::StatusOr<Event> CreateEvent() override { return device_.CreateEvent(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes, StreamView stream) override {
    allocated_bytes_ += static_cast<int64_t>(bytes);
    return device_.Allocate(bytes, stream);
  }
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t bytes) override { return device_.AllocatePinned(bytes); }
  absl::Status Copy(void* to, const void* from, size_t bytes, StreamView stream) override {
    return device_.Copy(to, from, bytes, stream);
  }
  absl::Status Fill(void* to, uint8_t value, size_t bytes, StreamView stream) override {
    return device_.Fill(to, value, bytes, stream);
  }
  absl::Status Synchronize(StreamView stream) override { return device_.Synchronize(stream); }

 private:
  // Never called: what is made here belongs to the other device.
  void DestroyStream(void*) override {}
  void DestroyEvent(void*) override {}
  absl::Status RecordEvent(void*, StreamView) override { return absl::OkStatus(); }
  absl::Status WaitEvent(void*) override { return absl::OkStatus(); }
  void Free(void*, StreamView) override {}
  void FreePinned(void*) override {}

  Device& device_;
  int64_t allocated_bytes_ = 0;
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_SPARSE_COUNTING_DEVICE_H_
