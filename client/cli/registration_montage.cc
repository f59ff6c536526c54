// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_montage.h"

#include "client/cli/volume_file.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli {

absl::StatusOr<io::HostImage> FetchImage(const std::string& x, Session& session) {
  if (!IsVolumeName(x)) {
    INTRAWARP_ASSIGN_OR_RETURN(const LoadedVolume loaded, LoadVolume(x));
    return io::HostImage{loaded.volume.geometry, io::ToFloat(loaded.volume)};
  }
  client::GridData data;
  INTRAWARP_RETURN_IF_ERROR(session.client().DownloadVolume(x, client::SinkInto(&data), session.call()).status());
  return io::HostImage{data.geometry, std::move(data.values)};
}

absl::StatusOr<io::Picture> RenderRegistration(const io::HostImage& fixed, const io::HostImage& moving,
                                               client::GridData warped, client::GridData field) {
  const io::HostImage warped_image = {warped.geometry, std::move(warped.values)};
  const io::HostField host_field = {field.geometry, std::move(field.values)};
  return io::RenderMontage(fixed, moving, warped_image, host_field);
}

}  // namespace intrawarp::cli
