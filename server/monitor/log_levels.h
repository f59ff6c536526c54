// SPDX-License-Identifier: Apache-2.0
// LogLevels: how talkative the log of a process is, by room, changed while it runs. A level that was set for a while
// reverts to that of the start.
//
// Thread safety: safe for concurrent use; level() takes no lock.
#ifndef INTRAWARP_SERVER_MONITOR_LOG_LEVELS_H_
#define INTRAWARP_SERVER_MONITOR_LOG_LEVELS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>

#include "absl/strings/string_view.h"
#include "server/monitor/log.h"

namespace intrawarp::server {

// nullopt for a word that NameOf gives for none.
std::optional<Severity> ParseSeverity(absl::string_view name);
std::optional<LogRoom> ParseLogRoom(absl::string_view name);

class LogLevels {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The least severity that is written.
  Severity level(LogRoom room) const { return levels_[static_cast<int>(room)].load(std::memory_order_relaxed); }
  // When Check will revert it; nullopt: never.
  std::optional<Time> until(LogRoom room) const;

  // The level of every room, now and after each that was set for a while.
  void Start(Severity level);
  // `until`: as until() tells it from now on.
  void Set(LogRoom room, Severity level, std::optional<Time> until);
  // Reverts the rooms whose time is over. True when there was one.
  bool Check(Time now);

 private:
  std::array<std::atomic<Severity>, kLogRooms> levels_ = {Severity::kInfo, Severity::kInfo, Severity::kInfo,
                                                          Severity::kInfo};
  mutable std::mutex mutex_;
  Severity start_ = Severity::kInfo;
  std::array<std::optional<Time>, kLogRooms> until_;
};

// The levels of Log, and so of every server in this process.
LogLevels& TheLogLevels();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_LOG_LEVELS_H_
