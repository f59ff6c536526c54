// SPDX-License-Identifier: Apache-2.0
// Transforms between the wire and their store. Pure functions.
#ifndef INTRAWARP_SERVER_TRANSFORM_TRANSFORM_MESSAGES_H_
#define INTRAWARP_SERVER_TRANSFORM_TRANSFORM_MESSAGES_H_

#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"
#include "intrawarp/v1/common.pb.h"
#include "intrawarp/v1/transform.pb.h"
#include "server/store/transform_store.h"

namespace intrawarp::server {

v1::Transform TransformToProto(const StoredTransform& from, bool with_report);

// As AffineMapFromProto; the error names "values" for a map that has no inverse in practice, too.
absl::StatusOr<AffineMap> InvertibleMapFromProto(const v1::AffineMap& from);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_TRANSFORM_TRANSFORM_MESSAGES_H_
