// SPDX-License-Identifier: Apache-2.0
// Messages of the wire to plain types and back, for clients and the server alike. Messages are validated: counts of
// repeated fields, ranges before numbers are narrowed. Errors are INVALID_ARGUMENT and name their field
// (engine/base/field_error.h) relative to the message given. Pure functions.
#ifndef INTRAWARP_WIRE_CONVERT_H_
#define INTRAWARP_WIRE_CONVERT_H_

#include <chrono>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "intrawarp/v1/common.pb.h"
#include "intrawarp/v1/volume.pb.h"

namespace intrawarp {

// Errors are also those of ValidateGeometry.
absl::StatusOr<Geometry> GeometryFromProto(const v1::Geometry& from);
v1::Geometry GeometryToProto(const Geometry& from);

// The error names "pixel_type".
absl::StatusOr<PixelType> PixelTypeFromProto(v1::PixelType from);
v1::PixelType PixelTypeToProto(PixelType from);

// The error names "values" unless there are 16 finite numbers, the last four 0 0 0 1. A singular map is accepted.
absl::StatusOr<AffineMap> AffineMapFromProto(const v1::AffineMap& from);
v1::AffineMap AffineMapToProto(const AffineMap& from);

// A stored value v means v * slope + intercept.
struct Rescale {
  double slope = 1;
  double intercept = 0;
  friend bool operator==(const Rescale&, const Rescale&) = default;
};
// The error names "slope" or "intercept" unless both are finite and the slope is not 0.
absl::StatusOr<Rescale> RescaleFromProto(const v1::Rescale& from);
v1::Rescale RescaleToProto(const Rescale& from);

// Hashes in hexadecimal, as io/dicom/dicom.h has them; empty: unknown.
v1::Provenance ProvenanceToProto(v1::ProvenanceSource source, absl::string_view modality, absl::string_view series,
                                 absl::string_view frame_of_reference);

google::protobuf::Timestamp TimestampToProto(std::chrono::system_clock::time_point from);
google::protobuf::Duration DurationToProto(std::chrono::nanoseconds from);
// The error names `field` unless the duration is well-formed, above 0 and at most `max`.
absl::StatusOr<std::chrono::nanoseconds> DurationFromProto(const google::protobuf::Duration& from,
                                                           absl::string_view field, std::chrono::hours max);

}  // namespace intrawarp

#endif  // INTRAWARP_WIRE_CONVERT_H_
