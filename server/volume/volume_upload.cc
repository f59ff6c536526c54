// SPDX-License-Identifier: Apache-2.0
#include "server/volume/volume_upload.h"

#include <utility>

#include "engine/image/pyramid.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/bulk/resident_upload.h"
#include "server/store/volume_store.h"
#include "server/volume/volume_messages.h"

namespace intrawarp::server {
namespace {

struct VolumeKind {
  using Request = v1::UploadVolumeRequest;
  using Spec = VolumeSpec;
  using Object = PreparedImage;
  using Stored = StoredVolume;
  static constexpr char kMethod[] = "intrawarp.v1.VolumeService/UploadVolume";

  static absl::StatusOr<VolumeSpec> Parse(const v1::UploadVolumeHeader& header, const ServerLimits& limits) {
    return ParseUploadHeader(header, limits);
  }
  static VolumeStore& Store(ServerContext& context) { return context.volumes; }
  static absl::Status Check(const void*, const VolumeSpec&) { return absl::OkStatus(); }
  static int64_t WorkspaceBytes(const VolumeSpec& spec) {
    return PreparedImage::WorkspaceBytes(spec.geometry, spec.pixel_type);
  }
  static absl::StatusOr<PreparedImage> Make(const ExecContext& ctx, const void* data, const VolumeSpec& spec) {
    return PreparedImage::Prepare(ctx, data, spec.pixel_type, spec.rescale.slope, spec.rescale.intercept,
                                  spec.geometry);
  }
  static void Fill(const VolumeSpec& spec, PreparedImage image, StoredVolume& stored) {
    stored.pixel_type = spec.pixel_type;
    stored.image = std::move(image);
  }
  static v1::UploadVolumeResponse Answer(const StoredVolume& stored, bool already_resident) {
    v1::UploadVolumeResponse response;
    *response.mutable_volume() = VolumeToProto(stored);
    response.set_already_resident(already_resident);
    return response;
  }
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartUploadVolume(ServerContext& context, grpc::CallbackServerContext* call,
                                                             grpc::ByteBuffer* response) {
  return ResidentUpload<VolumeKind>::Start(context, call, response);
}

}  // namespace intrawarp::server
