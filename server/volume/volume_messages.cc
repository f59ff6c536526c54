// SPDX-License-Identifier: Apache-2.0
#include "server/volume/volume_messages.h"

#include "server/rpc/rpc_support.h"
#include "server/rpc/wire.h"

namespace intrawarp::server {
v1::Volume VolumeToProto(const StoredVolume& volume) {
  v1::Volume to;
  to.set_name(VolumeName(volume.id));
  to.set_owner(volume.owner);
  *to.mutable_geometry() = GeometryToProto(volume.image.geometry());
  to.set_pixel_type(PixelTypeToProto(volume.pixel_type));
  to.set_digest(volume.content_digest);
  to.set_resident_bytes(volume.reservation.resident_bytes());
  *to.mutable_create_time() = TimestampToProto(volume.create_time);
  if (volume.expiry) *to.mutable_expire_time() = TimestampToProto(volume.expiry->time);
  to.set_minimum(volume.image.statistics().minimum);
  to.set_maximum(volume.image.statistics().maximum);
  return to;
}

}  // namespace intrawarp::server
