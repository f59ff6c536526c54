// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/watchdog.h"

#include <utility>

namespace intrawarp::server {

std::string Watchdog::FindHung(Time now, const DeviceSigns& signs) const {
  if (options_.timeout <= std::chrono::nanoseconds(0)) return "";
  for (const WatchedJob& job : running_()) {
    const std::chrono::nanoseconds still = job.active_since_checkpoint.value_or(job.since_checkpoint);
    if (still > options_.timeout) return kJobClassNames[static_cast<int>(job.job_class)];
  }
  return signs.probing_since && now - *signs.probing_since > options_.timeout ? "probe" : "";
}

Watchdog::Finding Watchdog::Check(Time now, const DeviceSigns& signs) {
  Finding finding;
  finding.hung = FindHung(now, signs);
  const bool seen_before = std::exchange(suspected_, !finding.hung.empty());
  if (!seen_before) finding.hung.clear();
  if (signs.lost || state_ == WatchdogState::kLost) {
    finding.state = WatchdogState::kLost;
    finding.hung.clear();
  } else if (!finding.hung.empty()) {
    finding.state = WatchdogState::kHung;
  }
  const WatchdogState before = state_.exchange(finding.state);
  finding.changed = before != finding.state;
  if (finding.state == WatchdogState::kWell) {
    gave_up_ = false;
    return finding;
  }
  if (before == WatchdogState::kWell) since_ = now;
  finding.lasted = now - since_;
  const bool too_long = options_.exit_after > std::chrono::nanoseconds(0) && finding.lasted >= options_.exit_after;
  finding.give_up = too_long && !std::exchange(gave_up_, true);
  return finding;
}

}  // namespace intrawarp::server
