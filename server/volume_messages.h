// SPDX-License-Identifier: Apache-2.0
// Volumes between the wire and the stores.
#ifndef INTRAWARP_SERVER_VOLUME_MESSAGES_H_
#define INTRAWARP_SERVER_VOLUME_MESSAGES_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/server_context.h"
#include "server/upload_store.h"
#include "server/volume_store.h"

namespace intrawarp {

v1::Volume VolumeToProto(const StoredVolume& volume);

// INVALID_ARGUMENT "header.{field}: ..." for a header that is wrong or announces more than the limits allow. Allocates
// nothing of the sizes it reads.
absl::StatusOr<UploadSpec> ParseUploadHeader(const v1::UploadVolumeHeader& header, const ServerLimits& limits);

// "{field}: ..." unless 1 to 64 characters.
absl::Status ValidateUploadId(absl::string_view upload_id, absl::string_view field);

}  // namespace intrawarp

#endif  // INTRAWARP_SERVER_VOLUME_MESSAGES_H_
