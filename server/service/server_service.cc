// SPDX-License-Identifier: Apache-2.0
#include "server/service/server_service.h"

#include <algorithm>
#include <optional>

#include "engine/base/status_macros.h"
#include "engine/registration/registration.h"
#include "engine/schedule/scheduler.h"
#include "server/base/version.h"
#include "server/base/wire.h"
#include "server/bulk/upload_store.h"
#include "server/context/limits.h"
#include "server/device/device_set.h"
#include "server/monitor/device_probe.h"
#include "server/monitor/log_levels.h"
#include "server/rpc/caller.h"
#include "server/rpc/unary.h"
#include "server/status/errors.h"
#include "server/store/matrix_store.h"
#include "server/store/transform_store.h"
#include "server/store/volume_store.h"
#include "server/trail/audit_trail.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

constexpr std::chrono::hours kMaxLogLevelTime{24 * 7};

void FillUse(const ResourceUse& from, v1::ResourceUse* to) {
  to->set_in_use(from.in_use);
  to->set_capacity(from.capacity);
  to->set_session_in_use(from.session_in_use);
  to->set_session_reserve(from.session_reserve);
  to->set_peak(from.peak);
}

// For a caller who sees the own objects alone: what the others have appears in no number.
void FillOwnUse(int64_t in_use, const ResourceUse& all, v1::ResourceUse* to) {
  to->set_in_use(in_use);
  to->set_capacity(all.capacity);
  to->set_session_reserve(all.session_reserve);
}

Severity SeverityOf(v1::LogLevel level) { return static_cast<Severity>(level - v1::LOG_LEVEL_DEBUG); }

}  // namespace

grpc::ServerUnaryReactor* ServerService::GetServerInfo(grpc::CallbackServerContext* call,
                                                       const v1::GetServerInfoRequest*,
                                                       v1::GetServerInfoResponse* response) {
  v1::ServerInfo* info = response->mutable_info();
  const BuildInfo build = ThisBuild();
  info->set_version(build.version);
  info->set_revision(build.revision);
  *info->mutable_start_time() = TimestampToProto(start_time_);
  for (int i = 0; i < context_.devices.size(); ++i)
    FillDevice(CallerOf(*call), context_.devices[i], info->add_devices());
  FillLimits(info->mutable_limits());
  FillUsage(CallerOf(*call), info->mutable_usage());
  FillResources(CallerOf(*call), info->mutable_resources());
  FillLogLevels(info->mutable_log_levels());
  const google::protobuf::OneofDescriptor& methods = *v1::Stage::descriptor()->FindOneofByName("method");
  for (int i = 0; i < methods.field_count(); ++i) info->add_methods(methods.field(i)->name());
  for (int metric = v1::METRIC_SSD; metric <= v1::METRIC_MIND; ++metric) {
    info->add_metrics(static_cast<v1::Metric>(metric));
  }
  for (int type = v1::PIXEL_TYPE_UINT8; type <= v1::PIXEL_TYPE_FLOAT64; ++type) {
    info->add_pixel_types(static_cast<v1::PixelType>(type));
  }
  for (int encoding = v1::FIELD_ENCODING_FLOAT32; encoding <= v1::FIELD_ENCODING_VELOCITY; ++encoding) {
    info->add_field_encodings(static_cast<v1::FieldEncoding>(encoding));
  }
  return Reply(call, absl::OkStatus());
}

grpc::ServerUnaryReactor* ServerService::SetLogLevel(grpc::CallbackServerContext* call,
                                                     const v1::SetLogLevelRequest* request,
                                                     v1::SetLogLevelResponse* response) {
  const absl::Status status = SetLevels(*request);
  if (status.ok()) {
    AuditOf(*call)->Options(*request);
    FillLogLevels(response->mutable_log_levels());
  }
  return Reply(call, status);
}

