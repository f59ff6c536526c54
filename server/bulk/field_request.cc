// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/field_request.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/repeated_field.h"
#include "server/status/errors.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

constexpr char kAxes[] = "xyz";

// Three numbers in [least, kMaxAxis].
absl::StatusOr<Int3> ThreeFromProto(const google::protobuf::RepeatedField<int64_t>& from, int64_t least,
                                    absl::string_view field) {
  if (from.size() != 3) {
    return InvalidField(field, absl::StrCat("has ", from.size(), " numbers, must be 3"));
  }
  Int3 to;
  for (int a = 0; a < 3; ++a) {
    if (from[a] < least || from[a] > kMaxAxis) {
      return InvalidField(field, absl::StrCat("is ", from[a], " along ", std::string(1, kAxes[a]), ", must be ", least,
                                              " to ", kMaxAxis));
    }
    to[a] = static_cast<int>(from[a]);
  }
  return to;
}

absl::Status EncodingFromProto(v1::FieldEncoding from, FieldRequest* to) {
  switch (from) {
    case v1::FIELD_ENCODING_FLOAT32:
      to->component = ComponentType::kFloat32;
      return absl::OkStatus();
    case v1::FIELD_ENCODING_FLOAT16:
      to->component = ComponentType::kFloat16;
      return absl::OkStatus();
    case v1::FIELD_ENCODING_INT16:
      to->component = ComponentType::kInt16;
      return absl::OkStatus();
    case v1::FIELD_ENCODING_CONTROL_POINTS:
      to->form = FieldForm::kControlPoints;
      return absl::OkStatus();
    case v1::FIELD_ENCODING_VELOCITY:
      to->form = FieldForm::kVelocity;
      return absl::OkStatus();
    case v1::FIELD_ENCODING_UNSPECIFIED:
      return InvalidField("encoding", "must be given");
    default:
      return InvalidField("encoding", absl::StrCat(static_cast<int>(from), " is not an encoding of this version"));
  }
}

v1::FieldEncoding EncodingOf(ComponentType component) {
  switch (component) {
    case ComponentType::kFloat32:
      return v1::FIELD_ENCODING_FLOAT32;
    case ComponentType::kFloat16:
      return v1::FIELD_ENCODING_FLOAT16;
    case ComponentType::kInt16:
      return v1::FIELD_ENCODING_INT16;
  }
  return v1::FIELD_ENCODING_UNSPECIFIED;
}

absl::Status EncodeDisplacement(const ExecContext& ctx, ComponentType component, const Transform& transform,
                                FieldAnswer* answer) {
  if (component != ComponentType::kFloat32) {
    INTRAWARP_ASSIGN_OR_RETURN(const double bound, DisplacementBound(ctx, transform, answer->grid));
    INTRAWARP_ASSIGN_OR_RETURN(answer->encoding, MakeComponentEncoding(component, bound));
  }
  answer->header.set_encoding(EncodingOf(component));
  answer->header.set_scale(answer->encoding.scale);
  answer->header.set_max_error_mm(answer->encoding.max_error);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FieldRequest> FieldRequestFromProto(const v1::FieldRequest& from) {
  FieldRequest to;
  INTRAWARP_RETURN_IF_ERROR(EncodingFromProto(from.encoding(), &to));
  const bool has_region = from.region_start_size() > 0 || from.region_size_size() > 0;
  if (to.form == FieldForm::kControlPoints && (has_region || from.stride_size() > 0)) {
    return InvalidField(has_region ? "region_start" : "stride", "does not go with CONTROL_POINTS");
  }
  if (has_region) {
    INTRAWARP_ASSIGN_OR_RETURN(to.region_start, ThreeFromProto(from.region_start(), 0, "region_start"));
    INTRAWARP_ASSIGN_OR_RETURN(to.region_size, ThreeFromProto(from.region_size(), 1, "region_size"));
  }
  if (from.stride_size() > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(to.stride, ThreeFromProto(from.stride(), 1, "stride"));
  }
  return to;
}

absl::StatusOr<Geometry> FieldGrid(const FieldRequest& request, const Geometry& domain) {
  const Int3 start = request.region_start.value_or(Int3{0, 0, 0});
  const Int3 size = request.region_start ? request.region_size : domain.size;
  Geometry grid = domain;
  for (int a = 0; a < 3; ++a) {
    if (start[a] >= domain.size[a]) {
      return InvalidField("region_start", absl::StrCat("is ", start[a], " along ", std::string(1, kAxes[a]),
                                                       ", the grid has ", domain.size[a], " voxels"));
    }
    if (size[a] > domain.size[a] - start[a]) {
      return InvalidField("region_size",
                          absl::StrCat("reaches to ", int64_t{start[a]} + size[a], " along ", std::string(1, kAxes[a]),
                                       ", the grid has ", domain.size[a], " voxels"));
    }
    grid.size[a] = (size[a] + request.stride[a] - 1) / request.stride[a];
    grid.spacing[a] = domain.spacing[a] * request.stride[a];
  }
  grid.origin = IndexToPhysical(domain)(
      {static_cast<double>(start.x), static_cast<double>(start.y), static_cast<double>(start.z)});
  return grid;
}

int64_t FieldBytes(const FieldRequest& request, const Geometry& grid) {
  return 3 * grid.voxels() * BytesPerComponent(request.component);
}

const char* FormName(FieldForm form) {
  switch (form) {
    case FieldForm::kDisplacement:
      break;
    case FieldForm::kControlPoints:
      return "CONTROL_POINTS";
    case FieldForm::kVelocity:
      return "VELOCITY";
  }
  return "";
}

bool HasForm(const Transform& transform, FieldForm form) {
  if (form == FieldForm::kControlPoints) return transform.has_control_grid();
  return form == FieldForm::kDisplacement || transform.has_velocity();
}

absl::StatusOr<FieldAnswer> MakeFieldAnswer(const ExecContext& ctx, const FieldRequest& request,
                                            const Transform& transform, const Geometry& grid) {
  if (!HasForm(transform, request.form)) {
    return FieldError(absl::StatusCode::kFailedPrecondition, "encoding",
                      absl::StrCat("the transform has no ", FormName(request.form)));
  }
  FieldAnswer answer;
  answer.form = request.form;
  answer.grid = grid;
  v1::FieldHeader& header = answer.header;
  if (request.form != FieldForm::kDisplacement) *header.mutable_affine() = AffineMapToProto(transform.affine());
  switch (request.form) {
    case FieldForm::kControlPoints:
      answer.grid = transform.control_grid().geometry;
      header.set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
      if (transform.domain()) *header.mutable_domain() = GeometryToProto(*transform.domain());
      break;
    case FieldForm::kVelocity:
      header.set_encoding(v1::FIELD_ENCODING_VELOCITY);
      break;
    case FieldForm::kDisplacement:
      INTRAWARP_RETURN_IF_ERROR(EncodeDisplacement(ctx, request.component, transform, &answer));
      break;
  }
  *header.mutable_geometry() = GeometryToProto(answer.grid);
  header.set_total_bytes(FieldBytes(request, answer.grid));
  return answer;
}

}  // namespace intrawarp::server
