// SPDX-License-Identifier: Apache-2.0
#include "server/volume/volume_kind.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"
#include "engine/image/pyramid.h"
#include "io/dicom/dicom.h"
#include "io/file/digest.h"
#include "server/base/wire.h"
#include "server/bulk/upload_spec.h"
#include "server/object/object_spec.h"
#include "server/volume/volume_messages.h"

namespace intrawarp::server {
namespace {

// The length of a SHA-256.
constexpr size_t kHashBytes = 32;

// The upload id in the durable header of a provisional volume (volume.proto) that the server has made itself of DICOM
// images: it tells so after a restart. No client may upload a volume of such a source.
constexpr char kProvisionalUpload[] = "provisional";

absl::Status CheckHash(const std::string& hash, absl::string_view field) {
  if (hash.empty() || hash.size() == kHashBytes) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must have 32 bytes or none, and has ", hash.size()));
}

// A modality is one that DICOM defines: a free text could name somebody.
absl::Status CheckProvenance(const v1::Provenance& provenance) {
  const bool is_known = v1::ProvenanceSource_IsValid(provenance.source());
  if (!is_known || provenance.source() == v1::PROVENANCE_SOURCE_UNSPECIFIED) {
    return InvalidField("source", "must be given, and one of those that are defined");
  }
  if (!provenance.modality().empty() && !io::IsModality(provenance.modality())) {
    return InvalidField("modality", "is not a term that DICOM defines");
  }
  INTRAWARP_RETURN_IF_ERROR(CheckHash(provenance.series_hash(), "series_hash"));
  INTRAWARP_RETURN_IF_ERROR(CheckHash(provenance.frame_of_reference_hash(), "frame_of_reference_hash"));
  if (provenance.source() != v1::PROVENANCE_SOURCE_FILE) return absl::OkStatus();
  if (!provenance.modality().empty()) return InvalidField("modality", "must be empty for a file that is not DICOM");
  if (!provenance.series_hash().empty())
    return InvalidField("series_hash", "must be empty for a file that is not DICOM");
  if (provenance.frame_of_reference_hash().empty()) return absl::OkStatus();
  return InvalidField("frame_of_reference_hash", "must be empty for a file that is not DICOM");
}

absl::StatusOr<VolumeContent> ParseContent(const v1::VolumeUpload& upload) {
  VolumeContent content;
  absl::StatusOr<Geometry> geometry = GeometryFromProto(upload.geometry());
  if (!geometry.ok()) return Within("geometry", geometry.status());
  content.geometry = *geometry;
  INTRAWARP_ASSIGN_OR_RETURN(content.pixel_type, PixelTypeFromProto(upload.pixel_type()));
  content.evictable = !upload.pinned();
  if (upload.has_provenance()) {
    INTRAWARP_RETURN_IF_ERROR(Within("provenance", CheckProvenance(upload.provenance())));
    content.provenance = upload.provenance();
    content.provenance.DiscardUnknownFields();
  }
  if (!upload.has_rescale()) return content;
  absl::StatusOr<Rescale> rescale = RescaleFromProto(upload.rescale());
  if (!rescale.ok()) return Within("rescale", rescale.status());
  content.rescale = *rescale;
  return content;
}

absl::Status CheckRescale(const Rescale& rescale) {
  if (!std::isfinite(rescale.slope) || rescale.slope == 0) return InvalidField("slope", "must be finite and not 0");
  return std::isfinite(rescale.intercept) ? absl::OkStatus() : InvalidField("intercept", "must be finite");
}

// What ParseContent checks, of plain values.
absl::Status CheckContent(const VolumeContent& content) {
  INTRAWARP_RETURN_IF_ERROR(Within("geometry", ValidateGeometry(content.geometry)));
  INTRAWARP_RETURN_IF_ERROR(Within("provenance", CheckProvenance(content.provenance)));
  return Within("rescale", CheckRescale(content.rescale));
}

// Tells volumes apart by content, pixel type, geometry and rescale, and by modality, series and frame of reference
// where they are known. The source is left out: a series that is sent and one that is imported are the same volume.
std::string IdentityDigest(const std::string& content_digest, const VolumeContent& content) {
  io::Sha256 hash;
  const auto add = [&hash](const auto& value) { hash.Update(&value, sizeof(value)); };
  hash.Update(content_digest.data(), content_digest.size());
  add(static_cast<int32_t>(content.pixel_type));
  for (int a = 0; a < 3; ++a) {
    // + 0.0 makes one of the two zeros.
    add(static_cast<int64_t>(content.geometry.size[a]));
    add(content.geometry.spacing[a] + 0.0);
    add(content.geometry.origin[a] + 0.0);
    for (int c = 0; c < 3; ++c) add(content.geometry.direction[a][c] + 0.0);
  }
  add(content.rescale.slope + 0.0);
  add(content.rescale.intercept + 0.0);
  const v1::Provenance& from = content.provenance;
  const std::array<const std::string*, 3> origin = {&from.modality(), &from.series_hash(),
                                                    &from.frame_of_reference_hash()};
  if (std::all_of(origin.begin(), origin.end(), [](const std::string* text) { return text->empty(); })) {
    return hash.Finish();
  }
  for (const std::string* text : origin) {
    add(static_cast<int64_t>(text->size()));
    hash.Update(text->data(), text->size());
  }
  return hash.Finish();
}

// The whole numbers that float32, which volumes are made of, holds without gaps; and those of float64.
constexpr double kFloatWhole = 16777216;           // 2^24
constexpr double kDoubleWhole = 9007199254740992;  // 2^53

// Whether whole numbers stay whole numbers, so that a rounded one would be another label.
bool KeepsWhole(const Rescale& rescale) {
  return rescale.slope == std::trunc(rescale.slope) && rescale.intercept == std::trunc(rescale.intercept);
}

template <typename T>
absl::Status CheckExactAs(const void* data, const char* type, const VolumeContent& content) {
  const int64_t voxels = content.geometry.voxels();
  const auto* const bytes = static_cast<const uint8_t*>(data);
  for (int64_t i = 0; i < voxels; ++i) {
    T stored;
    std::memcpy(&stored, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    const double value = content.rescale.slope * static_cast<double>(stored) + content.rescale.intercept;
    const double size = std::abs(value);
    if (!(size > kFloatWhole) || size > kDoubleWhole || value != std::trunc(value)) continue;
    if (static_cast<double>(static_cast<float>(value)) == value) continue;
    const double rounded = static_cast<double>(static_cast<float>(value));
    return InvalidField("voxels",
                        absl::StrFormat("a voxel of type %s is %.0f and would become %.0f: voxels are kept as "
                                        "float32, which does not hold this whole number",
                                        type, value, rounded));
  }
  return absl::OkStatus();
}

// A label that is rounded is another label. Values that are measured, not counted, may be rounded.
absl::Status CheckExact(const void* data, const VolumeContent& content) {
  if (!KeepsWhole(content.rescale)) return absl::OkStatus();
  switch (content.pixel_type) {
    case PixelType::kInt32:
      return CheckExactAs<int32_t>(data, "int32", content);
    case PixelType::kUint32:
      return CheckExactAs<uint32_t>(data, "uint32", content);
    case PixelType::kFloat64:
      return CheckExactAs<double>(data, "float64", content);
    default:
      return absl::OkStatus();
  }
}

absl::StatusOr<int64_t> ContentBytes(const VolumeContent& content) {
  absl::StatusOr<int64_t> bytes = ImageBytes(content.geometry, BytesPerPixel(content.pixel_type));
  if (!bytes.ok()) return Within("volume.geometry", bytes.status());
  return bytes;
}

class VolumeKind final : public NewObjectOf<StoredVolume> {
 public:
  VolumeKind(ObjectSpec spec, VolumeContent content) : NewObjectOf(std::move(spec)), content_(std::move(content)) {}

  // On CUDA the pixels come to the workspace first, by way of pinned slabs. The devices of a server are of one kind.
  static int64_t WorkspaceBytes(const Device& device, const VolumeContent& content, int64_t pixel_bytes) {
    const bool is_cuda = device.kind() == DeviceKind::kCuda;
    const int64_t staged = is_cuda ? static_cast<int64_t>(Arena::Rounded(static_cast<size_t>(pixel_bytes))) : 0;
    return staged + PreparedImage::WorkspaceBytes(content.geometry, content.pixel_type);
  }

  absl::Status Validate(const void* data) const override { return CheckExact(data, content_); }
  std::optional<int64_t> JobWorkspaceBytes() const override { return spec().workspace_bytes; }
  absl::Status Make(const ExecContext& ctx, StagedUpload& upload) override {
    if (!ctx.is_cuda()) return Prepare(ctx, upload.data());
    ArenaScope scope(ctx.arena());
    INTRAWARP_ASSIGN_OR_RETURN(void* pixels, ctx.arena().AllocateBytes(static_cast<size_t>(spec().total_bytes)));
    absl::Status status = upload.CopyTo(ctx, pixels, 0, spec().total_bytes);
    if (status.ok()) status = Prepare(ctx, pixels);
    // Also after an error: nothing may refer to the upload's memory any more.
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    return status.ok() ? synchronized : status;
  }
  absl::StatusOr<std::shared_ptr<StoredVolume>> Take(Grant reservation, const std::string&) override {
    auto stored = std::make_shared<StoredVolume>();
    stored->pixel_type = content_.pixel_type;
    stored->evictable = content_.evictable;
    stored->content_digest = spec().content_digest;
    stored->provenance = content_.provenance;
    stored->is_provisional = content_.is_provisional;
    stored->reservation = std::move(reservation);
    stored->image = std::move(image_);
    return stored;
  }

 private:
  void Describe(const StoredVolume& stored, v1::UploadResponse& answer) const override {
    *answer.mutable_volume() = VolumeToProto(stored);
  }

  absl::Status Prepare(const ExecContext& ctx, const void* pixels) {
    INTRAWARP_ASSIGN_OR_RETURN(image_, PreparedImage::Prepare(ctx, pixels, content_.pixel_type, content_.rescale.slope,
                                                              content_.rescale.intercept, content_.geometry));
    return absl::OkStatus();
  }

  const VolumeContent content_;
  PreparedImage image_;
};

// A content and a spec that were checked; the identity and the claims are added.
std::unique_ptr<NewObjectOf<StoredVolume>> MakeKind(ObjectSpec spec, VolumeContent content, const Device& device) {
  spec.identity_digest = IdentityDigest(spec.content_digest, content);
  spec.resident_bytes = ChargedBytes(PreparedImage::Bytes(content.geometry));
  spec.workspace_bytes = VolumeKind::WorkspaceBytes(device, content, spec.total_bytes);
  return std::make_unique<VolumeKind>(std::move(spec), std::move(content));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NewObjectOf<StoredVolume>>> NewVolumeObject(ObjectSpec spec, VolumeContent content,
                                                                           const ServerLimits& limits,
                                                                           const Device& device) {
  INTRAWARP_RETURN_IF_ERROR(Within("volume", CheckContent(content)));
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, ContentBytes(content));
  INTRAWARP_RETURN_IF_ERROR(CheckObjectSpec(spec, bytes, limits.max_volume_bytes));
  return MakeKind(std::move(spec), std::move(content), device);
}

absl::StatusOr<std::unique_ptr<NewObjectOf<StoredVolume>>> ParseVolumeUpload(const v1::UploadHeader& header,
                                                                             const ServerLimits& limits,
                                                                             const Device& device) {
  absl::StatusOr<VolumeContent> content = ParseContent(header.volume());
  if (!content.ok()) return Within("volume", content.status());
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t bytes, ContentBytes(*content));
  INTRAWARP_ASSIGN_OR_RETURN(ObjectSpec spec, ParseUploadSpec(header, bytes, limits.max_volume_bytes));
  const v1::ProvenanceSource source = content->provenance.source();
  const bool is_own = source == v1::PROVENANCE_SOURCE_STORAGE || source == v1::PROVENANCE_SOURCE_RETRIEVED;
  content->is_provisional = is_own && header.upload_id() == kProvisionalUpload;
  return MakeKind(std::move(spec), *std::move(content), device);
}

v1::UploadHeader HeaderOf(const ObjectSpec& spec, const VolumeContent& content) {
  v1::UploadHeader header;
  header.set_id(spec.id);
  header.set_upload_id(content.is_provisional ? kProvisionalUpload : spec.id);
  header.set_total_bytes(spec.total_bytes);
  header.set_sha256(spec.content_digest);
  v1::VolumeUpload& volume = *header.mutable_volume();
  *volume.mutable_geometry() = GeometryToProto(content.geometry);
  *volume.mutable_provenance() = content.provenance;
  volume.set_pixel_type(PixelTypeToProto(content.pixel_type));
  *volume.mutable_rescale() = RescaleToProto(content.rescale);
  volume.set_pinned(!content.evictable);
  return header;
}

ResidentDownload DownloadOf(const std::shared_ptr<const StoredVolume>& volume) {
  const int64_t bytes = volume->image.geometry().voxels() * static_cast<int64_t>(sizeof(float));
  ResidentDownload download;
  download.bytes = {volume, {{volume->image.volume().data, bytes}}};
  download.device = volume->reservation.device();
  download.create_time = volume->create_time;
  download.digest = volume->digest;
  *download.header.mutable_volume() = VolumeToProto(*volume);
  download.header.set_total_bytes(bytes);
  return download;
}

}  // namespace intrawarp::server