absl::Status ServerService::SetLevels(const v1::SetLogLevelRequest& request) {
  if (request.level() < v1::LOG_LEVEL_DEBUG || request.level() > v1::LOG_LEVEL_ERROR) {
    return InvalidField("level", "must be a level");
  }
  const std::optional<LogRoom> room = ParseLogRoom(request.room());
  if (!room && !request.room().empty()) return InvalidField("room", "must be one of GetServerInfo's, or empty");
  std::optional<LogLevels::Time> until;
  if (request.has_revert_after()) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::chrono::nanoseconds revert_after,
                               DurationFromProto(request.revert_after(), "revert_after", kMaxLogLevelTime));
    until = context_.seams.steady_now() + revert_after;
  }
  Log(Severity::kInfo, "log_level_set",
      {{"room", room ? NameOf(*room) : "all"}, {"level", NameOf(SeverityOf(request.level()))}});
  for (int i = 0; i < kLogRooms; ++i) {
    const auto each = static_cast<LogRoom>(i);
    if (!room || each == *room) TheLogLevels().Set(each, SeverityOf(request.level()), until);
  }
  return absl::OkStatus();
}

void ServerService::FillLogLevels(google::protobuf::RepeatedPtrField<v1::RoomLogLevel>* to) const {
  const LogLevels& levels = TheLogLevels();
  for (int i = 0; i < kLogRooms; ++i) {
    const auto room = static_cast<LogRoom>(i);
    v1::RoomLogLevel& level = *to->Add();
    level.set_room(NameOf(room));
    level.set_level(static_cast<v1::LogLevel>(v1::LOG_LEVEL_DEBUG + static_cast<int>(levels.level(room))));
    const std::optional<LogLevels::Time> until = levels.until(room);
    if (!until) continue;
    const std::chrono::nanoseconds left = *until - context_.seams.steady_now();
    *level.mutable_reverts_after() = DurationToProto(std::max(left, std::chrono::nanoseconds(0)));
  }
}

void ServerService::FillDevice(const Identity& caller, const DeviceContext& from, v1::Device* to) const {
  to->set_name(from.device.name());
  to->set_model(from.device.model());
  to->set_healthy(CheckUsable(from).ok());
  const DeviceMemory memory = from.probe.memory();
  to->set_memory_total_bytes(memory.total_bytes);
  const ResourceUse resident = from.ledger.use(Resource::kResident, from.index);
  const ResourceUse workspace = from.ledger.use(Resource::kWorkspace, from.index);
  if (!caller.is_admin()) {
    to->mutable_resident_memory()->set_capacity(resident.capacity);
    to->mutable_workspace_memory()->set_capacity(workspace.capacity);
    return;
  }
  to->set_memory_free_bytes(memory.free_bytes);
  FillUse(resident, to->mutable_resident_memory());
  FillUse(workspace, to->mutable_workspace_memory());
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
  to->set_max_operations(limits.max_operations);
  *to->mutable_operation_ttl() = DurationToProto(limits.operation_ttl);
}

// Objects and streams count that are the caller's; an admin's are all.
void ServerService::FillUsage(const Identity& caller, v1::Usage* to) const {
  to->set_volumes(context_.volumes.size(caller));
  to->set_transforms(context_.transforms.size(caller));
  to->set_uploads(context_.uploads.size(caller));
  to->set_streams(caller.is_admin() ? context_.ledger.in_use(Resource::kStreams)
                                    : context_.ledger.owner_use(caller.name).streams);
  int64_t jobs = 0;
  for (int i = 0; i < context_.devices.size(); ++i) jobs += context_.devices[i].jobs.pending();
  to->set_jobs(jobs);
  to->set_sparse_matrices(context_.matrices.size(caller));
  to->set_resident_bytes(caller.is_admin() ? context_.ledger.in_use(Resource::kResident)
                                           : context_.ledger.owner_use(caller.name).resident_bytes);
}

void ServerService::FillResources(const Identity& caller, v1::Resources* to) const {
  const Amounts own = context_.ledger.owner_use(caller.name);
  const auto use = [&](Resource resource, v1::ResourceUse* of) {
    const ResourceUse all = context_.ledger.use(resource);
    caller.is_admin() ? FillUse(all, of) : FillOwnUse(own[resource], all, of);
  };
  use(Resource::kResident, to->mutable_resident_memory());
  use(Resource::kWorkspace, to->mutable_workspace_memory());
  use(Resource::kPinned, to->mutable_pinned_memory());
  use(Resource::kUploading, to->mutable_upload_memory());
  use(Resource::kTransforms, to->mutable_transforms());
  use(Resource::kStreams, to->mutable_streams());
  use(Resource::kUploads, to->mutable_uploads());
  use(Resource::kSessions, to->mutable_sessions());
  use(Resource::kOperations, to->mutable_operations());
}

}  // namespace intrawarp::server
