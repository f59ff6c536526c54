// SPDX-License-Identifier: Apache-2.0
// The volume calls of Client.
#include <string>

#include "client/cpp/client_impl.h"
#include "client/cpp/resumable_upload.h"
#include "client/cpp/uuid.h"
#include "io/digest.h"
#include "proto/convert.h"

namespace intrawarp::client {
namespace {

constexpr int kPageSize = 500;

absl::StatusOr<v1::UploadVolumeHeader> MakeHeader(const VolumeUpload& upload) {
  v1::UploadVolumeHeader header;
  INTRAWARP_ASSIGN_OR_RETURN(*header.mutable_upload_id(), RandomUuid());
  header.set_id(upload.id);
  *header.mutable_geometry() = GeometryToProto(upload.geometry);
  header.set_pixel_type(PixelTypeToProto(upload.pixel_type));
  header.set_total_bytes(static_cast<int64_t>(upload.bytes.size()));
  header.set_digest(io::Sha256Of(upload.bytes.data(), upload.bytes.size()));
  header.set_rescale_slope(upload.rescale_slope);
  header.set_rescale_intercept(upload.rescale_intercept);
  return header;
}

}  // namespace

absl::StatusOr<v1::UploadVolumeResponse> Client::UploadVolume(const VolumeUpload& upload, const CallOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::UploadVolumeHeader header, MakeHeader(upload));
  v1::UploadVolumeResponse response;
  INTRAWARP_RETURN_IF_ERROR(SendResuming(
      impl_->options.upload_attempts, options,
      [&](int64_t offset, bool* reached) { return SendVolume(header, upload, offset, options, &response, reached); },
      [&] { return CommittedBytes(header, options); }));
  return response;
}

// A false Write means that the server has answered already, well or badly, or that the stream broke: Finish knows.
absl::Status Client::SendVolume(const v1::UploadVolumeHeader& header, const VolumeUpload& upload, int64_t offset,
                                const CallOptions& options, v1::UploadVolumeResponse* response, bool* sent_any) {
  Call call(options);
  const auto writer = impl_->bulk_volumes.UploadVolume(call.context(), response);
  v1::UploadVolumeRequest request;
  *request.mutable_header() = header;
  bool open = writer->Write(request);
  *sent_any |= open;
  open =
      open && WriteChunks(upload.bytes, offset, impl_->options.chunk_bytes, request.mutable_chunk(), [&](int64_t sent) {
        if (upload.on_progress) upload.on_progress(sent, header.total_bytes());
        return writer->Write(request);
      });
  if (open) writer->WritesDone();
  return FromGrpcStatus(writer->Finish());
}

absl::StatusOr<int64_t> Client::CommittedBytes(const v1::UploadVolumeHeader& header, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::GetUploadStatusRequest request;
  request.set_upload_id(header.upload_id());
  v1::GetUploadStatusResponse response;
  const absl::Status status = FromGrpcStatus(impl_->volumes.GetUploadStatus(call.context(), request, &response));
  return CommittedSize(status, response.committed_size(), header.total_bytes());
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
  Call call(options);
  v1::DownloadVolumeRequest request;
  request.set_name(name);
  v1::Volume volume;
  GridReceiver receiver(voxels, 1, impl_->options.max_answer_bytes);
  const auto accept = [&](v1::DownloadVolumeResponse& response) {
    if (!response.has_header()) return receiver.Append(response.chunk());
    volume = std::move(*response.mutable_header()->mutable_volume());
    return receiver.Begin(volume.geometry(), response.header().total_bytes());
  };
  INTRAWARP_RETURN_IF_ERROR(ReadGrid<v1::DownloadVolumeResponse>(
      call, *impl_->bulk, "/intrawarp.v1.VolumeService/DownloadVolume", request, receiver, accept));
  INTRAWARP_RETURN_IF_ERROR(receiver.Finish());
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
