// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/device/faulty_device.h"

#include <numeric>
#include <utility>

#include "engine/base/status_macros.h"

namespace intrawarp {

void FaultyDevice::FailAt(int64_t nth, absl::Status status, std::optional<DeviceCall> kind) {
  std::lock_guard<std::mutex> lock(mutex_);
  faults_.push_back({nth, kind, [status = std::move(status)] { return status; }});
}

void FaultyDevice::RunAt(int64_t nth, std::function<void()> before, std::optional<DeviceCall> kind) {
  std::lock_guard<std::mutex> lock(mutex_);
  faults_.push_back({nth, kind, [before = std::move(before)] {
                       before();
                       return absl::OkStatus();
                     }});
}

void FaultyDevice::BlockAt(int64_t nth, std::optional<DeviceCall> kind) {
  std::lock_guard<std::mutex> lock(mutex_);
  faults_.push_back({nth, kind, [this] { return Block(); }});
}

void FaultyDevice::AwaitBlocked() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return blocked_ > 0; });
}

void FaultyDevice::Release(absl::Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++releases_;
  release_status_ = std::move(status);
  changed_.notify_all();
}

void FaultyDevice::Disarm() {
  std::lock_guard<std::mutex> lock(mutex_);
  faults_.clear();
}

int64_t FaultyDevice::calls() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::accumulate(calls_.begin(), calls_.end(), int64_t{0});
}

int64_t FaultyDevice::calls(DeviceCall kind) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_[static_cast<int>(kind)];
}

LiveObjects FaultyDevice::live() const {
  std::lock_guard<std::mutex> lock(mutex_);
  LiveObjects live;
  for (const auto& [data, buffer] : buffers_) live.buffer_bytes += static_cast<int64_t>(buffer.bytes());
  for (const auto& [data, buffer] : pinned_) live.pinned_bytes += static_cast<int64_t>(buffer.bytes());
  live.buffers = static_cast<int64_t>(buffers_.size());
  live.pinned_buffers = static_cast<int64_t>(pinned_.size());
  live.streams = static_cast<int64_t>(streams_.size());
  live.events = static_cast<int64_t>(events_.size());
  return live;
}

absl::Status FaultyDevice::Block() {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t before = releases_;
  ++blocked_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return releases_ > before; });
  --blocked_;
  return release_status_;
}

std::vector<FaultyDevice::Fault> FaultyDevice::TakeFaults(DeviceCall kind) {
  std::vector<Fault> striking, waiting;
  for (Fault& fault : faults_) {
    if (!fault.kind || *fault.kind == kind) --fault.left;
    (fault.left == 0 ? striking : waiting).push_back(std::move(fault));
  }
  faults_ = std::move(waiting);
  return striking;
}

absl::Status FaultyDevice::Begin(DeviceCall kind) {
  std::vector<Fault> striking;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++calls_[static_cast<int>(kind)];
    INTRAWARP_RETURN_IF_ERROR(failure_);
    striking = TakeFaults(kind);
  }
  for (const Fault& fault : striking) {
    absl::Status status = fault.act();
    if (status.ok()) continue;
    std::lock_guard<std::mutex> lock(mutex_);
    if (status.code() == absl::StatusCode::kUnavailable) failure_ = status;
    return status;
  }
  return absl::OkStatus();
}

absl::Status FaultyDevice::health() const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_RETURN_IF_ERROR(failure_);
  }
  return device_->health();
}

absl::StatusOr<DeviceMemory> FaultyDevice::memory() const {
  INTRAWARP_RETURN_IF_ERROR(health());
  return device_->memory();
}

absl::StatusOr<Stream> FaultyDevice::Keep(absl::StatusOr<Stream> made) {
  if (!made.ok()) return made.status();
  void* const handle = made->view().handle();
  std::lock_guard<std::mutex> lock(mutex_);
  streams_.emplace(handle, *std::move(made));
  return Stream(this, handle);
}

absl::StatusOr<Stream> FaultyDevice::CreateStream(Partition partition) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kCreateStream));
  return Keep(device_->CreateStream(partition));
}

absl::StatusOr<Stream> FaultyDevice::CreateStreamLike(StreamView like) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kCreateStream));
  return Keep(device_->CreateStreamLike(like));
}

absl::Status FaultyDevice::Warm(int64_t bytes) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kAllocate));
  return device_->Warm(bytes);
}

absl::StatusOr<Event> FaultyDevice::CreateEvent() {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kCreateEvent));
  INTRAWARP_ASSIGN_OR_RETURN(Event made, device_->CreateEvent());
  auto event = std::make_unique<Event>(std::move(made));
  void* const handle = event.get();
  std::lock_guard<std::mutex> lock(mutex_);
  events_.emplace(handle, std::move(event));
  return Event(this, handle);
}

absl::StatusOr<Buffer> FaultyDevice::Allocate(size_t bytes, StreamView stream) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kAllocate));
  INTRAWARP_ASSIGN_OR_RETURN(Buffer made, device_->Allocate(bytes, stream));
  void* const data = made.as<void>();
  std::lock_guard<std::mutex> lock(mutex_);
  buffers_.emplace(data, std::move(made));
  return Buffer(this, data, bytes, stream);
}

absl::StatusOr<PinnedBuffer> FaultyDevice::AllocatePinned(size_t bytes) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kAllocatePinned));
  INTRAWARP_ASSIGN_OR_RETURN(PinnedBuffer made, device_->AllocatePinned(bytes));
  void* const data = made.as<void>();
  std::lock_guard<std::mutex> lock(mutex_);
  pinned_.emplace(data, std::move(made));
  return PinnedBuffer(this, data, bytes);
}

absl::Status FaultyDevice::Copy(void* to, const void* from, size_t bytes, StreamView stream) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kCopy));
  return device_->Copy(to, from, bytes, stream);
}

absl::Status FaultyDevice::Fill(void* to, uint8_t value, size_t bytes, StreamView stream) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kFill));
  return device_->Fill(to, value, bytes, stream);
}

absl::Status FaultyDevice::Synchronize(StreamView stream) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kSynchronize));
  return device_->Synchronize(stream);
}

absl::Status FaultyDevice::RecordEvent(void* handle, StreamView stream) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kRecordEvent));
  return static_cast<Event*>(handle)->Record(stream);
}

absl::Status FaultyDevice::WaitEvent(void* handle) {
  INTRAWARP_RETURN_IF_ERROR(Begin(DeviceCall::kWaitEvent));
  return static_cast<Event*>(handle)->Wait();
}

// What is taken out of a table is destroyed without the lock, as that may wait for the device; it leaves the table
// before the device can hand out its address again.
void FaultyDevice::DestroyStream(void* handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto stream = streams_.extract(streams_.find(handle));
  lock.unlock();
}

void FaultyDevice::DestroyEvent(void* handle) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto event = events_.extract(handle);
  lock.unlock();
}

void FaultyDevice::Free(void* data, StreamView) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto buffer = buffers_.extract(data);
  lock.unlock();
}

void FaultyDevice::FreePinned(void* data) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto buffer = pinned_.extract(data);
  lock.unlock();
}

}  // namespace intrawarp
