// SPDX-License-Identifier: Apache-2.0
#include "server/volume_messages.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

// Paths relative to the header.
absl::StatusOr<UploadSpec> ParseFields(const v1::UploadVolumeHeader& header, const ServerLimits& limits) {
  UploadSpec spec;
  if (!header.id().empty()) INTRAWARP_RETURN_IF_ERROR(ValidateId(header.id(), "id"));
  INTRAWARP_RETURN_IF_ERROR(ValidateUploadId(header.upload_id(), "upload_id"));
  spec.id = header.id();
  spec.upload_id = header.upload_id();
  absl::StatusOr<Geometry> geometry = GeometryFromProto(header.geometry());
  if (!geometry.ok()) return Prefixed(geometry.status(), "geometry");
  spec.geometry = *geometry;
  INTRAWARP_ASSIGN_OR_RETURN(spec.pixel_type, PixelTypeFromProto(header.pixel_type()));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, ImageBytes(spec.geometry, BytesPerPixel(spec.pixel_type)));
  if (header.total_bytes() != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_bytes: is ", header.total_bytes(), ", size and pixel type make ", bytes));
  }
  if (bytes > limits.max_volume_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("total_bytes: is ", bytes, ", at most ", limits.max_volume_bytes, " are accepted"));
  }
  spec.total_bytes = bytes;
  if (header.digest().size() != Sha256::kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("digest: has ", header.digest().size(), " bytes, a SHA-256 has ", Sha256::kBytes));
  }
  spec.content_digest = header.digest();
  INTRAWARP_ASSIGN_OR_RETURN(spec.rescale, RescaleFromProto(header.rescale_slope(), header.rescale_intercept()));
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
  to.set_minimum(volume.image.statistics().minimum);
  to.set_maximum(volume.image.statistics().maximum);
  return to;
}

absl::StatusOr<UploadSpec> ParseUploadHeader(const v1::UploadVolumeHeader& header, const ServerLimits& limits) {
  absl::StatusOr<UploadSpec> spec = ParseFields(header, limits);
  if (!spec.ok()) return Prefixed(spec.status(), "header");
  return spec;
}

absl::Status ValidateUploadId(absl::string_view upload_id, absl::string_view field) {
  constexpr int kMaxCharacters = 64;
  // protobuf has made sure that it is UTF-8; bytes that continue a character are 10xxxxxx.
  const auto characters = std::count_if(upload_id.begin(), upload_id.end(), [](char c) { return (c & 0xc0) != 0x80; });
  if (characters >= 1 && characters <= kMaxCharacters) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": must have 1 to ", kMaxCharacters, " characters"));
}

}  // namespace intrawarp
