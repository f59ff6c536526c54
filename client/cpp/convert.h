// SPDX-License-Identifier: Apache-2.0
// Between the types of the wire and those of the engine. Free functions; thread-safe.
#ifndef INTRAWARP_CLIENT_CPP_CONVERT_H_
#define INTRAWARP_CLIENT_CPP_CONVERT_H_

#include "absl/status/statusor.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::client {

v1::Geometry ToProto(const Geometry& geometry);
// INVALID_ARGUMENT, naming the field, for a wrong count of numbers and as ValidateGeometry.
absl::StatusOr<Geometry> FromProto(const v1::Geometry& proto);

v1::Matrix ToProto(const AffineMap& map);
// INVALID_ARGUMENT unless there are 16 finite numbers and the last row is 0 0 0 1.
absl::StatusOr<AffineMap> FromProto(const v1::Matrix& proto);

v1::PixelType ToProto(PixelType type);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_CONVERT_H_
