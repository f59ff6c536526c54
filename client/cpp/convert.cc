// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/convert.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::client {
namespace {

absl::Status CheckCount(const char* field, int count, int expected) {
  if (count == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", count, " numbers instead of ", expected));
}

// A size that no int holds becomes 0, which ValidateGeometry refuses.
int AxisSize(int64_t size) { return size > std::numeric_limits<int>::max() || size < 0 ? 0 : static_cast<int>(size); }

}  // namespace

v1::Geometry ToProto(const Geometry& geometry) {
  v1::Geometry proto;
  for (int i = 0; i < 3; ++i) {
    proto.add_size(geometry.size[i]);
    proto.add_spacing(geometry.spacing[i]);
    proto.add_origin(geometry.origin[i]);
  }
  for (const auto& row : geometry.direction) {
    for (double value : row) proto.add_direction(value);
  }
  return proto;
}

absl::StatusOr<Geometry> FromProto(const v1::Geometry& proto) {
  INTRAWARP_RETURN_IF_ERROR(CheckCount("size", proto.size_size(), 3));
  INTRAWARP_RETURN_IF_ERROR(CheckCount("spacing", proto.spacing_size(), 3));
  INTRAWARP_RETURN_IF_ERROR(CheckCount("origin", proto.origin_size(), 3));
  INTRAWARP_RETURN_IF_ERROR(CheckCount("direction", proto.direction_size(), 9));
  Geometry geometry;
  for (int i = 0; i < 3; ++i) {
    geometry.size[i] = AxisSize(proto.size(i));
    geometry.spacing[i] = proto.spacing(i);
    geometry.origin[i] = proto.origin(i);
    for (int j = 0; j < 3; ++j) geometry.direction[i][j] = proto.direction(3 * i + j);
  }
  INTRAWARP_RETURN_IF_ERROR(ValidateGeometry(geometry));
  return geometry;
}

v1::Matrix ToProto(const AffineMap& map) {
  v1::Matrix proto;
  for (const auto& row : map.m) {
    for (double value : row) proto.add_values(value);
  }
  for (double value : {0.0, 0.0, 0.0, 1.0}) proto.add_values(value);
  return proto;
}

absl::StatusOr<AffineMap> FromProto(const v1::Matrix& proto) {
  INTRAWARP_RETURN_IF_ERROR(CheckCount("matrix", proto.values_size(), 16));
  for (double value : proto.values()) {
    if (!std::isfinite(value)) return absl::InvalidArgumentError("matrix: a number is not finite");
  }
  const bool homogeneous =
      proto.values(12) == 0 && proto.values(13) == 0 && proto.values(14) == 0 && proto.values(15) == 1;
  if (!homogeneous) return absl::InvalidArgumentError("matrix: the last row is not 0 0 0 1");
  AffineMap map;
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) map.m[r][c] = proto.values(4 * r + c);
  }
  return map;
}

v1::PixelType ToProto(PixelType type) {
  switch (type) {
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

}  // namespace intrawarp::client
