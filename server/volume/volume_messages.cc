// SPDX-License-Identifier: Apache-2.0
#include "server/volume/volume_messages.h"

#include "server/base/names.h"
#include "server/base/wire.h"
#include "server/store/residency.h"

namespace intrawarp::server {
namespace {

v1::Residency ResidencyOf(const StoredVolume& volume) {
  if (volume.residency == nullptr) return v1::RESIDENCY_RESIDENT;
  switch (volume.residency->state()) {
    case Residency::State::kSpooled:
      return v1::RESIDENCY_SPOOLED;
    case Residency::State::kLoading:
      return v1::RESIDENCY_LOADING;
    case Residency::State::kResident:
      return v1::RESIDENCY_RESIDENT;
  }
  return v1::RESIDENCY_UNSPECIFIED;
}

}  // namespace

v1::Volume VolumeToProto(const StoredVolume& volume) {
  v1::Volume to;
  to.set_name(VolumeName(volume.id));
  to.set_owner(volume.owner);
  *to.mutable_geometry() = GeometryToProto(volume.image.geometry());
  to.set_pixel_type(PixelTypeToProto(volume.pixel_type));
  to.set_digest(volume.content_digest);
  to.set_resident_bytes(ChargedBytes(PreparedImage::Bytes(volume.image.geometry())));
  to.set_residency(ResidencyOf(volume));
  to.set_pinned(!volume.evictable);
  *to.mutable_create_time() = TimestampToProto(volume.create_time);
  if (volume.provenance.source() != v1::PROVENANCE_SOURCE_UNSPECIFIED) *to.mutable_provenance() = volume.provenance;
  to.set_provisional(volume.is_provisional);
  if (volume.expiry) *to.mutable_expire_time() = TimestampToProto(volume.expiry->time);
  to.set_minimum(volume.image.minimum());
  to.set_maximum(volume.image.maximum());
  return to;
}

v1::Volume FailedVolume(const std::string& id, const std::string& owner) {
  v1::Volume to;
  to.set_name(VolumeName(id));
  to.set_owner(owner);
  to.set_residency(v1::RESIDENCY_FAILED);
  return to;
}

}  // namespace intrawarp::server
