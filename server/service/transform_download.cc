// SPDX-License-Identifier: Apache-2.0
#include "server/service/transform_download.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/wire.h"
#include "server/bulk/device_bulk.h"
#include "server/bulk/field_request.h"
#include "server/bulk/field_stream.h"
#include "server/context/limits.h"
#include "server/device/device_set.h"
#include "server/job/job_support.h"
#include "server/placement/replication.h"
#include "server/registration/registration_options.h"
#include "server/rpc/chunk_codec.h"
#include "server/service/download.h"
#include "server/service/transform_service.h"
#include "server/store/find_object.h"

namespace intrawarp::server {
namespace {

struct DownloadCall {
  DownloadCall(ServerContext& context, std::shared_ptr<JobStream> stream)
      : context(context), stream(std::move(stream)) {}

  ServerContext& context;
  // Set once the call is placed.
  DeviceContext* device = nullptr;
  const std::shared_ptr<JobStream> stream;
  std::shared_ptr<const StoredTransform> transform;
  Geometry grid;
  std::string etag;
  int64_t offset = 0;
  // A field only.
  FieldRequest field;
  // A warped volume only.
  std::shared_ptr<const StoredVolume> moving;
  Interpolation interpolation = Interpolation::kLinear;
  bool inverse = false;
  float fill = 0;
  // For what the answer will hold.
  Grant grant;
};

absl::StatusOr<Geometry> GridFromProto(const ServerContext& context, const v1::Geometry& from,
                                       absl::string_view field) {
  absl::StatusOr<Geometry> grid = GeometryFromProto(from);
  if (!grid.ok()) return Within(field, grid.status());
  absl::Status size = ValidateOutputSize(context.limits, *grid);
  if (!size.ok()) return Within(field, size);
  return grid;
}

absl::StatusOr<Geometry> DownloadDomain(const DownloadCall& call, const v1::DownloadRequest& request) {
  if (request.has_geometry()) return GridFromProto(call.context, request.geometry(), "geometry");
  if (call.transform->transform.domain()) return *call.transform->transform.domain();
  return InvalidField("geometry",
                      absl::StrCat("must be given, since ", TransformName(call.transform->id), " has no domain"));
}

absl::Status CheckForm(const DownloadCall& call) {
  if (HasForm(call.transform->transform, call.field.form)) return absl::OkStatus();
  return FieldError(absl::StatusCode::kFailedPrecondition, "field.encoding",
                    absl::StrCat(TransformName(call.transform->id), " has no ", FormName(call.field.form)));
}

absl::StatusOr<Geometry> ResolveGrid(const DownloadCall& call, const v1::DownloadRequest& request) {
  if (call.field.form == FieldForm::kControlPoints) return call.transform->transform.control_grid().geometry;
  INTRAWARP_ASSIGN_OR_RETURN(const Geometry domain, DownloadDomain(call, request));
  absl::StatusOr<Geometry> grid = FieldGrid(call.field, domain);
  if (!grid.ok()) return Within("field", grid.status());
  return grid;
}

absl::Status ResolveDownload(DownloadCall& call, const v1::DownloadRequest& request) {
  absl::StatusOr<FieldRequest> field = FieldRequestFromProto(request.field());
  if (!field.ok()) return Within("field", field.status());
  call.field = *field;
  INTRAWARP_ASSIGN_OR_RETURN(call.transform,
                             FindTransform(call.context.transforms, request.name(), "name", call.stream->caller()));
  if (call.field.form == FieldForm::kControlPoints && request.has_geometry()) {
    return InvalidField("geometry", "does not go with CONTROL_POINTS");
  }
  INTRAWARP_RETURN_IF_ERROR(CheckForm(call));
  INTRAWARP_ASSIGN_OR_RETURN(call.grid, ResolveGrid(call, request));
  call.etag = Etag()
                  .Add(request.name(), call.transform->create_time)
                  .Add(call.transform->digest)
                  .AddComputer(call.context.devices[0].device)
                  .Add(request.field().SerializeAsString())
                  .Add(GeometryToProto(call.grid).SerializeAsString())
                  .Finish();
  call.offset = request.offset();
  return CheckResumption(request.offset(), request.etag(), FieldBytes(call.field, call.grid), call.etag);
}

absl::StatusOr<Interpolation> InterpolationFromProto(v1::Interpolation from) {
  switch (from) {
    case v1::INTERPOLATION_UNSPECIFIED:
    case v1::INTERPOLATION_LINEAR:
      return Interpolation::kLinear;
    case v1::INTERPOLATION_NEAREST:
      return Interpolation::kNearest;
    case v1::INTERPOLATION_CUBIC:
      return Interpolation::kCubic;
    default:
      return InvalidField("interpolation", absl::StrCat(static_cast<int>(from), " is not an interpolation"));
  }
}

absl::StatusOr<Geometry> WarpGrid(const ServerContext& context, const v1::WarpVolumeRequest& request,
                                  const Identity& caller) {
  switch (request.like_case()) {
    case v1::WarpVolumeRequest::kLikeVolume: {
      INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const StoredVolume> like,
                                 FindVolume(context.volumes, request.like_volume(), "like_volume", caller));
      return like->image.geometry();
    }
    case v1::WarpVolumeRequest::kLikeGeometry:
      return GridFromProto(context, request.like_geometry(), "like_geometry");
    case v1::WarpVolumeRequest::LIKE_NOT_SET:
      break;
  }
  return InvalidField("like", "like_volume or like_geometry must be given");
}

int64_t WarpedBytes(const Geometry& grid) { return grid.voxels() * static_cast<int64_t>(sizeof(float)); }

std::string WarpEtag(const DownloadCall& call, v1::WarpVolumeRequest question) {
  question.clear_offset();
  question.clear_etag();
  return Etag()
      .Add(question.transform(), call.transform->create_time)
      .Add(call.transform->digest)
      .Add(question.moving(), call.moving->create_time)
      .Add(call.moving->digest)
      .AddComputer(call.context.devices[0].device)
      .Add(question.SerializeAsString())
      .Add(GeometryToProto(call.grid).SerializeAsString())
      .Finish();
}

absl::Status ResolveWarp(DownloadCall& call, const grpc::ByteBuffer& bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(v1::WarpVolumeRequest request, ParseMessage<v1::WarpVolumeRequest>(bytes));
  call.stream->audit().Name("transform", request.transform());
  call.stream->audit().Name("moving", request.moving());
  INTRAWARP_ASSIGN_OR_RETURN(call.interpolation, InterpolationFromProto(request.interpolation()));
  INTRAWARP_ASSIGN_OR_RETURN(
      call.transform, FindTransform(call.context.transforms, request.transform(), "transform", call.stream->caller()));
  INTRAWARP_ASSIGN_OR_RETURN(call.moving,
                             FindVolume(call.context.volumes, request.moving(), "moving", call.stream->caller()));
  call.stream->audit().Digest("moving", call.moving->content_digest);
  INTRAWARP_ASSIGN_OR_RETURN(call.grid, WarpGrid(call.context, request, call.stream->caller()));
  call.inverse = request.inverse();
  call.fill = request.fill();
  call.offset = request.offset();
  call.etag = WarpEtag(call, request);
  return CheckResumption(request.offset(), request.etag(), WarpedBytes(call.grid), call.etag);
}

Claim FieldClaim(const DownloadCall& call) {
  Claim claim;
  const int64_t bytes = FieldBytes(call.field, call.grid);
  static_cast<Amounts&>(claim) = FieldStreamAmounts(call.device->device, call.field, call.grid, bytes, call.offset);
  claim.workspace_bytes = FieldStreamWorkspaceBytes();
  return claim;
}

absl::Status FieldJob(DownloadCall& call, const ExecContext& ctx) {
  if (call.stream->closed()) return call.stream->control().CancelStatus();
  INTRAWARP_ASSIGN_OR_RETURN(FieldStream field,
                             MakeFieldStream(ctx, *call.device, call.field, call.transform->transform, call.transform,
                                             call.grid, call.offset, call.grant));
  v1::DownloadResponse response;
  response.mutable_header()->set_total_bytes(FieldBytes(call.field, call.grid));
  response.mutable_header()->set_etag(call.etag);
  *response.mutable_header()->mutable_field() = field.header;
  return StartBulk(call.stream, SerializeMessage(response), std::move(field.bulk),
                   v1::DownloadResponse::kChunkFieldNumber);
}

int64_t WarpedMemory(const DownloadCall& call) {
  return static_cast<int64_t>(Arena::Rounded(static_cast<size_t>(WarpedBytes(call.grid))));
}

// The warped volume stays on the device until it is sent.
Claim WarpClaim(const DownloadCall& call) {
  Claim claim;
  claim.resident_bytes = WarpedMemory(call);
  if (call.interpolation == Interpolation::kCubic) {
    claim.workspace_bytes = static_cast<int64_t>(CubicWarpWorkspaceBytes(call.moving->image.geometry()));
  }
  claim.pinned_bytes = DeviceBulk::RingBytes(WarpedBytes(call.grid), ResidentSource::kSlabBytes, call.offset);
  return claim;
}

// Member order matters: the volume is freed before its memory is given back.
struct WarpedVolume {
  Grant grant;
  Buffer memory;
};

absl::StatusOr<std::shared_ptr<const WarpedVolume>> Warp(DownloadCall& call, const ExecContext& ctx) {
  auto warped = std::make_shared<WarpedVolume>();
  const int64_t bytes = WarpedMemory(call);
  warped->grant = call.grant.Split({.resident_bytes = bytes});
  INTRAWARP_ASSIGN_OR_RETURN(warped->memory, ctx.device().Allocate(static_cast<size_t>(bytes), ctx.stream()));
  INTRAWARP_RETURN_IF_ERROR(WarpVolume(ctx, call.transform->transform, call.inverse, call.moving->image.volume(),
                                       call.interpolation, call.fill, {warped->memory.as<float>(), call.grid}));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
  return warped;
}

absl::Status WarpJob(DownloadCall& call, const ExecContext& ctx) {
  if (call.stream->closed()) return call.stream->control().CancelStatus();
  const int64_t bytes = WarpedBytes(call.grid);
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const WarpedVolume> warped, Warp(call, ctx));
  auto source = std::make_shared<ResidentSource>(ResidentBytes{warped, {{warped->memory.as<void>(), bytes}}});
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<DeviceBulk> bulk,
                             DeviceBulk::Create(*call.device, std::move(source), call.offset, call.grant));
  v1::WarpVolumeResponse response;
  *response.mutable_header()->mutable_geometry() = GeometryToProto(call.grid);
  response.mutable_header()->set_total_bytes(bytes);
  response.mutable_header()->set_etag(call.etag);
  return StartBulk(call.stream, SerializeMessage(response), std::move(bulk), v1::WarpVolumeResponse::kChunkFieldNumber);
}

