// SPDX-License-Identifier: Apache-2.0
// The volume calls of Client.
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "client/cpp/client_impl.h"
#include "io/file/digest.h"
#include "wire/convert.h"

namespace intrawarp::client {
std::string VolumeDigest(absl::string_view bytes) {
  return absl::BytesToHexString(io::Sha256Of(bytes.data(), bytes.size()));
}

absl::StatusOr<v1::UploadResponse> Client::UploadVolume(const VolumeUpload& upload, const CallOptions& options) {
  v1::UploadHeader header;
  header.set_id(upload.id);
  v1::VolumeUpload& volume = *header.mutable_volume();
  *volume.mutable_geometry() = GeometryToProto(upload.geometry);
  volume.set_pixel_type(PixelTypeToProto(upload.pixel_type));
  volume.set_pinned(upload.pinned);
  if (upload.provenance.source() != v1::PROVENANCE_SOURCE_UNSPECIFIED) {
    *volume.mutable_provenance() = upload.provenance;
  }
  if (upload.rescale_slope != 0 || upload.rescale_intercept != 0) {
    volume.mutable_rescale()->set_slope(upload.rescale_slope);
    volume.mutable_rescale()->set_intercept(upload.rescale_intercept);
  }
  return impl_->Upload(std::move(header), {{upload.bytes}, upload.on_progress}, options);
}

absl::StatusOr<v1::Volume> Client::GetVolume(const std::string& name, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::GetVolumeRequest request;
  request.set_name(name);
  v1::GetVolumeResponse response;
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->volumes.GetVolume(call.context(), request, &response)));
  return std::move(*response.mutable_volume());
}

absl::StatusOr<std::vector<v1::Volume>> Client::ListVolumes(const CallOptions& options) {
  std::vector<v1::Volume> volumes;
  v1::ListVolumesRequest request;
  request.set_page_size(kPageSize);
  do {
    Call call(options, impl_->options.unary_timeout);
    v1::ListVolumesResponse response;
    INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->volumes.ListVolumes(call.context(), request, &response)));
    for (v1::Volume& volume : *response.mutable_volumes()) volumes.push_back(std::move(volume));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return volumes;
}

absl::StatusOr<v1::Volume> Client::DownloadVolume(const std::string& name, const GridSink& voxels,
                                                  const CallOptions& options) {
  v1::DownloadRequest request;
  request.set_name(name);
  v1::Volume volume;
  GridReceiver receiver(voxels, 1, impl_->options.max_answer_bytes);
  const auto accept = [&](v1::DownloadResponse& response) {
    volume = std::move(*response.mutable_header()->mutable_volume());
    return receiver.Begin(volume.geometry(), response.header().total_bytes());
  };
  INTRAWARP_RETURN_IF_ERROR(
      ReadResuming<v1::DownloadResponse>(*impl_, kDownloadMethod, request, receiver, options, accept));
  return volume;
}

absl::Status Client::DeleteVolume(const std::string& name, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::DeleteVolumeRequest request;
  request.set_name(name);
  v1::DeleteVolumeResponse response;
  return FromGrpcStatus(impl_->volumes.DeleteVolume(call.context(), request, &response));
}

}  // namespace intrawarp::client
