// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_montage.h"

#include "engine/base/status_macros.h"
#include "io/png.h"

namespace intrawarp {

absl::StatusOr<HostImage> FetchImage(const std::string& x, Session& session) {
  if (!IsVolumeName(x)) {
    INTRAWARP_ASSIGN_OR_RETURN(const HostVolume volume, LoadVolume(x));
    return HostImage{volume.geometry, ToFloat(volume)};
  }
  GridData data;
  INTRAWARP_RETURN_IF_ERROR(session.client().DownloadVolume(x, SinkInto(&data), session.call()).status());
  return HostImage{data.geometry, std::move(data.values)};
}

absl::Status WriteMontage(const std::string& path, const HostImage& fixed, const HostImage& moving, GridData warped,
                          GridData field) {
  const HostImage warped_image = {warped.geometry, std::move(warped.values)};
  const HostField host_field = {field.geometry, std::move(field.values)};
  INTRAWARP_ASSIGN_OR_RETURN(const Picture picture, RenderMontage(fixed, moving, warped_image, host_field));
  return WritePng(path, picture);
}

}  // namespace intrawarp
