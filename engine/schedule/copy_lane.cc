// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/copy_lane.h"

#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/loop_pause.h"

namespace intrawarp {
namespace {

absl::Status ShuttingDown() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

absl::StatusOr<std::unique_ptr<CopyLane>> CopyLane::Create(Device& device, std::function<void()> give_way) {
  INTRAWARP_ASSIGN_OR_RETURN(Stream stream, device.CreateStream(Partition::kBatch));
  std::unique_ptr<CopyLane> lane(new CopyLane(device, std::move(stream), std::move(give_way)));
  lane->ready_.get_future().wait();
  return lane;
}

CopyLane::CopyLane(Device& device, Stream stream, std::function<void()> give_way)
    : device_(device), stream_(std::move(stream)), give_way_(std::move(give_way)), thread_([this] { Loop(); }) {}

CopyLane::~CopyLane() { Shutdown(); }

absl::Status CopyLane::Submit(Copy copy) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return ShuttingDown();
    waiting_.push_back(std::move(copy));
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void CopyLane::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  std::call_once(joined_, [this] { thread_.join(); });
}

int64_t CopyLane::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(waiting_.size()) + (running_ ? 1 : 0);
}

void CopyLane::Loop() {
  Arena none;
  const ExecContext ctx(device_, stream_.view(), none);
  // Kernels are launched for the thread's current GPU, which a call of the device makes this one.
  (void)device_.Synchronize(stream_.view());
  std::optional<LoopPause> pause;
  const bool gives_way = give_way_ && device_.kind() == DeviceKind::kCpu;
  if (gives_way) pause.emplace(give_way_);
  ready_.set_value();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    Copy copy = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = true;
    const bool stopping = stopping_;
    lock.unlock();
    if (stopping) {
      copy(ShuttingDown());
    } else {
      if (gives_way) give_way_();
      copy(&ctx);
    }
    copy = nullptr;  // what it holds is released before the lane counts as idle
    lock.lock();
    running_ = false;
  }
}

}  // namespace intrawarp
