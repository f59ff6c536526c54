// SPDX-License-Identifier: Apache-2.0
// Log: one line an event on stderr, as key=value pairs: time, level, event, then what the caller adds. Values are
// quoted where they need it. Never a patient's data, and no ids that a client chose.
//
// A line is written when its level is at least that of its room (log_levels.h).
//
// Thread safety: safe for concurrent use; lines don't mix.
#ifndef INTRAWARP_SERVER_MONITOR_LOG_H_
#define INTRAWARP_SERVER_MONITOR_LOG_H_

#include <chrono>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace intrawarp::server {

enum class Severity { kDebug, kInfo, kWarning, kError };
inline constexpr int kSeverities = 4;
// "debug", "info", "warning", "error".
const char* NameOf(Severity severity);

// The part of the server that a line is about, as the folder that has its code: calls (rpc), frames and registrations
// (registration), sparse products (sparse), everything else (server).
enum class LogRoom { kServer, kRpc, kRegistration, kSparse };
inline constexpr int kLogRooms = 4;
const char* NameOf(LogRoom room);

using LogField = std::pair<absl::string_view, std::string>;

void Log(Severity severity, absl::string_view event, std::initializer_list<LogField> fields = {});
void Log(LogRoom room, Severity severity, absl::string_view event, absl::Span<const LogField> fields);
// Whether such a line would be written, for callers that need time to make one.
bool IsLogged(LogRoom room, Severity severity);

// The line without its end, for the given time.
std::string FormatLogLine(std::chrono::system_clock::time_point time, Severity severity, absl::string_view event,
                          absl::Span<const LogField> fields);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_LOG_H_
