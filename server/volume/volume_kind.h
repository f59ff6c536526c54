// SPDX-License-Identifier: Apache-2.0
// Volumes as the bulk service moves them (server/object/new_object.h, server/bulk/resident_download.h), and those that
// the server reads itself.
#ifndef INTRAWARP_SERVER_VOLUME_VOLUME_KIND_H_
#define INTRAWARP_SERVER_VOLUME_VOLUME_KIND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/pixel_type.h"
#include "engine/device/device.h"
#include "engine/geometry/geometry.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/bulk/resident_download.h"
#include "server/context/limits.h"
#include "server/object/new_object.h"
#include "server/object/object_spec.h"
#include "server/store/volume_store.h"
#include "wire/convert.h"

namespace intrawarp::server {

// The description of a volume: all that tells it from others of the same bytes, and the rest.
struct VolumeContent {
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  Rescale rescale;
  bool evictable = true;
  v1::Provenance provenance;
  // More images of it may come (volume.proto).
  bool is_provisional = false;
};

// A header whose content is a volume. INVALID_ARGUMENT, with paths relative to the header, when it is wrong or
// announces more than the limits allow. Allocates nothing of the sizes it reads.
absl::StatusOr<std::unique_ptr<NewObjectOf<StoredVolume>>> ParseVolumeUpload(const v1::UploadHeader& header,
                                                                             const ServerLimits& limits,
                                                                             const Device& device);
// A volume of a known source that no client uploads, by the same rules and with the same errors. `spec` has the id, the
// size and the digest of the bytes.
absl::StatusOr<std::unique_ptr<NewObjectOf<StoredVolume>>> NewVolumeObject(ObjectSpec spec, VolumeContent content,
                                                                           const ServerLimits& limits,
                                                                           const Device& device);
// The header from which ParseVolumeUpload makes the same volume, for the state directory. The spec has an id.
v1::UploadHeader HeaderOf(const ObjectSpec& spec, const VolumeContent& content);

// For a volume with its voxels.
ResidentDownload DownloadOf(const std::shared_ptr<const StoredVolume>& volume);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_VOLUME_VOLUME_KIND_H_
