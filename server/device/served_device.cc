// SPDX-License-Identifier: Apache-2.0
#include "server/device/served_device.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/loop_pause.h"

namespace intrawarp::server {

ServedDevice::ServedDevice(std::unique_ptr<Device> device, const DeviceMemory& memory, const WatchdogOptions& watchdog,
                           Watchdog::RunningJobs running_jobs)
    : running_jobs_(std::move(running_jobs)),
      device_(std::move(device)),
      memory_(memory),
      watchdog_(watchdog, [this] { return WatchedJobs(); }) {}

absl::Status ServedDevice::Start(const SchedulingOptions& scheduling) {
  INTRAWARP_ASSIGN_OR_RETURN(probe_, DeviceProbe::Create(*device_, memory_));
  INTRAWARP_ASSIGN_OR_RETURN(jobs_, Scheduler::Create(*device_, scheduling));
  // On the CPU device, where a field is evaluated on the lane: frames first, and a tenth of the time at least for it.
  const auto give_way = [this] { jobs_->AwaitFrames(9 * LoopPause::kSlice); };
  INTRAWARP_ASSIGN_OR_RETURN(copies_, CopyLane::Create(*device_, give_way));
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

std::vector<WatchedJob> ServedDevice::WatchedJobs() {
  if (running_jobs_) return running_jobs_();
  std::vector<WatchedJob> watched;
  for (const RunningJob& job : jobs_->running()) {
    if (static_cast<int>(lanes_.size()) <= job.lane) lanes_.resize(job.lane + 1);
    const auto active = lanes_[job.lane].Look(job.progress, job.since_checkpoint, step_);
    watched.push_back({job.job_class, job.since_start, job.since_checkpoint, active});
  }
  return watched;
}

std::optional<Watchdog::Time> ServedDevice::ProbingSince(Watchdog::Time now) {
  const std::optional<Watchdog::Time> since = probe_->probing_since();
  if (!since) return std::nullopt;
  return now - probing_.Look(since->time_since_epoch().count(), now - *since, step_);
}

Watchdog::Finding ServedDevice::Check(std::chrono::steady_clock::time_point now) {
  step_ = active_time_.Advance(now);
  const Watchdog::Finding finding = watchdog_.Check(now, {ProbingSince(now), !device_->health().ok()});
  probe_->Begin(now);
  return finding;
}

}  // namespace intrawarp::server
