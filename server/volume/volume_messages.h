// SPDX-License-Identifier: Apache-2.0
// Volumes between the wire and the stores.
#ifndef INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_
#define INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/geometry.h"
#include "engine/image/volume.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/bulk/upload_store.h"
#include "server/rpc/wire.h"
#include "server/server_context.h"
#include "server/store/volume_store.h"

namespace intrawarp::server {

// A validated UploadVolumeHeader.
struct VolumeSpec : UploadSpec {
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  Rescale rescale;
};

v1::Volume VolumeToProto(const StoredVolume& volume);

// INVALID_ARGUMENT "header.{field}: ..." for a header that is wrong or announces more than the limits allow. Allocates
// nothing of the sizes it reads.
absl::StatusOr<VolumeSpec> ParseUploadHeader(const v1::UploadVolumeHeader& header, const ServerLimits& limits);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_VOLUME_VOLUME_MESSAGES_H_
