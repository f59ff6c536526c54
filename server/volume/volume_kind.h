// SPDX-License-Identifier: Apache-2.0
// Volumes as the bulk service moves them (server/bulk/upload_kind.h, download.h).
#ifndef INTRAWARP_SERVER_VOLUME_VOLUME_KIND_H_
#define INTRAWARP_SERVER_VOLUME_VOLUME_KIND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/bulk/resident_download.h"
#include "server/bulk/upload_kind.h"

namespace intrawarp::server {

// The upload id in the header of a provisional volume (volume.proto) that the server has made itself of DICOM images.
// Its kept header tells so after a restart. No client may upload a volume of such a source.
inline constexpr char kProvisionalUpload[] = "provisional";

// A header whose content is a volume. INVALID_ARGUMENT, with paths relative to the header, when it is wrong or
// announces more than the limits allow. Allocates nothing of the sizes it reads.
absl::StatusOr<std::unique_ptr<UploadKind>> ParseVolumeUpload(const v1::UploadHeader& header,
                                                              const ServerContext& context);

// For a volume with its voxels.
ResidentDownload DownloadOf(const std::shared_ptr<const StoredVolume>& volume);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_VOLUME_VOLUME_KIND_H_
