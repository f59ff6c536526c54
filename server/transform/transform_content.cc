// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform_content.h"

#include <utility>

#include "server/base/wire.h"

namespace intrawarp::server {
namespace {

struct FieldOf {
  v1::FieldEncoding encoding;
  ConstFieldView view;
};

FieldOf NativeField(const Transform& transform) {
  if (transform.has_control_grid()) return {v1::FIELD_ENCODING_CONTROL_POINTS, transform.control_grid()};
  if (transform.has_velocity()) return {v1::FIELD_ENCODING_VELOCITY, transform.velocity()};
  return {v1::FIELD_ENCODING_FLOAT32, transform.displacement()};
}

}  // namespace

absl::StatusOr<ObjectContent> CopyTransform(const ExecContext& ctx, const Transform& transform, Grant grant) {
  v1::UploadHeader header;
  v1::TransformUpload& upload = *header.mutable_transform();
  if (transform.is_affine()) {
    *upload.mutable_affine() = AffineMapToProto(transform.affine());
    return CopyContent(ctx, std::move(header), {}, std::move(grant));
  }
  const FieldOf native = NativeField(transform);
  v1::FieldHeader& field = *upload.mutable_field();
  field.set_encoding(native.encoding);
  *field.mutable_geometry() = GeometryToProto(native.view.geometry);
  if (native.encoding != v1::FIELD_ENCODING_FLOAT32) *field.mutable_affine() = AffineMapToProto(transform.affine());
  if (transform.has_control_grid() && transform.domain()) {
    *field.mutable_domain() = GeometryToProto(*transform.domain());
  }
  const int64_t bytes = 3 * native.view.geometry.voxels() * static_cast<int64_t>(sizeof(float));
  field.set_total_bytes(bytes);
  return CopyContent(ctx, std::move(header), {{native.view.data, bytes}}, std::move(grant));
}

}  // namespace intrawarp::server
