// SPDX-License-Identifier: Apache-2.0
#include "wire/convert.h"

#include <cmath>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view description) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, description);
}

absl::Status ExpectCount(int count, int expected, const char* field) {
  if (count == expected) return absl::OkStatus();
  return Invalid(field, absl::StrCat("has ", count, " numbers, must have ", expected));
}

}  // namespace

absl::StatusOr<Geometry> GeometryFromProto(const v1::Geometry& from) {
  INTRAWARP_RETURN_IF_ERROR(ExpectCount(from.size_size(), 3, "size"));
  INTRAWARP_RETURN_IF_ERROR(ExpectCount(from.spacing_size(), 3, "spacing"));
  INTRAWARP_RETURN_IF_ERROR(ExpectCount(from.origin_size(), 3, "origin"));
  INTRAWARP_RETURN_IF_ERROR(ExpectCount(from.direction_size(), 9, "direction"));
  Geometry to;
  for (int a = 0; a < 3; ++a) {
    if (from.size(a) < 1 || from.size(a) > kMaxAxis) {
      return Invalid("size", absl::StrCat(std::string(1, "xyz"[a]), " is ", from.size(a), ", must be 1 to ", kMaxAxis));
    }
    to.size[a] = static_cast<int>(from.size(a));
    to.spacing[a] = from.spacing(a);
    to.origin[a] = from.origin(a);
    for (int c = 0; c < 3; ++c) to.direction[a][c] = from.direction(3 * a + c);
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(to));
  return to;
}

v1::Geometry GeometryToProto(const Geometry& from) {
  v1::Geometry to;
  for (int a = 0; a < 3; ++a) {
    to.add_size(from.size[a]);
    to.add_spacing(from.spacing[a]);
    to.add_origin(from.origin[a]);
    for (int c = 0; c < 3; ++c) to.add_direction(from.direction[a][c]);
  }
  return to;
}

absl::StatusOr<PixelType> PixelTypeFromProto(v1::PixelType from) {
  switch (from) {
    case v1::PIXEL_TYPE_UINT8:
      return PixelType::kUint8;
    case v1::PIXEL_TYPE_INT8:
      return PixelType::kInt8;
    case v1::PIXEL_TYPE_UINT16:
      return PixelType::kUint16;
    case v1::PIXEL_TYPE_INT16:
      return PixelType::kInt16;
    case v1::PIXEL_TYPE_UINT32:
      return PixelType::kUint32;
    case v1::PIXEL_TYPE_INT32:
      return PixelType::kInt32;
    case v1::PIXEL_TYPE_FLOAT32:
      return PixelType::kFloat32;
    case v1::PIXEL_TYPE_FLOAT64:
      return PixelType::kFloat64;
    default:
      return Invalid("pixel_type", absl::StrCat(static_cast<int>(from), " is not a pixel type"));
  }
}

v1::PixelType PixelTypeToProto(PixelType from) {
  switch (from) {
    case PixelType::kUint8:
      return v1::PIXEL_TYPE_UINT8;
    case PixelType::kInt8:
      return v1::PIXEL_TYPE_INT8;
    case PixelType::kUint16:
      return v1::PIXEL_TYPE_UINT16;
    case PixelType::kInt16:
      return v1::PIXEL_TYPE_INT16;
    case PixelType::kUint32:
      return v1::PIXEL_TYPE_UINT32;
    case PixelType::kInt32:
      return v1::PIXEL_TYPE_INT32;
    case PixelType::kFloat32:
      return v1::PIXEL_TYPE_FLOAT32;
    case PixelType::kFloat64:
      return v1::PIXEL_TYPE_FLOAT64;
  }
  return v1::PIXEL_TYPE_UNSPECIFIED;
}

absl::StatusOr<AffineMap> AffineMapFromProto(const v1::AffineMap& from) {
  INTRAWARP_RETURN_IF_ERROR(ExpectCount(from.values_size(), 16, "values"));
  for (double value : from.values()) {
    if (!std::isfinite(value)) return Invalid("values", "must be finite");
  }
  for (int c = 0; c < 4; ++c) {
    if (from.values(12 + c) != (c == 3 ? 1.0 : 0.0)) {
      return Invalid("values", "the last row must be 0 0 0 1");
    }
  }
  AffineMap to;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) to.m[r][c] = from.values(4 * r + c);
  }
  return to;
}

v1::AffineMap AffineMapToProto(const AffineMap& from) {
  v1::AffineMap to;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) to.add_values(from.m[r][c]);
  }
  for (int c = 0; c < 4; ++c) to.add_values(c == 3 ? 1.0 : 0.0);
  return to;
}

absl::StatusOr<Rescale> RescaleFromProto(const v1::Rescale& from) {
  if (!std::isfinite(from.slope()) || from.slope() == 0) return Invalid("slope", "must be finite and not 0");
  if (!std::isfinite(from.intercept())) return Invalid("intercept", "must be finite");
  return Rescale{from.slope(), from.intercept()};
}

v1::Rescale RescaleToProto(const Rescale& from) {
  v1::Rescale to;
  to.set_slope(from.slope);
  to.set_intercept(from.intercept);
  return to;
}

v1::Provenance ProvenanceToProto(v1::ProvenanceSource source, absl::string_view modality, absl::string_view series,
                                 absl::string_view frame_of_reference) {
  v1::Provenance to;
  to.set_source(source);
  to.set_modality(std::string(modality));
  to.set_series_hash(absl::HexStringToBytes(series));
  to.set_frame_of_reference_hash(absl::HexStringToBytes(frame_of_reference));
  return to;
}

google::protobuf::Timestamp TimestampToProto(std::chrono::system_clock::time_point from) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(from.time_since_epoch());
  const auto seconds = std::chrono::floor<std::chrono::seconds>(ns);
  google::protobuf::Timestamp to;
  to.set_seconds(seconds.count());
  to.set_nanos(static_cast<int32_t>((ns - seconds).count()));
  return to;
}

google::protobuf::Duration DurationToProto(std::chrono::nanoseconds from) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(from);
  google::protobuf::Duration to;
  to.set_seconds(seconds.count());
  to.set_nanos(static_cast<int32_t>((from - seconds).count()));
  return to;
}

absl::StatusOr<std::chrono::nanoseconds> DurationFromProto(const google::protobuf::Duration& from,
                                                           absl::string_view field, std::chrono::hours max) {
  const auto max_seconds = std::chrono::seconds(max).count();
  const bool well_formed = from.nanos() >= 0 && from.nanos() <= 999999999 && from.seconds() >= 0;
  const bool above_max = from.seconds() > max_seconds || (from.seconds() == max_seconds && from.nanos() > 0);
  if (!well_formed || above_max || (from.seconds() == 0 && from.nanos() == 0)) {
    return Invalid(field, absl::StrCat("must be a duration above 0 and of at most ", max.count(), " hours"));
  }
  return std::chrono::seconds(from.seconds()) + std::chrono::nanoseconds(from.nanos());
}

}  // namespace intrawarp
