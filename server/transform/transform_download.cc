// SPDX-License-Identifier: Apache-2.0
#include "server/transform/transform_download.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/bulk/bulk_stream.h"
#include "server/bulk/chunk_codec.h"
#include "server/bulk/download.h"
#include "server/registration/registration_options.h"
#include "server/rpc/job_support.h"
#include "server/rpc/wire.h"
#include "server/transform/field_request.h"
#include "server/transform/transform_service.h"

namespace intrawarp::server {
namespace {

struct DownloadCall {
  DownloadCall(ServerContext& context, std::shared_ptr<JobStream> stream)
      : context(context), stream(std::move(stream)) {}

  ServerContext& context;
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
};

absl::StatusOr<Geometry> GridFromProto(const ServerContext& context, const v1::Geometry& from,
                                       absl::string_view field) {
  absl::StatusOr<Geometry> grid = GeometryFromProto(from);
  if (!grid.ok()) return Within(field, grid.status());
  absl::Status size = ValidateOutputSize(context, *grid);
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
  INTRAWARP_ASSIGN_OR_RETURN(call.transform, FindTransform(call.context.transforms, request.name(), "name"));
  if (call.field.form == FieldForm::kControlPoints && request.has_geometry()) {
    return InvalidField("geometry", "does not go with CONTROL_POINTS");
  }
  INTRAWARP_RETURN_IF_ERROR(CheckForm(call));
  INTRAWARP_ASSIGN_OR_RETURN(call.grid, ResolveGrid(call, request));
  call.etag = Etag()
                  .Add(request.name(), call.transform->create_time)
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

absl::StatusOr<Geometry> WarpGrid(const ServerContext& context, const v1::WarpVolumeRequest& request) {
  switch (request.like_case()) {
    case v1::WarpVolumeRequest::kLikeVolume: {
      INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const StoredVolume> like,
                                 FindVolume(context.volumes, request.like_volume(), "like_volume"));
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
      .Add(question.moving(), call.moving->create_time)
      .Add(question.SerializeAsString())
      .Add(GeometryToProto(call.grid).SerializeAsString())
      .Finish();
}

absl::Status ResolveWarp(DownloadCall& call, const grpc::ByteBuffer& bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(v1::WarpVolumeRequest request, ParseMessage<v1::WarpVolumeRequest>(bytes));
  INTRAWARP_ASSIGN_OR_RETURN(call.interpolation, InterpolationFromProto(request.interpolation()));
  INTRAWARP_ASSIGN_OR_RETURN(call.transform, FindTransform(call.context.transforms, request.transform(), "transform"));
  INTRAWARP_ASSIGN_OR_RETURN(call.moving, FindVolume(call.context.volumes, request.moving(), "moving"));
  INTRAWARP_ASSIGN_OR_RETURN(call.grid, WarpGrid(call.context, request));
  call.inverse = request.inverse();
  call.fill = request.fill();
  call.offset = request.offset();
  call.etag = WarpEtag(call, request);
  return CheckResumption(request.offset(), request.etag(), WarpedBytes(call.grid), call.etag);
}

absl::Status FieldJob(DownloadCall& call, const ExecContext& ctx) {
  if (call.stream->closed()) return call.stream->control().CancelStatus();
  const int64_t bytes = FieldBytes(call.field, call.grid);
  const int64_t begin = FieldBegin(call.field, call.offset);
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<PinnedBuffer> memory, LeasePinned(call.context, bytes - begin));
  const Transform& transform = call.transform->transform;
  absl::StatusOr<FieldAnswer> answer = MakeFieldAnswer(ctx, call.field, transform, call.grid);
  if (!answer.ok()) return Within("field", answer.status());
  auto field = std::make_shared<BulkBuffer>(std::move(memory), bytes, begin, call.offset);
  v1::DownloadResponse response;
  response.mutable_header()->set_total_bytes(bytes);
  response.mutable_header()->set_etag(call.etag);
  *response.mutable_header()->mutable_field() = answer->header;
  call.stream->SendBulk(SerializeMessage(response), field, v1::DownloadResponse::kChunkFieldNumber);
  LatencyBreakdown latency;
  return ProduceField(ctx, transform, *answer, *field, latency, [&call] { return call.stream->Advanced(); });
}

int64_t WarpWorkspaceBytes(const DownloadCall& call) {
  const int64_t warped = static_cast<int64_t>(Arena::Rounded(WarpedBytes(call.grid)));
  if (call.interpolation != Interpolation::kCubic) return warped;
  return warped + static_cast<int64_t>(CubicWarpWorkspaceBytes(call.moving->image.geometry()));
}

absl::Status WarpJob(DownloadCall& call, const ExecContext& ctx) {
  if (call.stream->closed()) return call.stream->control().CancelStatus();
  const int64_t bytes = WarpedBytes(call.grid);
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<PinnedBuffer> memory, LeasePinned(call.context, bytes - call.offset));
  auto warped = std::make_shared<BulkBuffer>(std::move(memory), bytes, call.offset, call.offset);
  ArenaScope scope(ctx.arena());
  VolumeView out{nullptr, call.grid};
  INTRAWARP_ASSIGN_OR_RETURN(out.data, ctx.arena().Allocate<float>(call.grid.voxels()));
  INTRAWARP_RETURN_IF_ERROR(WarpVolume(ctx, call.transform->transform, call.inverse, call.moving->image.volume(),
                                       call.interpolation, call.fill, out));
  v1::WarpVolumeResponse response;
  *response.mutable_header()->mutable_geometry() = GeometryToProto(call.grid);
  response.mutable_header()->set_total_bytes(bytes);
  response.mutable_header()->set_etag(call.etag);
  call.stream->SendBulk(SerializeMessage(response), warped, v1::WarpVolumeResponse::kChunkFieldNumber);
  LatencyBreakdown latency;
  return ProduceCopy(ctx, out.data, *warped, latency, [&call] { return call.stream->Advanced(); });
}

absl::Status Submit(const std::shared_ptr<DownloadCall>& call, int64_t workspace_bytes,
                    absl::Status (*body)(DownloadCall&, const ExecContext&)) {
  Job job;
  job.workspace_bytes = workspace_bytes;
  job.run = [call, body](const absl::StatusOr<const ExecContext*>& ctx) {
    call->stream->Close(ctx.ok() ? body(*call, **ctx) : ctx.status());
  };
  return SubmitJob(call->context, *call->stream, std::move(job));
}

}  // namespace

absl::Status SendField(ServerContext& context, const v1::DownloadRequest& request,
                       const std::shared_ptr<JobStream>& stream) {
  auto call = std::make_shared<DownloadCall>(context, stream);
  INTRAWARP_RETURN_IF_ERROR(ResolveDownload(*call, request));
  return Submit(call, ProduceFieldWorkspaceBytes(context.device, call->grid), FieldJob);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartWarpVolume(ServerContext& context,
                                                            const grpc::CallbackServerContext& rpc,
                                                            const grpc::ByteBuffer& request) {
  std::shared_ptr<JobStream> stream = JobStream::Create(context, rpc);
  if (stream->closed()) return stream.get();
  auto call = std::make_shared<DownloadCall>(context, stream);
  absl::Status status = ResolveWarp(*call, request);
  if (status.ok()) status = Submit(call, WarpWorkspaceBytes(*call), WarpJob);
  if (!status.ok()) stream->Close(status);
  return stream.get();
}

}  // namespace intrawarp::server
