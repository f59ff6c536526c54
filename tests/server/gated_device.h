// SPDX-License-Identifier: Apache-2.0
// A device whose allocation, page-locking and synchronisation a test can hold up, as a busy driver or a hung kernel
// does.
#ifndef INTRAWARP_TESTS_SERVER_GATED_DEVICE_H_
#define INTRAWARP_TESTS_SERVER_GATED_DEVICE_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/device/device.h"

namespace intrawarp::server {

// Open at first. Thread-safe.
class Gate {
 public:
  void Close() { Set(false); }
  void Open() { Set(true); }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  void AwaitSomebody() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }

 private:
  void Set(bool open) {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

struct DeviceGates {
  Gate allocate;     // Allocate
  Gate pinned;       // AllocatePinned
  Gate synchronize;  // Synchronize
};

// What it makes belongs to the device inside, which therefore also frees it.
class GatedDevice final : public Device {
 public:
  GatedDevice(std::unique_ptr<Device> inner, DeviceGates& gates) : inner_(std::move(inner)), gates_(gates) {}

  DeviceKind kind() const override { return inner_->kind(); }
  const std::string& name() const override { return inner_->name(); }
  const std::string& model() const override { return inner_->model(); }
  absl::StatusOr<DeviceMemory> memory() const override { return inner_->memory(); }
  absl::Status health() const override { return inner_->health(); }
  absl::StatusOr<Stream> CreateStream(Partition partition) override { return inner_->CreateStream(partition); }
  absl::StatusOr<Stream> CreateStreamLike(StreamView like) override { return inner_->CreateStreamLike(like); }
  bool partitioned() const override { return inner_->partitioned(); }
  absl::StatusOr<Event> CreateEvent() override { return inner_->CreateEvent(); }
  absl::StatusOr<Buffer> Allocate(size_t bytes, StreamView stream) override {
    gates_.allocate.Pass();
    return inner_->Allocate(bytes, stream);
  }
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t bytes) override {
    gates_.pinned.Pass();
    return inner_->AllocatePinned(bytes);
  }
  absl::Status Copy(void* to, const void* from, size_t bytes, StreamView stream) override {
    return inner_->Copy(to, from, bytes, stream);
  }
  absl::Status Fill(void* to, uint8_t value, size_t bytes, StreamView stream) override {
    return inner_->Fill(to, value, bytes, stream);
  }
  absl::Status Synchronize(StreamView stream) override {
    gates_.synchronize.Pass();
    return inner_->Synchronize(stream);
  }

 private:
  void DestroyStream(void*) override {}
  void DestroyEvent(void*) override {}
  absl::Status RecordEvent(void*, StreamView) override { return absl::OkStatus(); }
  absl::Status WaitEvent(void*) override { return absl::OkStatus(); }
  void Free(void*, StreamView) override {}
  void FreePinned(void*) override {}

  const std::unique_ptr<Device> inner_;
  DeviceGates& gates_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_GATED_DEVICE_H_
