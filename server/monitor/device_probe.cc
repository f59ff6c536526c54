// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/device_probe.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace intrawarp::server {
namespace {

constexpr size_t kBytes = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceProbe>> DeviceProbe::Create(Device& device, const DeviceMemory& memory) {
  INTRAWARP_ASSIGN_OR_RETURN(Stream stream, device.CreateStream());
  INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(kBytes, stream.view()));
  return std::unique_ptr<DeviceProbe>(new DeviceProbe(device, memory, std::move(stream), std::move(buffer)));
}

DeviceProbe::DeviceProbe(Device& device, const DeviceMemory& memory, Stream stream, Buffer buffer)
    : device_(device), stream_(std::move(stream)), buffer_(std::move(buffer)), memory_(memory), thread_([this] {
        Loop();
      }) {}

DeviceProbe::~DeviceProbe() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void DeviceProbe::Begin(Time now) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (probing_since_) return;
    probing_since_ = now;
  }
  changed_.notify_one();
}

std::optional<DeviceProbe::Time> DeviceProbe::probing_since() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return probing_since_;
}

DeviceMemory DeviceProbe::memory() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return memory_;
}

void DeviceProbe::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || probing_since_; });
    if (stopping_) return;
    lock.unlock();
    Operate();
    lock.lock();
    probing_since_.reset();
  }
}

// Errors show in the device's health.
void DeviceProbe::Operate() {
  (void)device_.Fill(buffer_.as<void>(), 0, kBytes, stream_.view());
  (void)device_.Synchronize(stream_.view());
  const absl::StatusOr<DeviceMemory> memory = device_.memory();
  if (!memory.ok()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  memory_ = *memory;
}

}  // namespace intrawarp::server
