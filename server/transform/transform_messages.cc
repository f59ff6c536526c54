// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform_messages.h"

#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/status/errors.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

v1::TransformKind KindToProto(const Transform& transform) {
  if (transform.has_control_grid()) return v1::TRANSFORM_KIND_CONTROL_GRID;
  if (transform.has_velocity()) return v1::TRANSFORM_KIND_VELOCITY;
  return transform.has_displacement() ? v1::TRANSFORM_KIND_DISPLACEMENT : v1::TRANSFORM_KIND_AFFINE;
}

}  // namespace

v1::Transform TransformToProto(const StoredTransform& from, bool with_report) {
  v1::Transform to;
  to.set_name(TransformName(from.id));
  to.set_owner(from.owner);
  to.set_kind(KindToProto(from.transform));
  if (from.transform.has_control_grid()) {
    *to.mutable_control_grid() = GeometryToProto(from.transform.control_grid().geometry);
  }
  if (from.transform.domain()) *to.mutable_domain() = GeometryToProto(*from.transform.domain());
  *to.mutable_affine() = AffineMapToProto(from.transform.affine());
  to.set_resident_bytes(from.transform.resident_bytes());
  *to.mutable_create_time() = TimestampToProto(from.create_time);
  if (from.expiry) *to.mutable_expire_time() = TimestampToProto(from.expiry->time);
  if (with_report && from.report) *to.mutable_report() = *from.report;
  return to;
}

absl::StatusOr<AffineMap> InvertibleMapFromProto(const v1::AffineMap& from) {
  INTRAWARP_ASSIGN_OR_RETURN(AffineMap map, AffineMapFromProto(from));
  if (IsSingular(map)) return InvalidField("values", "the map is singular");
  return map;
}

}  // namespace intrawarp::server
