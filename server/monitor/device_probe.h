// SPDX-License-Identifier: Apache-2.0
// DeviceProbe: asks a device for a sign of life, on a thread and a stream of its own, and keeps what it answered. All
// device calls that may wait for the device itself (a synchronisation, a question for its memory) are made there, so
// that neither a call of a client nor a scrape waits for them.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_MONITOR_DEVICE_PROBE_H_
#define INTRAWARP_SERVER_MONITOR_DEVICE_PROBE_H_

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"

namespace intrawarp::server {

class DeviceProbe {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `device` must outlive the probe; `memory`: what the device answered last.
  static absl::StatusOr<std::unique_ptr<DeviceProbe>> Create(Device& device, const DeviceMemory& memory);
  // Waits for an operation under way.
  ~DeviceProbe();

  // Begins an operation at `now`, unless one is under way. Does not wait.
  void Begin(Time now);
  // Since when an operation has been under way; unset: the last one has come back.
  std::optional<Time> probing_since() const;
  // The memory as of the last operation that came back.
  DeviceMemory memory() const;

 private:
  DeviceProbe(Device& device, const DeviceMemory& memory, Stream stream, Buffer buffer);
  void Loop();
  void Operate();

  Device& device_;
  const Stream stream_;
  const Buffer buffer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Time> probing_since_;
  DeviceMemory memory_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_DEVICE_PROBE_H_
