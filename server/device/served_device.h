// SPDX-License-Identifier: Apache-2.0
// ServedDevice: everything that a server has once for each device: the device, its probe, its watchdog, its scheduler
// and its copy lane.
//
// Thread safety: its parts have their own; construction, Start and Shutdown are the owner's.
#ifndef INTRAWARP_SERVER_DEVICE_SERVED_DEVICE_H_
#define INTRAWARP_SERVER_DEVICE_SERVED_DEVICE_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/schedule/copy_lane.h"
#include "engine/schedule/scheduler.h"
#include "server/context/server_context.h"
#include "server/monitor/active_time.h"
#include "server/monitor/device_probe.h"
#include "server/monitor/watchdog.h"

namespace intrawarp::server {

class ServedDevice {
 public:
  // `running_jobs` stands in for the scheduler's; may be empty.
  ServedDevice(std::unique_ptr<Device> device, const DeviceMemory& memory, const WatchdogOptions& watchdog,
               Watchdog::RunningJobs running_jobs);
  // Starts probe, scheduler and copy lane. Once.
  absl::Status Start(const SchedulingOptions& scheduling);
  // Waits for copies and jobs that have started. Idempotent.
  void Shutdown();

  // After Start; this outlives it.
  DeviceContext ContextIn(const ServerContext& server, int index);

  Device& device() { return *device_; }
  const Device& device() const { return *device_; }
  const DeviceProbe& probe() const { return *probe_; }
  Scheduler& jobs() { return *jobs_; }
  const Scheduler& jobs() const { return *jobs_; }
  const Watchdog& watchdog() const { return watchdog_; }
  // The memory at the start.
  const DeviceMemory& memory() const { return memory_; }
  // By the wall clock.
  std::vector<WatchedJob> RunningJobs() const;
  // One check of the watchdog; then asks the device for another sign of life.
  Watchdog::Finding Check(std::chrono::steady_clock::time_point now);

 private:
  // For Check: by the time that counts.
  std::vector<WatchedJob> WatchedJobs();
  std::optional<Watchdog::Time> ProbingSince(Watchdog::Time now);

  const Watchdog::RunningJobs running_jobs_;
  // Streams outlive what was made of them: the order is the order of need.
  const std::unique_ptr<Device> device_;
  const DeviceMemory memory_;
  std::unique_ptr<DeviceProbe> probe_;
  std::unique_ptr<Scheduler> jobs_;
  std::unique_ptr<CopyLane> copies_;
  Watchdog watchdog_;
  ActiveTime active_time_;
  ActiveTime::Duration step_{0};  // the last one
  std::vector<Standstill> lanes_;
  Standstill probing_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_DEVICE_SERVED_DEVICE_H_
