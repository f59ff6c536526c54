// SPDX-License-Identifier: Apache-2.0
// FaultyDevice: a device for tests. It forwards to another one, lets chosen calls fail, wait or run a function first,
// and counts its calls and what was made through it and still lives.
//
//   FaultyDevice device(*OpenDevice("cpu"));
//   device.FailAt(3, absl::ResourceExhaustedError("full"), DeviceCall::kAllocate);  // the third allocation from now
//
// As on a real device, a failure that is UNAVAILABLE stays: every later call answers so, and health() too. Memory,
// streams and events can be given back nevertheless. What operators do to a GPU without a Device is not seen.
//
// Thread safety: safe for concurrent use. Functions of RunAt are called without a lock.
#ifndef INTRAWARP_TESTS_ENGINE_DEVICE_FAULTY_DEVICE_H_
#define INTRAWARP_TESTS_ENGINE_DEVICE_FAULTY_DEVICE_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/device/device.h"

namespace intrawarp {

// CreateStreamLike counts as kCreateStream, Warm as kAllocate.
enum class DeviceCall {
  kAllocate,
  kAllocatePinned,
  kCopy,
  kFill,
  kSynchronize,
  kCreateStream,
  kCreateEvent,
  kRecordEvent,
  kWaitEvent,
};
inline constexpr int kDeviceCalls = 9;

// What was made through the device and has not been destroyed.
struct LiveObjects {
  int64_t buffers = 0;
  int64_t buffer_bytes = 0;
  int64_t pinned_buffers = 0;
  int64_t pinned_bytes = 0;
  int64_t streams = 0;
  int64_t events = 0;
  friend bool operator==(const LiveObjects&, const LiveObjects&) = default;
};

class FaultyDevice final : public Device {
 public:
  explicit FaultyDevice(std::unique_ptr<Device> device) : device_(std::move(device)), name_(device_->name()) {}
  // With a name of its own, so that a server can tell two CPU devices apart.
  FaultyDevice(std::unique_ptr<Device> device, std::string name) : device_(std::move(device)), name_(std::move(name)) {}

  // Faults. `nth` counts calls from now on, 1 is the next; those of `kind`, or all. Each fault strikes once.
  // The call has no effect but to return `status`.
  void FailAt(int64_t nth, absl::Status status, std::optional<DeviceCall> kind = std::nullopt);
  // The call begins with `before`, on the caller's thread; for a slow device, say.
  void RunAt(int64_t nth, std::function<void()> before, std::optional<DeviceCall> kind = std::nullopt);
  // The call waits for Release, as on a device that hangs.
  void BlockAt(int64_t nth, std::optional<DeviceCall> kind = std::nullopt);
  // Waits until a call is blocked.
  void AwaitBlocked();
  // Lets every blocked call go on, or fail with `status`.
  void Release(absl::Status status = absl::OkStatus());
  // Faults that have not struck are forgotten.
  void Disarm();

  // Calls so far, those that failed among them.
  int64_t calls() const;
  int64_t calls(DeviceCall kind) const;
  LiveObjects live() const;

  DeviceKind kind() const override { return device_->kind(); }
  const std::string& name() const override { return name_; }
  const std::string& model() const override { return device_->model(); }
  absl::StatusOr<DeviceMemory> memory() const override;
  absl::Status health() const override;
  absl::StatusOr<Stream> CreateStream(Partition partition) override;
  absl::StatusOr<Stream> CreateStreamLike(StreamView like) override;
  bool partitioned() const override { return device_->partitioned(); }
  int multiprocessors(Partition partition) const override { return device_->multiprocessors(partition); }
  absl::Status Warm(int64_t bytes) override;
  absl::StatusOr<Event> CreateEvent() override;
  absl::StatusOr<Buffer> Allocate(size_t bytes, StreamView stream) override;
  absl::StatusOr<PinnedBuffer> AllocatePinned(size_t bytes) override;
  absl::Status Copy(void* to, const void* from, size_t bytes, StreamView stream) override;
  absl::Status Fill(void* to, uint8_t value, size_t bytes, StreamView stream) override;
  absl::Status Synchronize(StreamView stream) override;

 private:
  struct Fault {
    int64_t left = 0;
    std::optional<DeviceCall> kind;
    // In place of the call when it fails.
    std::function<absl::Status()> act;
  };

  void DestroyStream(void* handle) override;
  void DestroyEvent(void* handle) override;
  absl::Status RecordEvent(void* handle, StreamView stream) override;
  absl::Status WaitEvent(void* handle) override;
  void Free(void* data, StreamView stream) override;
  void FreePinned(void* data) override;

  // Counts a call and lets the faults strike that it completes; OK: the call may go on.
  absl::Status Begin(DeviceCall kind);
  std::vector<Fault> TakeFaults(DeviceCall kind);
  absl::Status Block();
  absl::StatusOr<Stream> Keep(absl::StatusOr<Stream> made);

  const std::unique_ptr<Device> device_;
  const std::string name_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::array<int64_t, kDeviceCalls> calls_ = {};
  std::vector<Fault> faults_;
  absl::Status failure_;  // once it is UNAVAILABLE
  int blocked_ = 0;
  int64_t releases_ = 0;
  absl::Status release_status_;
  // What device_ made. Ours have the same address or handle; streams of the CPU share one.
  std::unordered_map<void*, Buffer> buffers_;
  std::unordered_map<void*, PinnedBuffer> pinned_;
  std::multimap<void*, Stream> streams_;
  std::unordered_map<void*, std::unique_ptr<Event>> events_;  // by the address of the Event
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_DEVICE_FAULTY_DEVICE_H_
