// SPDX-License-Identifier: Apache-2.0
#include "io/format/matrix_text.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/geometry/geometry.h"
#include "io/file/file.h"

namespace intrawarp::io {
namespace {

constexpr size_t kMaxFileBytes = 1 << 16;

absl::Status LineError(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

absl::Status ParseRow(absl::string_view text, int line, double row[4]) {
  const std::vector<absl::string_view> cells = absl::StrSplit(text, absl::ByAnyChar(" \t,\r"), absl::SkipEmpty());
  if (cells.size() != 4) return LineError(line, absl::StrCat("has ", cells.size(), " numbers, must have 4"));
  for (int c = 0; c < 4; ++c) {
    const absl::StatusOr<double> value = ParseFinite(cells[c]);
    if (!value.ok()) return LineError(line, absl::StrCat("number ", c + 1, " is ", value.status().message()));
    row[c] = *value;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AffineMap> ParseMatrix(absl::string_view text) {
  double m[4][4];
  int rows = 0, line = 0;
  for (absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++line;
    const absl::string_view row = absl::StripAsciiWhitespace(raw);
    if (row.empty() || row[0] == '#') continue;
    if (rows == 4) return LineError(line, "more than 4 rows");
    INTRAWARP_RETURN_IF_ERROR(ParseRow(row, line, m[rows]));
    ++rows;
  }
  if (rows != 4) {
    return FieldError(absl::StatusCode::kInvalidArgument, "matrix", absl::StrCat("has ", rows, " rows, must have 4"));
  }
  if (m[3][0] != 0 || m[3][1] != 0 || m[3][2] != 0 || m[3][3] != 1) {
    return FieldError(absl::StatusCode::kInvalidArgument, "matrix", "the last row must be 0 0 0 1");
  }
  AffineMap map;
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) map.m[r][c] = m[r][c];
  if (IsSingular(map)) return FieldError(absl::StatusCode::kInvalidArgument, "matrix", "the linear part is singular");
  return map;
}

std::string FormatMatrix(const AffineMap& map) {
  std::string text;
  for (const auto& row : map.m) {
    absl::StrAppend(&text, FormatDouble(row[0]), " ", FormatDouble(row[1]), " ", FormatDouble(row[2]), " ",
                    FormatDouble(row[3]), "\n");
  }
  return text + "0 0 0 1\n";
}

absl::StatusOr<AffineMap> ReadMatrix(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  return ParseMatrix(text);
}

absl::Status WriteMatrix(const std::string& path, const AffineMap& map) {
  return WriteSmallFile(path, FormatMatrix(map));
}

}  // namespace intrawarp::io
