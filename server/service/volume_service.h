// SPDX-License-Identifier: Apache-2.0
// VolumeService: the volumes that stay resident.
#ifndef INTRAWARP_SERVER_SERVICE_VOLUME_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_VOLUME_SERVICE_H_

#include "intrawarp/v1/volume.grpc.pb.h"
#include "server/context/server_context.h"

namespace intrawarp::server {

using VolumeServiceBase =
    v1::VolumeService::WithCallbackMethod_GetVolume<v1::VolumeService::WithCallbackMethod_ListVolumes<
        v1::VolumeService::WithCallbackMethod_DeleteVolume<v1::VolumeService::Service>>>;

class VolumeService final : public VolumeServiceBase {
 public:
  explicit VolumeService(ServerContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetVolume(grpc::CallbackServerContext* call, const v1::GetVolumeRequest* request,
                                      v1::GetVolumeResponse* response) override;
  grpc::ServerUnaryReactor* ListVolumes(grpc::CallbackServerContext* call, const v1::ListVolumesRequest* request,
                                        v1::ListVolumesResponse* response) override;
  grpc::ServerUnaryReactor* DeleteVolume(grpc::CallbackServerContext* call, const v1::DeleteVolumeRequest* request,
                                         v1::DeleteVolumeResponse* response) override;

 private:
  ServerContext& context_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_VOLUME_SERVICE_H_
