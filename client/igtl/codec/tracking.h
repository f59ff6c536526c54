// SPDX-License-Identifier: Apache-2.0
// The contents of TRANSFORM, POSITION and TDATA: poses of tools, in mm, in the coordinates of the sender (LPS or RAS is
// not told). Plain values; thread-safe functions.
#ifndef INTRAWARP_CLIENT_IGTL_CODEC_TRACKING_H_
#define INTRAWARP_CLIENT_IGTL_CODEC_TRACKING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/geometry/vec.h"

namespace intrawarp::igtl {

struct TrackedTool {
  std::string name;
  // 1: tracker, 2: 6-D instrument, 3: 3-D instrument, 4: 5-D instrument.
  uint8_t type = 2;
  AffineMap pose = AffineMap::Identity();
};

// INVALID_ARGUMENT, naming the field, for another number of bytes and for numbers that are not finite. A POSITION is a
// point with no quaternion, three of its numbers (the fourth follows, not negative) or all four.
absl::StatusOr<AffineMap> ParseTransform(absl::string_view content);
absl::StatusOr<AffineMap> ParsePosition(absl::string_view content);
absl::StatusOr<std::vector<TrackedTool>> ParseTrackingData(absl::string_view content);

std::string PackTransform(const AffineMap& pose);
// The position and all of the quaternion; the linear part of the pose is a rotation.
std::string PackPosition(const AffineMap& pose);
std::string PackTrackingData(absl::Span<const TrackedTool> tools);
// STT_TDATA: asks a tracker for TDATA every so many milliseconds.
std::string PackTrackingRequest(int interval_ms);

// The same pose where both of its coordinate systems turn from RAS to LPS, or back.
AffineMap FlipPose(const AffineMap& pose);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CODEC_TRACKING_H_
