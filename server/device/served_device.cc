// SPDX-License-Identifier: Apache-2.0
#include "server/device/served_device.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace intrawarp::server {

ServedDevice::ServedDevice(std::unique_ptr<Device> device, const DeviceMemory& memory, const WatchdogOptions& watchdog,
                           Watchdog::RunningJobs running_jobs)
    : running_jobs_(std::move(running_jobs)),
      device_(std::move(device)),
      memory_(memory),
      watchdog_(watchdog, [this] { return RunningJobs(); }) {}

absl::Status ServedDevice::Start(const SchedulingOptions& scheduling) {
  INTRAWARP_ASSIGN_OR_RETURN(probe_, DeviceProbe::Create(*device_, memory_));
  INTRAWARP_ASSIGN_OR_RETURN(jobs_, Scheduler::Create(*device_, scheduling));
  INTRAWARP_ASSIGN_OR_RETURN(copies_, CopyLane::Create(*device_));
  return absl::OkStatus();
}

void ServedDevice::Shutdown() {
  if (copies_ != nullptr) copies_->Shutdown();
  if (jobs_ != nullptr) jobs_->Shutdown();
}

DeviceContext ServedDevice::ContextIn(const ServerContext& server, int index) {
  return DeviceContext{server, index, *device_, *probe_, watchdog_, *jobs_, *copies_};
}

std::vector<WatchedJob> ServedDevice::RunningJobs() const {
  if (running_jobs_) return running_jobs_();
  std::vector<WatchedJob> watched;
  for (const RunningJob& job : jobs_->running()) {
    watched.push_back({job.job_class, job.since_start, job.since_checkpoint});
  }
  return watched;
}

Watchdog::Finding ServedDevice::Check(std::chrono::steady_clock::time_point now) {
  const Watchdog::Finding finding = watchdog_.Check(now, {probe_->probing_since(), !device_->health().ok()});
  probe_->Begin(now);
  return finding;
}

}  // namespace intrawarp::server
