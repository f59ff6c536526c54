// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/log.h"

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace intrawarp::server {
namespace {

const char* SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return "info";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "error";
}

std::string Quoted(const std::string& value) {
  bool plain = !value.empty();
  for (char c : value) plain = plain && absl::ascii_isgraph(c) && c != '"' && c != '=' && c != '\\';
  return plain ? value : absl::StrCat("\"", absl::CEscape(value), "\"");
}

}  // namespace

std::string FormatLogLine(std::chrono::system_clock::time_point time, Severity severity, absl::string_view event,
                          std::initializer_list<LogField> fields) {
  std::string line =
      absl::StrCat("time=", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(time), absl::UTCTimeZone()),
                   " level=", SeverityName(severity), " event=", event);
  for (const LogField& field : fields) absl::StrAppend(&line, " ", field.first, "=", Quoted(field.second));
  return line;
}

void Log(Severity severity, absl::string_view event, std::initializer_list<LogField> fields) {
  const std::string line = FormatLogLine(std::chrono::system_clock::now(), severity, event, fields) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: stdio locks, stderr is unbuffered
}

}  // namespace intrawarp::server
