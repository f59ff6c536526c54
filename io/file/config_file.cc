// SPDX-License-Identifier: Apache-2.0
#include "io/file/config_file.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::io {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 10;

absl::Status AtLine(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

bool IsPrintable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '\t' || absl::ascii_isprint(c); });
}

bool IsFlagName(absl::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

absl::StatusOr<ConfigEntry> ParseEntry(int line, absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos) return AtLine(line, "must be KEY = VALUE");
  const absl::string_view key = absl::StripAsciiWhitespace(text.substr(0, equals));
  const absl::string_view value = absl::StripAsciiWhitespace(text.substr(equals + 1));
  if (!IsFlagName(key)) return AtLine(line, "a key has lower-case letters, digits and underscores alone");
  if (value.empty()) return AtLine(line, absl::StrCat(key, ": has no value"));
  return ConfigEntry{line, std::string(key), std::string(value)};
}

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> ParseConfig(absl::string_view text) {
  std::vector<ConfigEntry> entries;
  int line = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++line;
    const absl::string_view stripped = absl::StripAsciiWhitespace(raw);
    if (stripped.empty() || stripped[0] == '#') continue;
    if (!IsPrintable(stripped)) return AtLine(line, "holds bytes that are not printable ASCII");
    INTRAWARP_ASSIGN_OR_RETURN(ConfigEntry entry, ParseEntry(line, stripped));
    for (const ConfigEntry& earlier : entries) {
      if (earlier.key != entry.key) continue;
      return AtLine(line, absl::StrCat(entry.key, ": stands on line ", earlier.line, " already"));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

absl::StatusOr<std::vector<ConfigEntry>> ReadConfigFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxBytes);
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat(path, ": ", text.status().message()));
  absl::StatusOr<std::vector<ConfigEntry>> entries = ParseConfig(*text);
  if (entries.ok()) return entries;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", entries.status().message()));
}

}  // namespace intrawarp::io
