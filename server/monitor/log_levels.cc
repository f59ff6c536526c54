// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/log_levels.h"

namespace intrawarp::server {
namespace {

template <typename Kind>
std::optional<Kind> Parse(absl::string_view name, int kinds) {
  for (int i = 0; i < kinds; ++i) {
    if (name == NameOf(static_cast<Kind>(i))) return static_cast<Kind>(i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<Severity> ParseSeverity(absl::string_view name) { return Parse<Severity>(name, kSeverities); }
std::optional<LogRoom> ParseLogRoom(absl::string_view name) { return Parse<LogRoom>(name, kLogRooms); }

std::optional<LogLevels::Time> LogLevels::until(LogRoom room) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return until_[static_cast<int>(room)];
}

void LogLevels::Start(Severity level) {
  std::lock_guard<std::mutex> lock(mutex_);
  start_ = level;
  until_ = {};
  for (std::atomic<Severity>& each : levels_) each = level;
}

void LogLevels::Set(LogRoom room, Severity level, std::optional<Time> until) {
  std::lock_guard<std::mutex> lock(mutex_);
  levels_[static_cast<int>(room)] = level;
  until_[static_cast<int>(room)] = until;
}

bool LogLevels::Check(Time now) {
  std::lock_guard<std::mutex> lock(mutex_);
  bool any = false;
  for (int i = 0; i < kLogRooms; ++i) {
    if (!until_[i] || now < *until_[i]) continue;
    until_[i].reset();
    levels_[i] = start_;
    any = true;
  }
  return any;
}

LogLevels& TheLogLevels() {
  static auto* const levels = new LogLevels();
  return *levels;
}

}  // namespace intrawarp::server
