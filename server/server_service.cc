// SPDX-License-Identifier: Apache-2.0
#include "server/server_service.h"

#include "engine/registration/registration.h"
#include "server/bulk/upload_store.h"
#include "server/rpc/caller.h"
#include "server/rpc/wire.h"
#include "server/version.h"

namespace intrawarp::server {
namespace {

void FillUse(const ResourceUse& from, v1::ResourceUse* to) {
  to->set_in_use(from.in_use);
  to->set_capacity(from.capacity);
  to->set_session_in_use(from.session_in_use);
  to->set_session_reserve(from.session_reserve);
  to->set_peak(from.peak);
}

}  // namespace

grpc::ServerUnaryReactor* ServerService::GetServerInfo(grpc::CallbackServerContext* call,
                                                       const v1::GetServerInfoRequest*,
                                                       v1::GetServerInfoResponse* response) {
  v1::ServerInfo* info = response->mutable_info();
  const BuildInfo build = ThisBuild();
  info->set_version(build.version);
  info->set_revision(build.revision);
  *info->mutable_start_time() = TimestampToProto(start_time_);
  for (int i = 0; i < context_.devices.size(); ++i) FillDevice(context_.devices[i], info->add_devices());
  FillLimits(info->mutable_limits());
  FillUsage(CallerOf(*call), info->mutable_usage());
  FillResources(info->mutable_resources());
  const google::protobuf::OneofDescriptor& methods = *v1::Stage::descriptor()->FindOneofByName("method");
  for (int i = 0; i < methods.field_count(); ++i) info->add_methods(methods.field(i)->name());
  for (v1::Metric metric : {v1::METRIC_SSD, v1::METRIC_NGF, v1::METRIC_NMI, v1::METRIC_LNCC}) info->add_metrics(metric);
  for (int type = v1::PIXEL_TYPE_UINT8; type <= v1::PIXEL_TYPE_FLOAT64; ++type) {
    info->add_pixel_types(static_cast<v1::PixelType>(type));
  }
  for (int encoding = v1::FIELD_ENCODING_FLOAT32; encoding <= v1::FIELD_ENCODING_VELOCITY; ++encoding) {
    info->add_field_encodings(static_cast<v1::FieldEncoding>(encoding));
  }
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

void ServerService::FillDevice(const DeviceContext& from, v1::Device* to) const {
  to->set_name(from.device.name());
  to->set_model(from.device.model());
  to->set_healthy(CheckUsable(from).ok());
  const DeviceMemory memory = from.probe.memory();
  to->set_memory_total_bytes(memory.total_bytes);
  to->set_memory_free_bytes(memory.free_bytes);
  FillUse(from.ledger.use(Resource::kResident, from.index), to->mutable_resident_memory());
  FillUse(from.ledger.use(Resource::kWorkspace, from.index), to->mutable_workspace_memory());
}

void ServerService::FillLimits(v1::Limits* to) const {
  const ServerLimits& limits = context_.limits;
  to->set_max_chunk_bytes(limits.max_chunk_bytes);
  to->set_max_volume_bytes(limits.max_volume_bytes);
  to->set_resident_capacity_bytes(limits.resident_capacity_bytes);
  to->set_max_queued_jobs(limits.max_queued_jobs);
  to->set_max_sparse_matrix_bytes(limits.max_matrix_bytes);
  *to->mutable_upload_ttl() = DurationToProto(limits.upload_ttl);
  to->set_max_uploads(limits.max_uploads);
  to->set_max_streams(limits.max_streams);
  to->set_max_transforms(limits.max_transforms);
  to->set_pinned_capacity_bytes(limits.pinned_capacity_bytes);
  to->set_max_points(limits.max_points);
  to->set_max_pending_frames(limits.max_pending_frames);
  to->set_max_stages(kMaxStages);
  to->set_workspace_capacity_bytes(limits.workspace_capacity_bytes);
  to->set_max_sessions(limits.max_sessions);
  if (limits.result_ttl.count() > 0) *to->mutable_result_ttl() = DurationToProto(limits.result_ttl);
  *to->mutable_stream_idle_timeout() = DurationToProto(limits.stream_idle_timeout);
  to->set_uploading_capacity_bytes(limits.uploading_capacity_bytes);
}

// Objects count that the caller sees.
void ServerService::FillUsage(const Identity& caller, v1::Usage* to) const {
  to->set_volumes(context_.volumes.size(caller));
  to->set_transforms(context_.transforms.size(caller));
  to->set_uploads(context_.uploads.size(caller));
  to->set_streams(context_.ledger.in_use(Resource::kStreams));
  int64_t jobs = 0;
  for (int i = 0; i < context_.devices.size(); ++i) jobs += context_.devices[i].jobs.pending();
  to->set_jobs(jobs);
  to->set_sparse_matrices(context_.matrices.size(caller));
  to->set_resident_bytes(caller.is_admin() ? context_.ledger.in_use(Resource::kResident)
                                           : context_.ledger.owner_use(caller.name).resident_bytes);
}

void ServerService::FillResources(v1::Resources* to) const {
  const auto use = [this](Resource resource, v1::ResourceUse* of) { FillUse(context_.ledger.use(resource), of); };
  use(Resource::kResident, to->mutable_resident_memory());
  use(Resource::kWorkspace, to->mutable_workspace_memory());
  use(Resource::kPinned, to->mutable_pinned_memory());
  use(Resource::kUploading, to->mutable_upload_memory());
  use(Resource::kTransforms, to->mutable_transforms());
  use(Resource::kStreams, to->mutable_streams());
  use(Resource::kUploads, to->mutable_uploads());
  use(Resource::kSessions, to->mutable_sessions());
}

}  // namespace intrawarp::server
