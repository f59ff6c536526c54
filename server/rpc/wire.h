// SPDX-License-Identifier: Apache-2.0
// Wire messages to engine values and back. What comes from the wire is validated: counts of repeated fields, ranges
// before numbers are narrowed, products of sizes. Errors are INVALID_ARGUMENT and begin with the field's path relative
// to the message given ("size: ..."); Prefixed() (rpc_support.h) adds where that message was.
#ifndef INTRAWARP_SERVER_RPC_WIRE_H_
#define INTRAWARP_SERVER_RPC_WIRE_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/geometry.h"
#include "engine/image/volume.h"
#include "engine/schedule/latency.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::server {

absl::StatusOr<Geometry> GeometryFromProto(const v1::Geometry& from);
v1::Geometry GeometryToProto(const Geometry& from);

// "pixel_type: ...".
absl::StatusOr<PixelType> PixelTypeFromProto(v1::PixelType from);
v1::PixelType PixelTypeToProto(PixelType from);

// "values: ..." unless 16 finite numbers, the last four 0 0 0 1. A singular map is accepted.
absl::StatusOr<AffineMap> MatrixFromProto(const v1::Matrix& from);
v1::Matrix MatrixToProto(const AffineMap& from);

google::protobuf::Timestamp TimestampToProto(std::chrono::system_clock::time_point from);
google::protobuf::Duration DurationToProto(std::chrono::nanoseconds from);
// "{field}: ..." for a duration that is malformed, negative, or longer than 24 hours.
absl::StatusOr<std::chrono::nanoseconds> DurationFromProto(const google::protobuf::Duration& from,
                                                           absl::string_view field);

// Milliseconds; the phases' fields are in the order of kPhaseNames.
v1::LatencyBreakdown LatencyToProto(const LatencyBreakdown& from);

// Bytes of all voxels. INVALID_ARGUMENT "size: ..." when they overflow 63 bits.
absl::StatusOr<int64_t> ImageBytes(const Geometry& geometry, int64_t bytes_per_voxel);

// "rescale_slope: ..." or "rescale_intercept: ..." unless finite with a slope other than 0; both 0 mean 1 and 0.
struct Rescale {
  double slope = 1;
  double intercept = 0;
  friend bool operator==(const Rescale&, const Rescale&) = default;
};
absl::StatusOr<Rescale> RescaleFromProto(double slope, double intercept);
// "slope: ..." unless finite and not 0, "intercept: ..." unless finite.
absl::StatusOr<Rescale> RescaleFromProto(const v1::Rescale& from);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_WIRE_H_
