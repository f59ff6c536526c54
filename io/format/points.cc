// SPDX-License-Identifier: Apache-2.0
#include "io/format/points.h"

#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::io {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;

constexpr absl::string_view kPointHeader = "x,y,z";
constexpr absl::string_view kLandmarkHeader = "fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z";
constexpr absl::string_view kSigmaColumn = ",sigma_mm";

absl::Status LineError(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

// In lower case, without spaces.
std::string Packed(absl::string_view line) {
  std::string packed;
  for (char c : line) {
    if (!absl::ascii_isspace(static_cast<unsigned char>(c))) packed.push_back(absl::ascii_tolower(c));
  }
  return packed;
}

struct Table {
  size_t columns = 0;
  // Row by row.
  std::vector<double> cells;

  size_t rows() const { return columns == 0 ? 0 : cells.size() / columns; }
  const double* row(size_t i) const { return cells.data() + i * columns; }
};

// Appends finite numbers with commas between them, as many as there are columns.
absl::Status ParseRow(absl::string_view text, absl::Span<const std::string> columns, size_t line,
                      std::vector<double>* numbers) {
  const std::vector<absl::string_view> cells = absl::StrSplit(text, absl::MaxSplits(',', columns.size()));
  if (cells.size() != columns.size()) {
    return LineError(line, absl::StrCat("must have ", columns.size(), " numbers with commas between them"));
  }
  for (size_t i = 0; i < cells.size(); ++i) {
    const absl::StatusOr<double> value = ParseFinite(cells[i]);
    if (!value.ok()) return LineError(line, absl::StrCat(columns[i], " is ", value.status().message()));
    numbers->push_back(*value);
  }
  return absl::OkStatus();
}

// The rows of a table whose header is one of `headers`.
absl::StatusOr<Table> ParseTable(absl::string_view csv, absl::Span<const std::string> headers) {
  constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (absl::StartsWith(csv, kByteOrderMark)) csv.remove_prefix(kByteOrderMark.size());
  csv = absl::StripTrailingAsciiWhitespace(csv);
  std::vector<std::string> columns;
  Table table;
  size_t line = 0;
  for (absl::string_view text : absl::StrSplit(csv, '\n')) {
    if (++line == 1) {
      const std::string header = Packed(text);
      if (absl::c_find(headers, header) == headers.end()) {
        return LineError(1, absl::StrCat("the header must be ", absl::StrJoin(headers, " or ")));
      }
      columns = absl::StrSplit(header, ',');
      table.columns = columns.size();
      continue;
    }
    INTRAWARP_RETURN_IF_ERROR(ParseRow(text, columns, line, &table.cells));
  }
  return table;
}

}  // namespace

absl::StatusOr<std::vector<Vec3d>> ParsePoints(absl::string_view csv) {
  INTRAWARP_ASSIGN_OR_RETURN(const Table table, ParseTable(csv, {std::string(kPointHeader)}));
  std::vector<Vec3d> points;
  points.reserve(table.rows());
  for (size_t i = 0; i < table.rows(); ++i) points.push_back({table.row(i)[0], table.row(i)[1], table.row(i)[2]});
  return points;
}

absl::StatusOr<std::vector<LandmarkPair>> ParseLandmarks(absl::string_view csv) {
  const std::string with_sigma = absl::StrCat(kLandmarkHeader, kSigmaColumn);
  INTRAWARP_ASSIGN_OR_RETURN(const Table table, ParseTable(csv, {std::string(kLandmarkHeader), with_sigma}));
  std::vector<LandmarkPair> landmarks;
  landmarks.reserve(table.rows());
  for (size_t i = 0; i < table.rows(); ++i) {
    const double* row = table.row(i);
    LandmarkPair pair{{row[0], row[1], row[2]}, {row[3], row[4], row[5]}, std::nullopt};
    if (table.columns > 6) pair.sigma_mm = row[6];
    landmarks.push_back(pair);
  }
  return landmarks;
}

absl::StatusOr<std::vector<LandmarkPair>> ReadLandmarks(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string csv, ReadSmallFile(path, kMaxFileBytes));
  return ParseLandmarks(csv);
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
