// SPDX-License-Identifier: Apache-2.0
// Watchdog: notices a job that stops checking in, a device that does not come back, and a device that is lost.
//
// It holds no thread, no device and no clock. The server's housekeeping asks it with the time and with what it sees;
// the watchdog says what that means. What stands still is judged by the time in which this process could have made
// progress (ActiveTime), not by the wall clock. A hang is believed when two checks in a row see it. A hang may pass; a
// loss does not.
//
// Thread safety: thread-compatible, but state() may be called on any thread.
#ifndef INTRAWARP_SERVER_MONITOR_WATCHDOG_H_
#define INTRAWARP_SERVER_MONITOR_WATCHDOG_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/schedule/job_class.h"

namespace intrawarp::server {

enum class WatchdogState { kWell, kHung, kLost };

// A job that has started, as the scheduler of a device tells.
struct WatchedJob {
  JobClass job_class = JobClass::kInteractive;
  std::chrono::nanoseconds since_start{0};
  // By the wall clock.
  std::chrono::nanoseconds since_checkpoint{0};
  // The part of it in which the process could have made progress; unset: all of it.
  std::optional<std::chrono::nanoseconds> active_since_checkpoint = std::nullopt;
};

// The state of a device that housekeeping sees.
struct DeviceSigns {
  // Since when the device's probe has been under way, by the time that counts; unset: it has come back.
  std::optional<std::chrono::steady_clock::time_point> probing_since;
  // The device says that only a restart repairs it.
  bool lost = false;
};

struct WatchdogOptions {
  // A job or a probe that takes longer is hung. 0: never.
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);
  // The process gives up when a hang or a loss has lasted so much longer. 0: never.
  std::chrono::nanoseconds exit_after{0};
};

class Watchdog {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using RunningJobs = std::function<std::vector<WatchedJob>()>;

  // The findings of a check.
  struct Finding {
    WatchdogState state = WatchdogState::kWell;
    // The state differs from the one of the check before.
    bool changed = false;
    // Who hangs: the class of a job ("frame"), or "probe"; empty unless the state is kHung.
    std::string hung;
    // How long the state has lasted, which is not kWell.
    std::chrono::nanoseconds lasted{0};
    // The state has lasted for exit_after. True once.
    bool give_up = false;
  };

  Watchdog(const WatchdogOptions& options, RunningJobs running) : options_(options), running_(std::move(running)) {}

  Finding Check(Time now, const DeviceSigns& signs);
  WatchdogState state() const { return state_; }

 private:
  // Who hangs; empty: nobody.
  std::string FindHung(Time now, const DeviceSigns& signs) const;

  const WatchdogOptions options_;
  const RunningJobs running_;
  std::atomic<WatchdogState> state_{WatchdogState::kWell};
  bool suspected_ = false;  // the check before has seen a hang
  Time since_;              // of a state that is not kWell
  bool gave_up_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_WATCHDOG_H_
