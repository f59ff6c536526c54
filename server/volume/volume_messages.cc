// SPDX-License-Identifier: Apache-2.0
#include "server/volume/volume_messages.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "io/digest.h"

namespace intrawarp::server {
namespace {

// Tells volumes apart by content, pixel type, geometry and rescale.
std::string IdentityDigest(const VolumeSpec& spec) {
  io::Sha256 hash;
  const auto add = [&hash](const auto& value) { hash.Update(&value, sizeof(value)); };
  hash.Update(spec.content_digest.data(), spec.content_digest.size());
  add(static_cast<int32_t>(spec.pixel_type));
  for (int a = 0; a < 3; ++a) {
    // + 0.0 makes one of the two zeros.
    add(static_cast<int64_t>(spec.geometry.size[a]));
    add(spec.geometry.spacing[a] + 0.0);
    add(spec.geometry.origin[a] + 0.0);
    for (int c = 0; c < 3; ++c) add(spec.geometry.direction[a][c] + 0.0);
  }
  add(spec.rescale.slope + 0.0);
  add(spec.rescale.intercept + 0.0);
  return hash.Finish();
}

// Paths relative to the header.
absl::StatusOr<VolumeSpec> ParseFields(const v1::UploadVolumeHeader& header, const ServerLimits& limits) {
  VolumeSpec spec;
  if (!header.id().empty()) INTRAWARP_RETURN_IF_ERROR(ValidateId(header.id(), "id"));
  INTRAWARP_RETURN_IF_ERROR(ValidateUploadId(header.upload_id(), "upload_id"));
  spec.id = header.id();
  spec.upload_id = header.upload_id();
  absl::StatusOr<Geometry> geometry = GeometryFromProto(header.geometry());
  if (!geometry.ok()) return Within("geometry", geometry.status());
  spec.geometry = *geometry;
  INTRAWARP_ASSIGN_OR_RETURN(spec.pixel_type, PixelTypeFromProto(header.pixel_type()));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, ImageBytes(spec.geometry, BytesPerPixel(spec.pixel_type)));
  if (header.total_bytes() != bytes) {
    return InvalidField("total_bytes", absl::StrCat("is ", header.total_bytes(), ", size and pixel type make ", bytes));
  }
  if (bytes > limits.max_volume_bytes) {
    return InvalidField("total_bytes",
                        absl::StrCat("is ", bytes, ", at most ", limits.max_volume_bytes, " are accepted"));
  }
  spec.total_bytes = bytes;
  INTRAWARP_RETURN_IF_ERROR(ValidateDigest(header.digest()));
  spec.content_digest = header.digest();
  if (header.rescale_slope() != 0 || header.rescale_intercept() != 0) {
    v1::Rescale rescale;
    rescale.set_slope(header.rescale_slope());
    rescale.set_intercept(header.rescale_intercept());
    INTRAWARP_ASSIGN_OR_RETURN(spec.rescale, RescaleFromProto(rescale));
  }
  spec.identity_digest = IdentityDigest(spec);
  spec.resident_bytes = PreparedImage::Bytes(spec.geometry);
  return spec;
}

}  // namespace

v1::Volume VolumeToProto(const StoredVolume& volume) {
  v1::Volume to;
  to.set_name(VolumeName(volume.id));
  *to.mutable_geometry() = GeometryToProto(volume.image.geometry());
  to.set_pixel_type(PixelTypeToProto(volume.pixel_type));
  to.set_digest(volume.content_digest);
  to.set_resident_bytes(volume.reservation.bytes());
  *to.mutable_create_time() = TimestampToProto(volume.create_time);
  if (volume.expiry) *to.mutable_expire_time() = TimestampToProto(volume.expiry->time);
  to.set_minimum(volume.image.statistics().minimum);
  to.set_maximum(volume.image.statistics().maximum);
  return to;
}

absl::StatusOr<VolumeSpec> ParseUploadHeader(const v1::UploadVolumeHeader& header, const ServerLimits& limits) {
  absl::StatusOr<VolumeSpec> spec = ParseFields(header, limits);
  if (!spec.ok()) return Within("header", spec.status());
  return spec;
}

}  // namespace intrawarp::server
