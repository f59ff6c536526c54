// SPDX-License-Identifier: Apache-2.0
#include "server/service/transform_service.h"

#include <atomic>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "server/base/wire.h"
#include "server/context/limits.h"
#include "server/device/device_set.h"
#include "server/job/job_support.h"
#include "server/placement/replication.h"
#include "server/rpc/admit_call.h"
#include "server/rpc/caller.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/unary.h"
#include "server/service/transform_download.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/trail/audit_trail.h"
#include "server/transform/transform_messages.h"

namespace intrawarp::server {
namespace {

absl::Status Get(ServerContext& context, const Identity& caller, const v1::GetTransformRequest& request,
                 v1::Transform& response) {
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const StoredTransform> stored,
                             FindTransform(context.transforms, request.name(), "name", caller));
  response = TransformToProto(*stored, /*with_report=*/true);
  return absl::OkStatus();
}

absl::Status List(ServerContext& context, const Identity& caller, const v1::ListTransformsRequest& request,
                  v1::ListTransformsResponse& response) {
  const auto list = [&](const std::string& after, int limit) {
    ListedMessages<v1::Transform> page;
    for (const auto& stored : context.transforms.List(after, limit, caller)) {
      page[OwnedKey(stored->id, stored->owner)] = TransformToProto(*stored, /*with_report=*/false);
    }
    return page;
  };
  return ListPage("transforms", request, response, *response.mutable_transforms(), list);
}

absl::Status Delete(ServerContext& context, const Identity& caller, const std::string& name) {
  INTRAWARP_ASSIGN_OR_RETURN(std::string id, ParseTransformName(name, "name"));
  return context.durable.Erase(context.transforms, id, caller);
}

absl::Status ValidatePoints(const v1::MapPointsRequest& request, int max_points) {
  if (request.points_size() % 3 != 0) {
    return InvalidField("points", absl::StrCat("has ", request.points_size(), " numbers, must be a multiple of 3"));
  }
  if (request.points_size() > 3 * max_points) {
    return InvalidField("points",
                        absl::StrCat(request.points_size() / 3, " are given, at most ", max_points, " are allowed"));
  }
  for (int i = 0; i < request.points_size(); ++i) {
    if (!std::isfinite(request.points(i))) {
      return InvalidField(absl::StrCat("points[", i, "]"), "must be finite");
    }
  }
  return absl::OkStatus();
}

// One MapPoints call, from its request to OnDone, which deletes it. A cancel ends it also while its job waits.
class MapPointsCall final : public grpc::ServerUnaryReactor {
 public:
  // `response` lives until Finish.
  MapPointsCall(ServerContext& context, v1::MapPointsResponse* response) : context_(context), response_(*response) {}

  void Start(const v1::MapPointsRequest& request, const Identity& caller) {
    const absl::Status submitted = Submit(request, caller);
    if (!submitted.ok()) Finish(ToGrpcStatus(submitted));
  }
  void OnCancel() override {
    cancelled_ = true;
    if (device_ != nullptr) device_->jobs.Cancel(this);
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Submit(const v1::MapPointsRequest& request, const Identity& caller) {
    INTRAWARP_ASSIGN_OR_RETURN(place_, AdmitCall(context_, caller.name));
    INTRAWARP_ASSIGN_OR_RETURN(stored_, FindTransform(context_.transforms, request.transform(), "transform", caller));
    INTRAWARP_RETURN_IF_ERROR(ValidatePoints(request, context_.limits.max_points));
    device_ = &context_.devices[DeviceOf(*stored_)];
    points_.assign(request.points().begin(), request.points().end());
    inverse_ = request.inverse();
    Job job;
    job.owner = this;
    job.party = caller.name;
    job.is_short = true;
    job.workspace_bytes = static_cast<int64_t>(MapPointsWorkspaceBytes(stored_->transform, request.points_size() / 3));
    Claim claim{{.workspace_bytes = job.workspace_bytes}};
    claim.owner = caller.name;
    claim.is_short = true;
    INTRAWARP_ASSIGN_OR_RETURN(workspace_, Admit(*device_, claim));
    // Finish may delete the call.
    job.run = [this](const absl::StatusOr<const ExecContext*>& ctx) {
      Finish(ToGrpcStatus(ctx.ok() ? Map(**ctx) : ctx.status()));
    };
    return SubmitJob(*device_, std::move(job));
  }

  absl::Status Map(const ExecContext& ctx) {
    if (cancelled_) return absl::CancelledError("the call was cancelled");
    INTRAWARP_RETURN_IF_ERROR(MapPoints(ctx, stored_->transform, inverse_, absl::MakeSpan(points_)));
    response_.mutable_points()->Add(points_.begin(), points_.end());
    return absl::OkStatus();
  }

  ServerContext& context_;
  v1::MapPointsResponse& response_;
  DeviceContext* device_ = nullptr;  // of the transform
  Grant place_;
  Grant workspace_;
  std::shared_ptr<const StoredTransform> stored_;
  std::vector<double> points_;
  bool inverse_ = false;
  std::atomic<bool> cancelled_{false};
};

using v1::TransformService;
using Service = TransformService::WithCallbackMethod_GetTransform<TransformService::WithCallbackMethod_ListTransforms<
    TransformService::WithCallbackMethod_DeleteTransform<TransformService::WithCallbackMethod_MapPoints<
        TransformService::WithRawCallbackMethod_WarpVolume<TransformService::Service>>>>>;

class TransformServiceImpl final : public Service {
 public:
  explicit TransformServiceImpl(ServerContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetTransform(grpc::CallbackServerContext* rpc, const v1::GetTransformRequest* request,
                                         v1::GetTransformResponse* response) override {
    return Reply(rpc, Get(context_, CallerOf(*rpc), *request, *response->mutable_transform()));
  }
  grpc::ServerUnaryReactor* ListTransforms(grpc::CallbackServerContext* rpc, const v1::ListTransformsRequest* request,
                                           v1::ListTransformsResponse* response) override {
    return Reply(rpc, List(context_, CallerOf(*rpc), *request, *response));
  }
  grpc::ServerUnaryReactor* DeleteTransform(grpc::CallbackServerContext* rpc, const v1::DeleteTransformRequest* request,
                                            v1::DeleteTransformResponse*) override {
    AuditOf(*rpc)->Name("object", request->name());
    return ReplyFromDisk(rpc, context_.durable, [&context = context_, caller = CallerOf(*rpc), name = request->name()] {
      return Delete(context, caller, name);
    });
  }
  grpc::ServerUnaryReactor* MapPoints(grpc::CallbackServerContext* rpc, const v1::MapPointsRequest* request,
                                      v1::MapPointsResponse* response) override {
    AuditOf(*rpc)->Name("transform", request->transform());
    auto* call = new MapPointsCall(context_, response);
    call->Start(*request, CallerOf(*rpc));
    return call;
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WarpVolume(grpc::CallbackServerContext* rpc,
                                                         const grpc::ByteBuffer* request) override {
    return StartWarpVolume(context_, *rpc, *request);
  }

 private:
  ServerContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeTransformService(ServerContext& context) {
  return std::make_unique<TransformServiceImpl>(context);
}

}  // namespace intrawarp::server
