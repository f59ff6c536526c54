// SPDX-License-Identifier: Apache-2.0
// Log: one line an event on stderr, as key=value pairs: time, level, event, then what the caller adds. Values are
// quoted where they need it. Never a patient's data, and no ids that a client chose.
//
// Thread safety: safe for concurrent use; lines don't mix.
#ifndef INTRAWARP_SERVER_MONITOR_LOG_H_
#define INTRAWARP_SERVER_MONITOR_LOG_H_

#include <chrono>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace intrawarp::server {

enum class Severity { kInfo, kWarning, kError };

using LogField = std::pair<absl::string_view, std::string>;

void Log(Severity severity, absl::string_view event, std::initializer_list<LogField> fields = {});

// The line without its end, for the given time.
std::string FormatLogLine(std::chrono::system_clock::time_point time, Severity severity, absl::string_view event,
                          std::initializer_list<LogField> fields);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_LOG_H_
