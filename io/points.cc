// SPDX-License-Identifier: Apache-2.0
#include "io/points.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "io/file.h"

namespace intrawarp::io {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr const char* kColumn[3] = {"x", "y", "z"};

absl::Status LineError(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

bool IsHeader(absl::string_view line) {
  std::string packed;
  for (char c : line) {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c))) packed.push_back(absl::ascii_tolower(c));
  }
  return packed == "x,y,z";
}

absl::StatusOr<Vec3d> ParsePoint(absl::string_view text, size_t line) {
  const std::vector<absl::string_view> cells = absl::StrSplit(text, absl::MaxSplits(',', 3));
  if (cells.size() != 3) return LineError(line, "must have three numbers with commas between them");
  Vec3d point;
  for (int a = 0; a < 3; ++a) {
    const absl::StatusOr<double> value = ParseFinite(cells[a]);
    if (!value.ok()) return LineError(line, absl::StrCat(kColumn[a], " is ", value.status().message()));
    point[a] = *value;
  }
  return point;
}

}  // namespace

absl::StatusOr<std::vector<Vec3d>> ParsePoints(absl::string_view csv) {
  constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (absl::StartsWith(csv, kByteOrderMark)) csv.remove_prefix(kByteOrderMark.size());
  csv = absl::StripTrailingAsciiWhitespace(csv);
  std::vector<Vec3d> points;
  size_t line = 0;
  for (absl::string_view text : absl::StrSplit(csv, '\n')) {
    if (++line == 1) {
      if (!IsHeader(text)) return LineError(1, "the header must be x,y,z");
      continue;
    }
    INTRAWARP_ASSIGN_OR_RETURN(const Vec3d point, ParsePoint(text, line));
    points.push_back(point);
  }
  return points;
}

std::string FormatPoints(absl::Span<const Vec3d> points) {
  std::string csv = "x,y,z\n";
  for (const Vec3d& p : points) {
    absl::StrAppend(&csv, FormatDouble(p.x), ",", FormatDouble(p.y), ",", FormatDouble(p.z), "\n");
  }
  return csv;
}

absl::StatusOr<std::vector<Vec3d>> ReadPoints(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string csv, ReadSmallFile(path, kMaxFileBytes));
  return ParsePoints(csv);
}

absl::Status WritePoints(const std::string& path, absl::Span<const Vec3d> points) {
  return WriteSmallFile(path, FormatPoints(points));
}

}  // namespace intrawarp::io
