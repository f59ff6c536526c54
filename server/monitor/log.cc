// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/log.h"

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/monitor/log_levels.h"

namespace intrawarp::server {
namespace {

std::string Quoted(const std::string& value) {
  bool plain = !value.empty();
  for (char c : value) plain = plain && absl::ascii_isgraph(c) && c != '"' && c != '=' && c != '\\';
  return plain ? value : absl::StrCat("\"", absl::CEscape(value), "\"");
}

}  // namespace

const char* NameOf(Severity severity) {
  switch (severity) {
    case Severity::kDebug:
      return "debug";
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      break;
  }
  return "error";
}

const char* NameOf(LogRoom room) {
  switch (room) {
    case LogRoom::kServer:
      break;
    case LogRoom::kRpc:
      return "rpc";
    case LogRoom::kRegistration:
      return "registration";
    case LogRoom::kSparse:
      return "sparse";
  }
  return "server";
}

std::string FormatLogLine(std::chrono::system_clock::time_point time, Severity severity, absl::string_view event,
                          absl::Span<const LogField> fields) {
  std::string line =
      absl::StrCat("time=", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(time), absl::UTCTimeZone()),
                   " level=", NameOf(severity), " event=", event);
  for (const LogField& field : fields) absl::StrAppend(&line, " ", field.first, "=", Quoted(field.second));
  return line;
}

bool IsLogged(LogRoom room, Severity severity) { return severity >= TheLogLevels().level(room); }

void Log(LogRoom room, Severity severity, absl::string_view event, absl::Span<const LogField> fields) {
  if (!IsLogged(room, severity)) return;
  const std::string line = FormatLogLine(std::chrono::system_clock::now(), severity, event, fields) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: stdio locks, stderr is unbuffered
}

void Log(Severity severity, absl::string_view event, std::initializer_list<LogField> fields) {
  Log(LogRoom::kServer, severity, event, absl::MakeConstSpan(fields.begin(), fields.size()));
}

}  // namespace intrawarp::server