absl::Status Submit(const std::shared_ptr<DownloadCall>& call, Claim claim,
                    absl::Status (*body)(DownloadCall&, const ExecContext&)) {
  claim.owner = call->stream->caller().name;
  claim.is_short = true;
  INTRAWARP_ASSIGN_OR_RETURN(call->grant, Admit(*call->device, claim));
  auto workspace = std::make_shared<Grant>(call->grant.Split({.workspace_bytes = claim.workspace_bytes}));
  Job job;
  job.is_short = true;
  job.workspace_bytes = claim.workspace_bytes;
  job.checkpoint = [call](const Progress& progress) { return call->stream->control().Check(progress); };
  job.run = [call, body, workspace = std::move(workspace)](const absl::StatusOr<const ExecContext*>& ctx) {
    call->stream->Close(ctx.ok() ? body(*call, **ctx) : ctx.status());
  };
  return SubmitJob(*call->device, *call->stream, std::move(job));
}

// Chooses a device, and brings there what is elsewhere.
absl::Status PlaceWarp(const std::shared_ptr<DownloadCall>& call) {
  Inputs inputs;
  inputs.volumes = {&call->moving};
  inputs.transforms = {&call->transform};
  const Claim claim = WarpClaim(*call);
  INTRAWARP_ASSIGN_OR_RETURN(call->device, PlaceJob(call->context, inputs, JobClass::kInteractive, claim));
  BringTo(*call->device, inputs, Share::kCommon, [call, claim](const absl::Status& brought) {
    const absl::Status status = brought.ok() ? Submit(call, claim, WarpJob) : brought;
    if (!status.ok()) call->stream->Close(status);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status SendField(ServerContext& context, const v1::DownloadRequest& request,
                       const std::shared_ptr<JobStream>& stream) {
  auto call = std::make_shared<DownloadCall>(context, stream);
  INTRAWARP_RETURN_IF_ERROR(ResolveDownload(*call, request));
  call->device = &context.devices[DeviceOf(*call->transform)];
  return Submit(call, FieldClaim(*call), FieldJob);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartWarpVolume(ServerContext& context,
                                                            const grpc::CallbackServerContext& rpc,
                                                            const grpc::ByteBuffer& request) {
  std::shared_ptr<JobStream> stream = JobStream::Create(context, rpc);
  if (stream->closed()) return stream.get();
  auto call = std::make_shared<DownloadCall>(context, stream);
  absl::Status status = ResolveWarp(*call, request);
  if (status.ok()) status = PlaceWarp(call);
  if (!status.ok()) stream->Close(status);
  return stream.get();
}

}  // namespace intrawarp::server
