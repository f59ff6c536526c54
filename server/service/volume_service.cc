// SPDX-License-Identifier: Apache-2.0
#include "server/service/volume_service.h"

#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/rpc/caller.h"
#include "server/rpc/unary.h"
#include "server/store/durable_objects.h"
#include "server/trail/audit_trail.h"
#include "server/volume/volume_messages.h"

namespace intrawarp::server {
namespace {

absl::Status Get(const VolumeStore& volumes, const Identity& caller, const std::string& name, v1::Volume& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseVolumeName(name, "name"));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredVolume> volume, volumes.Find(id, caller));
  response = VolumeToProto(*volume);
  return absl::OkStatus();
}

absl::Status List(const VolumeStore& volumes, const Identity& caller, const v1::ListVolumesRequest& request,
                  v1::ListVolumesResponse& response) {
  const auto list = [&](const std::string& after, int limit) {
    ListedMessages<v1::Volume> page;
    for (const auto& volume : volumes.List(after, limit, caller)) {
      page[OwnedKey(volume->id, volume->owner)] = VolumeToProto(*volume);
    }
    for (const std::string& key : volumes.ListLost(after, limit, caller)) {
      page[key] = FailedVolume(IdIn(key), OwnerIn(key));
    }
    return page;
  };
  return ListPage("volumes", request, response, *response.mutable_volumes(), list);
}

absl::Status Delete(ServerContext& context, const Identity& caller, const std::string& name) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseVolumeName(name, "name"));
  return context.durable.Erase(context.volumes, id, caller);
}

}  // namespace

grpc::ServerUnaryReactor* VolumeService::GetVolume(grpc::CallbackServerContext* call,
                                                   const v1::GetVolumeRequest* request,
                                                   v1::GetVolumeResponse* response) {
  return Reply(call, Get(context_.volumes, CallerOf(*call), request->name(), *response->mutable_volume()));
}

grpc::ServerUnaryReactor* VolumeService::ListVolumes(grpc::CallbackServerContext* call,
                                                     const v1::ListVolumesRequest* request,
                                                     v1::ListVolumesResponse* response) {
  return Reply(call, List(context_.volumes, CallerOf(*call), *request, *response));
}

grpc::ServerUnaryReactor* VolumeService::DeleteVolume(grpc::CallbackServerContext* call,
                                                      const v1::DeleteVolumeRequest* request,
                                                      v1::DeleteVolumeResponse*) {
  AuditOf(*call)->Name("object", request->name());
  return ReplyFromDisk(call, context_.durable, [&context = context_, caller = CallerOf(*call), name = request->name()] {
    return Delete(context, caller, name);
  });
}

}  // namespace intrawarp::server
