// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform_kind.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/transform/velocity.h"
#include "io/file/digest.h"
#include "server/base/wire.h"
#include "server/bulk/field_request.h"
#include "server/bulk/upload_spec.h"
#include "server/job/job_support.h"
#include "server/transform/transform_messages.h"

namespace intrawarp::server {
namespace {

// True when every float is finite: none has all bits of its exponent set.
bool AllFinite(const char* data, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  const auto* bits = reinterpret_cast<const uint32_t*>(data);
  uint32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) bad |= (bits[i] & kExponent) == kExponent;
  return bad == 0;
}

// The exponential of a faster velocity would not be accurate.
constexpr int kMaxVelocityVoxels = 4096;

float LargestMagnitude(const char* data, int64_t count) {
  const auto* values = reinterpret_cast<const float*>(data);
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

// A field whose form and grid are known. Unset: the transform is an affine map alone.
struct FieldContent {
  FieldForm form = FieldForm::kDisplacement;
  Geometry grid;
  // For control points only.
  std::optional<Geometry> domain;
};

struct TransformContent {
  AffineMap affine;
  std::optional<FieldContent> field;

  int64_t bytes() const { return field ? FieldBytes(FieldRequest(), field->grid) : 0; }
  bool has_velocity() const { return field && field->form == FieldForm::kVelocity; }
  // A velocity lies beside its exponentials, forward and backward.
  int64_t resident_bytes() const { return has_velocity() ? 3 * bytes() : bytes(); }
  // The workspace of the job that makes the exponentials.
  std::optional<int64_t> workspace_bytes() const {
    if (!has_velocity()) return std::nullopt;
    return VelocityTransformWorkspaceBytes(field->grid.size);
  }
};

absl::StatusOr<AffineMap> AffineFromProto(const v1::AffineMap& from, absl::string_view field) {
  absl::StatusOr<AffineMap> affine = InvertibleMapFromProto(from);
  if (!affine.ok()) return Within(field, affine.status());
  return affine;
}

// A cubic spline has four control points a tile; an axis with one, on which the domain has one voxel, has no spline.
absl::Status ValidateControlGrid(const Geometry& grid, const std::optional<Geometry>& domain) {
  bool spans = false;
  for (int a = 0; a < 3; ++a) {
    const bool is_thin = grid.size[a] == 1 && (!domain || domain->size[a] == 1);
    if (grid.size[a] < 4 && !is_thin) {
      return InvalidField("geometry.size", absl::StrCat(SizeString(grid),
                                                        " control points, must be 4 or more along each axis on which "
                                                        "the domain has more than one voxel"));
    }
    spans |= !is_thin;
  }
  return spans ? absl::OkStatus() : InvalidField("geometry.size", "is one control point, must be 4 along an axis");
}

absl::StatusOr<FieldForm> FormFromProto(v1::FieldEncoding encoding) {
  switch (encoding) {
    case v1::FIELD_ENCODING_FLOAT32:
      return FieldForm::kDisplacement;
    case v1::FIELD_ENCODING_CONTROL_POINTS:
      return FieldForm::kControlPoints;
    case v1::FIELD_ENCODING_VELOCITY:
      return FieldForm::kVelocity;
    default:
      return InvalidField("encoding", "must be FLOAT32, CONTROL_POINTS or VELOCITY");
  }
}

// Paths relative to the field's header.
absl::StatusOr<TransformContent> ParseField(const v1::FieldHeader& header, const ServerLimits& limits) {
  TransformContent content;
  FieldContent& field = content.field.emplace();
  absl::StatusOr<Geometry> grid = GeometryFromProto(header.geometry());
  if (!grid.ok()) return Within("geometry", grid.status());
  field.grid = *grid;
  INTRAWARP_ASSIGN_OR_RETURN(field.form, FormFromProto(header.encoding()));
  if (field.form != FieldForm::kDisplacement) {
    INTRAWARP_ASSIGN_OR_RETURN(content.affine, AffineFromProto(header.affine(), "affine"));
  }
  if (field.form == FieldForm::kVelocity && header.has_domain()) {
    return InvalidField("domain", "of a VELOCITY is its geometry");
  }
  if (field.form == FieldForm::kControlPoints && header.has_domain()) {
    absl::StatusOr<Geometry> domain = GeometryFromProto(header.domain());
    if (!domain.ok()) return Within("domain", domain.status());
    field.domain = *domain;
  }
  if (field.form == FieldForm::kControlPoints) {
    INTRAWARP_RETURN_IF_ERROR(ValidateControlGrid(field.grid, field.domain));
  }
  absl::Status size = ValidateOutputSize(limits, field.grid);
  if (!size.ok()) return Within("geometry", size);
  if (header.total_bytes() == content.bytes()) return content;
  return InvalidField("total_bytes", absl::StrCat("is ", header.total_bytes(), ", must be ", content.bytes(), " for ",
                                                  SizeString(field.grid), " voxels"));
}

// Paths relative to the upload.
absl::StatusOr<TransformContent> ParseContent(const v1::TransformUpload& upload, const ServerLimits& limits) {
  switch (upload.content_case()) {
    case v1::TransformUpload::kAffine: {
      TransformContent content;
      INTRAWARP_ASSIGN_OR_RETURN(content.affine, AffineFromProto(upload.affine(), "affine"));
      return content;
    }
    case v1::TransformUpload::kField: {
      absl::StatusOr<TransformContent> content = ParseField(upload.field(), limits);
      if (!content.ok()) return Within("field", content.status());
      return content;
    }
    case v1::TransformUpload::CONTENT_NOT_SET:
      break;
  }
  return InvalidField("content", "affine or field must be given");
}

// Tells transforms apart by content, form, grid, domain and affine part.
std::string IdentityDigest(const std::string& content_digest, const TransformContent& content) {
  io::Sha256 hash;
  const auto add = [&hash](const auto& value) { hash.Update(&value, sizeof(value)); };
  const auto add_grid = [&](const Geometry& grid) {
    for (int a = 0; a < 3; ++a) {
      // + 0.0 makes one of the two zeros.
      add(static_cast<int64_t>(grid.size[a]));
      add(grid.spacing[a] + 0.0);
      add(grid.origin[a] + 0.0);
      for (int c = 0; c < 3; ++c) add(grid.direction[a][c] + 0.0);
    }
  };
  constexpr char kKind[] = "transform";
  hash.Update(kKind, sizeof(kKind));
  hash.Update(content_digest.data(), content_digest.size());
  const v1::AffineMap affine = AffineMapToProto(content.affine);
  for (const double value : affine.values()) add(value + 0.0);
  add(content.field ? static_cast<int32_t>(content.field->form) : int32_t{-1});
  if (content.field) add_grid(content.field->grid);
  if (content.field && content.field->domain) add_grid(*content.field->domain);
  return hash.Finish();
}

class TransformKind final : public NewObjectOf<StoredTransform> {
 public:
  TransformKind(ObjectSpec spec, TransformContent content)
      : NewObjectOf(std::move(spec)), content_(std::move(content)), transform_(content_.affine) {}

  absl::Status Validate(const void* data) const override {
    if (!content_.field) return absl::OkStatus();
    const auto* bytes = static_cast<const char*>(data);
    const Geometry& grid = content_.field->grid;
    const int64_t count = 3 * grid.voxels();
    if (!AllFinite(bytes, count)) {
      return InvalidField("field", "holds a component that is NaN or infinite");
    }
    if (content_.field->form != FieldForm::kVelocity) return absl::OkStatus();
    const double most = kMaxVelocityVoxels * std::min({grid.spacing.x, grid.spacing.y, grid.spacing.z});
    if (LargestMagnitude(bytes, count) <= most) return absl::OkStatus();
    return InvalidField("field",
                        absl::StrCat("holds a component of more than ", kMaxVelocityVoxels, " voxels (", most, " mm)"));
  }

  std::optional<int64_t> JobWorkspaceBytes() const override { return content_.workspace_bytes(); }

  absl::Status Make(const ExecContext& ctx, StagedUpload& upload) override {
    if (!content_.field) return absl::OkStatus();
    INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer,
                               ctx.device().Allocate(static_cast<size_t>(content_.bytes()), ctx.stream()));
    absl::Status status = upload.CopyTo(ctx, buffer.as<void>(), 0, content_.bytes());
    if (status.ok()) status = MakeField(ctx, std::move(buffer));
    // Also after an error: nothing may refer to the upload's memory any more.
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    return status.ok() ? synchronized : status;
  }

  absl::StatusOr<std::shared_ptr<StoredTransform>> Take(Grant reservation, const std::string& description) override {
    auto stored = std::make_shared<StoredTransform>(
        StoredTransform{"", {}, std::nullopt, std::make_shared<Grant>(std::move(reservation)), std::move(transform_)});
    if (description.empty()) return stored;
    v1::Transform described;
    if (!described.ParseFromString(description)) return absl::DataLossError("the report of the transform is damaged");
    if (described.has_report()) stored->report = described.report();
    if (stored->transform.is_affine() && described.has_domain()) {
      INTRAWARP_ASSIGN_OR_RETURN(const Geometry domain, GeometryFromProto(described.domain()));
      stored->transform = Transform(stored->transform.affine(), domain);
    }
    return stored;
  }

 private:
  absl::Status MakeField(const ExecContext& ctx, Buffer buffer) {
    const FieldContent& field = *content_.field;
    switch (field.form) {
      case FieldForm::kDisplacement:
        transform_ = Transform(std::move(buffer), field.grid);
        break;
      case FieldForm::kControlPoints:
        transform_ = Transform(content_.affine, std::move(buffer), field.grid, field.domain);
        break;
      case FieldForm::kVelocity:
        INTRAWARP_ASSIGN_OR_RETURN(transform_,
                                   MakeVelocityTransform(ctx, content_.affine, std::move(buffer), field.grid));
        break;
    }
    return absl::OkStatus();
  }

  void Describe(const StoredTransform& stored, v1::UploadResponse& answer) const override {
    *answer.mutable_transform() = TransformToProto(stored, /*with_report=*/true);
  }

  const TransformContent content_;
  Transform transform_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NewObjectOf<StoredTransform>>> ParseTransformUpload(const v1::UploadHeader& header,
                                                                                   const ServerLimits& limits) {
  absl::StatusOr<TransformContent> content = ParseContent(header.transform(), limits);
  if (!content.ok()) return Within("transform", content.status());
  INTRAWARP_ASSIGN_OR_RETURN(ObjectSpec spec, ParseUploadSpec(header, content->bytes(), content->bytes()));
  spec.identity_digest = IdentityDigest(spec.content_digest, *content);
  spec.resident_bytes = content->resident_bytes();
  spec.workspace_bytes = content->workspace_bytes().value_or(0);
  spec.transforms = 1;
  return std::make_unique<TransformKind>(std::move(spec), *std::move(content));
}

}  // namespace intrawarp::server
