// SPDX-License-Identifier: Apache-2.0
// Lists of points as CSV: a header line "x,y,z", then one point a line; LPS millimetres. Lists of landmarks, pairs of
// points that belong together: "fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z", which ",sigma_mm" may follow.
//
// Spaces around numbers, CRLF line ends and empty lines at the end are accepted; any other line that does not
// have as many finite numbers as the header has names is INVALID_ARGUMENT "line N: ...". Numbers are written so that
// they read back exactly. Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_POINTS_H_
#define INTRAWARP_IO_FORMAT_POINTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/geometry/vec.h"

namespace intrawarp::io {

absl::StatusOr<std::vector<Vec3d>> ParsePoints(absl::string_view csv);
std::string FormatPoints(absl::Span<const Vec3d> points);

struct LandmarkPair {
  Vec3d fixed, moving;
  // The standard deviation of their distance along each axis; absent where the list has none.
  std::optional<double> sigma_mm;
};
absl::StatusOr<std::vector<LandmarkPair>> ParseLandmarks(absl::string_view csv);
absl::StatusOr<std::vector<LandmarkPair>> ReadLandmarks(const std::string& path);

// A file above 256 MiB is RESOURCE_EXHAUSTED.
absl::StatusOr<std::vector<Vec3d>> ReadPoints(const std::string& path);
absl::Status WritePoints(const std::string& path, absl::Span<const Vec3d> points);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_POINTS_H_
