// SPDX-License-Identifier: Apache-2.0
#include "server/service/volume_service.h"

#include <map>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/base/paging.h"
#include "server/rpc/caller.h"
#include "server/rpc/grpc_status.h"
#include "server/store/durable_objects.h"
#include "server/trail/audit_trail.h"
#include "server/volume/volume_messages.h"

namespace intrawarp::server {
namespace {

grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::Status Get(const VolumeStore& volumes, const Identity& caller, const std::string& name, v1::Volume& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseVolumeName(name, "name"));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredVolume> volume, volumes.Find(id, caller));
  response = VolumeToProto(*volume);
  return absl::OkStatus();
}

absl::Status List(const VolumeStore& volumes, const Identity& caller, const v1::ListVolumesRequest& request,
                  v1::ListVolumesResponse& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const int page_size, PageSize(request.page_size()));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string after, ParsePageToken("volumes", request.page_token()));
  // One more than asked tells whether there is a next page.
  std::map<std::string, v1::Volume> page;
  for (const auto& volume : volumes.List(after, page_size + 1, caller)) {
    page[OwnedKey(volume->id, volume->owner)] = VolumeToProto(*volume);
  }
  for (const std::string& key : volumes.ListLost(after, page_size + 1, caller)) {
    page[key] = FailedVolume(IdIn(key), OwnerIn(key));
  }
  std::string last;
  for (auto& [key, volume] : page) {
    if (response.volumes_size() == page_size) {
      response.set_next_page_token(PageToken("volumes", last));
      break;
    }
    *response.add_volumes() = std::move(volume);
    last = key;
  }
  return absl::OkStatus();
}

absl::Status Delete(ServerContext& context, const Identity& caller, const std::string& name) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseVolumeName(name, "name"));
  return context.durable.Erase(context.volumes, id, caller);
}

}  // namespace

grpc::ServerUnaryReactor* VolumeService::GetVolume(grpc::CallbackServerContext* call,
                                                   const v1::GetVolumeRequest* request,
                                                   v1::GetVolumeResponse* response) {
  return Finished(call, Get(context_.volumes, CallerOf(*call), request->name(), *response->mutable_volume()));
}

grpc::ServerUnaryReactor* VolumeService::ListVolumes(grpc::CallbackServerContext* call,
                                                     const v1::ListVolumesRequest* request,
                                                     v1::ListVolumesResponse* response) {
  return Finished(call, List(context_.volumes, CallerOf(*call), *request, *response));
}

grpc::ServerUnaryReactor* VolumeService::DeleteVolume(grpc::CallbackServerContext* call,
                                                      const v1::DeleteVolumeRequest* request,
                                                      v1::DeleteVolumeResponse*) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  AuditOf(*call)->Name("object", request->name());
  context_.durable.Run([&context = context_, reactor, caller = CallerOf(*call), name = request->name()] {
    reactor->Finish(ToGrpcStatus(Delete(context, caller, name)));
  });
  return reactor;
}

}  // namespace intrawarp::server
