// SPDX-License-Identifier: Apache-2.0
#include "server/service/registration_service.h"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/registration/validate.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "proto/convert.h"
#include "server/bulk/field_request.h"
#include "server/bulk/field_stream.h"
#include "server/bulk/object_content.h"
#include "server/context/limits.h"
#include "server/device/device_set.h"
#include "server/job/job_support.h"
#include "server/placement/replication.h"
#include "server/registration/registration_job.h"
#include "server/registration/registration_options.h"
#include "server/registration/registration_report.h"
#include "server/registration/report_provenance.h"
#include "server/rpc/call_log.h"
#include "server/rpc/chunk_codec.h"
#include "server/rpc/job_stream.h"
#include "server/service/detached_call.h"
#include "server/service/download.h"
#include "server/service/navigate_stream.h"
#include "server/service/transform_service.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/store/request_table.h"
#include "server/transform/transform_content.h"

namespace intrawarp::server {
namespace {

using Clock = std::chrono::steady_clock;

v1::RegisterResponse ResultOf(const StoredTransform& stored) {
  v1::RegisterResponse response;
  response.mutable_result()->set_transform(TransformName(stored.id));
  *response.mutable_result()->mutable_report() = *stored.report;
  return response;
}

// One Register call. Validated on gRPC's thread, then used by its job alone, then by the making of its result.
struct RegisterCall {
  RegisterCall(ServerContext& context, std::shared_ptr<JobStream> stream)
      : context(context), stream(std::move(stream)), record(context.metrics, WorkClass::kRegister) {}

  ServerContext& context;
  // Set once the call is placed.
  DeviceContext* device = nullptr;
  const std::shared_ptr<JobStream> stream;
  const Clock::time_point begin = Clock::now();
  Clock::time_point submitted;
  RequestKey key;
  RequestTicket ticket;
  // The fingerprint of the request without its inputs.
  std::string request_print;
  // The result of the first request with this id; null: this one is the first.
  std::shared_ptr<const StoredTransform> first;
  // The operation as which the work goes on without the call; null: it does not.
  std::shared_ptr<OperationWork> operation;
  // The operation's job was submitted: how it ends is the operation's end.
  bool is_detached = false;
  // The wanted id; empty: the server chooses one.
  std::string transform_id;
  std::optional<std::chrono::nanoseconds> ttl;
  std::shared_ptr<const StoredVolume> fixed;
  std::shared_ptr<const StoredVolume> moving;
  RegistrationPlan plan;
  RegistrationInput input;
  // Unset: the client wants none.
  std::optional<FieldRequest> field;
  // What the field's stream will take, and the result's memory and place.
  Grant grant;
  std::shared_ptr<Grant> result_grant;
  // What evaluates the field; null for none and for control points.
  std::shared_ptr<const FieldSource> field_source;
  RegistrationOutcome outcome;
  // Its job did all of its work.
  bool is_whole = false;
  // On a server that keeps its objects: how the transform is made again, and what holds its memory until then.
  Grant content_grant;
  ObjectContent content;
  ObjectOrigin origin;
  // The transform that the result names, once that is made.
  std::shared_ptr<const StoredTransform> stored;
  LatencyBreakdown latency;
  FrameRecord record;
};

grpc::ByteBuffer OperationMessage(const v1::Operation& operation) {
  v1::RegisterResponse response;
  *response.mutable_operation() = operation;
  return SerializeMessage(response);
}

absl::Status ValidateDetached(const v1::RegisterRequest& request) {
  if (!request.detach()) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(ValidateDetachedId(request.request_id()));
  return request.has_field() ? InvalidField("field", "must not be set with detach") : absl::OkStatus();
}

std::string PrintOf(const std::string& request_print, const std::shared_ptr<const StoredVolume>& fixed,
                    const std::shared_ptr<const StoredVolume>& moving, const RegistrationPlan& plan) {
  return WithInputs(request_print, {InputPrint::Of(fixed), InputPrint::Of(moving), InputPrint::Of(plan.fixed_mask),
                                    InputPrint::Of(plan.moving_mask), plan.initial_print});
}

// The same by the names in the request.
std::string PrintOf(const std::string& request_print, const v1::RegisterRequest& request, const RegisterCall& call) {
  const Identity& caller = call.stream->caller();
  const auto volume = [&](const std::string& name) {
    return InputPrint::Of(name, FindVolume(call.context.volumes, name, "", caller));
  };
  const v1::RegistrationOptions& options = request.options();
  const std::string& initial = options.initial_transform();
  return WithInputs(
      request_print,
      {volume(request.fixed()), volume(request.moving()), volume(options.fixed_mask()), volume(options.moving_mask()),
       InputPrint::Of(initial, FindTransform(call.context.transforms, initial, "", caller))});
}

// The print that tells the request from others. A request is the same with and without `detach`.
absl::Status TakeKey(RegisterCall& call, v1::RegisterRequest& request) {
  INTRAWARP_RETURN_IF_ERROR(ValidateRequestId(request.request_id(), "request_id"));
  INTRAWARP_RETURN_IF_ERROR(ValidateDetached(request));
  call.key.id = std::exchange(*request.mutable_request_id(), "");
  request.clear_detach();
  call.request_print = Fingerprint("Register", request);
  // A request without an id is compared with none.
  if (!call.key.id.empty()) call.key.fingerprint = PrintOf(call.request_print, request, call);
  call.key.owner = call.stream->caller().name;
  return absl::OkStatus();
}

// The place of the request among those with its id, and the first one's result.
absl::Status EnterRequest(RegisterCall& call) {
  INTRAWARP_ASSIGN_OR_RETURN(call.ticket, call.context.register_requests.Enter(call.key));
  INTRAWARP_ASSIGN_OR_RETURN(call.first, FindResult(call.context.transforms, call.key));
  if (call.first != nullptr) call.key = *call.first->request;
  return absl::OkStatus();
}

absl::Status ResolveResult(RegisterCall& call, const v1::RegisterRequest& request) {
  call.transform_id = request.transform_id();
  if (!call.transform_id.empty()) {
    INTRAWARP_RETURN_IF_ERROR(ValidateId(call.transform_id, "transform_id"));
    INTRAWARP_RETURN_IF_ERROR(CheckIdIsFree(call.context.transforms, call.transform_id, call.stream->caller().name));
  }
  if (request.has_ttl()) {
    INTRAWARP_ASSIGN_OR_RETURN(call.ttl, DurationFromProto(request.ttl(), "ttl", kMaxTtl));
  }
  return absl::OkStatus();
}

void AuditInputs(const RegisterCall& call, const v1::RegistrationOptions& options) {
  CallAudit& audit = call.stream->audit();
  audit.Digest("fixed", call.fixed->content_digest);
  audit.Digest("moving", call.moving->content_digest);
  AuditPlan(call.plan, options, audit);
}

absl::Status Resolve(RegisterCall& call, const v1::RegisterRequest& request) {
  INTRAWARP_RETURN_IF_ERROR(ResolveResult(call, request));
  INTRAWARP_ASSIGN_OR_RETURN(call.fixed,
                             FindVolume(call.context.volumes, request.fixed(), "fixed", call.stream->caller()));
  INTRAWARP_ASSIGN_OR_RETURN(call.moving,
                             FindVolume(call.context.volumes, request.moving(), "moving", call.stream->caller()));
  absl::StatusOr<RegistrationPlan> plan =
      ResolveOptions(request.options(), call.context.volumes, call.context.transforms, call.stream->caller());
  if (!plan.ok()) return Within("options", plan.status());
  call.plan = *std::move(plan);
  // A name may have changed hands since the request came.
  call.key.fingerprint = PrintOf(call.request_print, call.fixed, call.moving, call.plan);
  AuditInputs(call, request.options());
  call.input = MakeRegistrationInput(call.plan, call.fixed->image, call.moving->image);
  INTRAWARP_RETURN_IF_ERROR(InRequest(request.options(), ValidateRegistration(call.input)));
  if (!request.has_field()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(call.field, ResolveField(request.field(), call.plan));
  return Within("field", FieldGrid(*call.field, call.fixed->image.geometry()).status());
}

// `owner` keeps the transform's memory accounted.
absl::Status StreamField(RegisterCall& call, const ExecContext& ctx, const Transform& transform,
                         std::shared_ptr<const void> owner, const Geometry& grid) {
  INTRAWARP_ASSIGN_OR_RETURN(FieldStream field, MakeFieldStream(ctx, *call.device, *call.field, transform,
                                                                std::move(owner), grid, 0, call.grant));
  call.grant = Grant();  // what the stream did not take
  call.field_source = field.source;
  v1::RegisterResponse response;
  *response.mutable_field() = field.header;
  return StartBulk(call.stream, SerializeMessage(response), std::move(field.bulk),
                   v1::RegisterResponse::kChunkFieldNumber);
}

std::optional<FieldOutput> MakeFieldOutput(RegisterCall& call, std::shared_ptr<const void> owner) {
  if (!call.field) return std::nullopt;
  FieldOutput output;
  output.request = *call.field;
  output.stream = [&call, owner = std::move(owner)](const ExecContext& ctx, const Transform& transform,
                                                    const Geometry& grid) {
    return StreamField(call, ctx, transform, owner, grid);
  };
  return output;
}

absl::Status RunJob(RegisterCall& call, const ExecContext& ctx) {
  if (call.stream->control().cancelled()) return call.stream->control().CancelStatus();
  RegistrationTask task{call.input, [&call](int64_t) { return call.result_grant; }, call.plan.budget,
                        call.plan.best_effort, MakeFieldOutput(call, call.result_grant)};
  task.error_limit_mm = call.plan.error_limit_mm;
  task.error = call.plan.error;
  absl::StatusOr<RegistrationOutcome> outcome = RunRegistration(ctx, task, call.stream->control(), call.latency);
  if (!outcome.ok()) return InRequest(call.plan.asked, outcome.status());
  call.outcome = *std::move(outcome);
  call.is_whole = call.outcome.result.stop_reason != StopReason::kBudget;
  if (!call.context.durable.enabled()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(call.content,
                             CopyTransform(ctx, call.outcome.result.transform, std::move(call.content_grant)));
  return absl::OkStatus();
}

// The first request's result again: its field is made anew, which gives the same bytes.
absl::Status RunRepetition(RegisterCall& call, const ExecContext& ctx) {
  if (call.stream->control().cancelled()) return call.stream->control().CancelStatus();
  const std::optional<FieldOutput> field = MakeFieldOutput(call, call.first);
  return field ? SendField(ctx, *field, call.first->transform, nullptr, call.latency) : absl::OkStatus();
}

void LogEnd(const RegisterCall& call, const absl::Status& status) {
  LogWorkEnd({LogRoom::kRegistration, "registration", call.stream->trace_id(), std::nullopt}, status, call.latency);
}

// Nullopt where the frame of reference of one of them is unknown.
std::optional<bool> ShareFrameOfReference(const StoredVolume& fixed, const StoredVolume& moving) {
  const std::string& a = fixed.provenance.frame_of_reference_hash();
  const std::string& b = moving.provenance.frame_of_reference_hash();
  if (a.empty() || b.empty()) return std::nullopt;
  return a == b;
}

// Stores the transform with its report and makes the last message of the stream.
absl::StatusOr<grpc::ByteBuffer> MakeResult(RegisterCall& call, std::chrono::nanoseconds sending) {
  call.latency.Add(Phase::kSend, sending);
  if (call.field_source != nullptr) {
    const LatencyBreakdown field = call.field_source->latency();
    for (const Phase phase : {Phase::kEncode, Phase::kDownload}) call.latency.Add(phase, field.phase(phase));
  }
  call.latency.set_total(Clock::now() - call.begin);
  v1::Report report = MakeReport(call.device->device.name(), call.plan, call.outcome, call.latency);
  const std::optional<bool> same_frame = ShareFrameOfReference(*call.fixed, *call.moving);
  if (same_frame) report.set_same_frame_of_reference(*same_frame);
  *report.mutable_provenance() =
      MakeProvenance({call.fixed.get(), call.moving.get()}, call.plan, call.context.seams, call.latency.total());
  const std::optional<std::chrono::nanoseconds> budget = call.plan.budget;
  if (budget && call.latency.total() > *budget) AddLateness(*budget, call.latency.total(), report);
  const std::chrono::nanoseconds default_ttl = call.context.limits.result_ttl;
  if (!call.ttl && default_ttl.count() > 0) call.ttl = default_ttl;
  CallAudit& audit = call.stream->audit();
  audit.Report(report);
  if (call.origin.payload != nullptr) audit.Digest("result", call.origin.payload->digest());
  ResultIdentity identity{call.transform_id, ExpiryAfter(call.context.seams, call.ttl), std::nullopt,
                          call.stream->caller().name};
  if (identity.id.empty()) identity.id = RandomId(call.context.seams);
  if (!call.key.id.empty()) identity.request = call.key;
  absl::StatusOr<std::shared_ptr<const StoredTransform>> stored =
      StoreResult(call.context, std::move(identity), call.outcome, report, std::move(call.origin));
  if (!stored.ok()) {
    call.record.Failed(stored.status());
    LogEnd(call, stored.status());
    return stored.status();
  }
  call.stored = *std::move(stored);
  audit.Name("result", TransformName(call.stored->id));
  call.ticket = RequestTicket();  // from now on a repetition finds the result
  call.record.Succeeded(call.outcome, call.latency);
  LogEnd(call, absl::OkStatus());
  return SerializeMessage(ResultOf(*call.stored));
}

void Fail(RegisterCall& call, const absl::Status& status) {
  call.record.Failed(status);
  LogEnd(call, status);
  call.ticket = RequestTicket();
  call.grant = Grant();
  call.content_grant = Grant();
  call.result_grant = nullptr;
  call.origin = ObjectOrigin();
  if (call.is_detached) {
    return EndOperation(*call.stream, *call.operation, status, {}, Clock::now() - call.begin);
  }
  if (call.operation != nullptr) call.operation->Drop();
  call.stream->Close(status);
}

// The result of an operation, which nobody's call waits for.
void FinishOperation(RegisterCall& call) {
  const absl::Status made = MakeResult(call, std::chrono::nanoseconds(0)).status();
  std::vector<std::string> results;
  if (made.ok()) results.push_back(TransformName(call.stored->id));
  EndOperation(*call.stream, *call.operation, made, std::move(results), call.latency.total());
}

void SendResult(const std::shared_ptr<RegisterCall>& call) {
  if (call->is_detached) return FinishOperation(*call);
  // A result that nobody learned of goes again, unless its request can be repeated.
  std::function<void()> undo;
  if (call->key.id.empty()) {
    undo = [call] {
      if (call->stored == nullptr) return;
      call->context.durable.Run([call] { call->context.durable.Erase(call->context.transforms, call->stored); });
    };
  }
  call->stream->SendKeptResult([call](std::chrono::nanoseconds sending) { return MakeResult(*call, sending); },
                               std::move(undo));
}

// The transform is written while its field is sent.
void KeepResult(const std::shared_ptr<RegisterCall>& call) {
  absl::StatusOr<ObjectOrigin> origin = KeepContent(call->context.durable, std::exchange(call->content, {}));
  if (!origin.ok()) return Fail(*call, origin.status());
  call->origin = *std::move(origin);
  SendResult(call);
}

void Finish(const std::shared_ptr<RegisterCall>& call, const absl::Status& status) {
  if (!status.ok()) return Fail(*call, status);
  if (!call->context.durable.enabled()) return SendResult(call);
  call->context.durable.Run([call] { KeepResult(call); });
}

void FinishRepetition(RegisterCall& call, const absl::Status& status) {
  call.record.Repeated();
  call.ticket = RequestTicket();
  call.stream->audit().Name("repeated", TransformName(call.first->id));
  if (!status.ok()) return call.stream->Close(status);
  call.stream->SendResult([message = SerializeMessage(ResultOf(*call.first))](
                              std::chrono::nanoseconds) { return absl::StatusOr<grpc::ByteBuffer>(message); },
                          nullptr);
}

// All that the call will hold. The workspace is the job's.
absl::StatusOr<std::shared_ptr<Grant>> AdmitCall(RegisterCall& call, const Claim& claim) {
  INTRAWARP_ASSIGN_OR_RETURN(call.grant, Admit(*call.device, claim));
  return std::make_shared<Grant>(call.grant.Split({.workspace_bytes = claim.workspace_bytes}));
}

void Tell(RegisterCall& call, const Progress& progress) {
  if (call.operation != nullptr) {
    return call.operation->Progressed(
        {absl::StrCat("stage ", progress.stage + 1, ", level ", progress.level + 1, " of ", progress.levels),
         progress.iteration, 0, "iterations"});
  }
  v1::RegisterResponse response;
  *response.mutable_progress() = ProgressToProto(progress);
  call.stream->SendProgress(SerializeMessage(response));
}

// The images of the call are on the device.
absl::Status Submit(const std::shared_ptr<RegisterCall>& call) {
  call->input = MakeRegistrationInput(call->plan, call->fixed->image, call->moving->image);
  const Device& device = call->device->device;
  INTRAWARP_ASSIGN_OR_RETURN(Claim claim,
                             RegistrationClaim(device, call->input, call->field ? &*call->field : nullptr));
  claim.owner = call->stream->caller().name;
  claim.uploading_bytes = ContentClaim(call->context, RegistrationMemoryBytes(call->input));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Grant> workspace, AdmitCall(*call, claim));
  call->result_grant = std::make_shared<Grant>(
      call->grant.Split({.resident_bytes = RegistrationMemoryBytes(call->input), .transforms = claim.transforms}));
  call->content_grant = call->grant.Split({.uploading_bytes = claim.uploading_bytes});
  call->stream->control().set_on_progress([call = call.get()](const Progress& progress) { Tell(*call, progress); });
  Job job;
  job.cost_kind = CostKind("register", call->plan, call->field);
  job.cost_size = CostSize(call->fixed->image.geometry(), call->moving->image.geometry());
  job.completed = [call] { return call->is_whole; };
  job.workspace_bytes = claim.workspace_bytes;
  job.checkpoint = [call](const Progress& progress) { return call->stream->control().Check(progress); };
  job.on_held = [call](Clock::duration held) {
    call->stream->control().Held(held);
    call->latency.Held(held);
  };
  job.run = [call, workspace](const absl::StatusOr<const ExecContext*>& ctx) {
    call->latency.Add(Phase::kQueue, Clock::now() - call->submitted);
    if (call->operation != nullptr) call->operation->Started();
    const absl::Status& status = ctx.status();
    if (ctx.ok()) return Finish(call, RunJob(*call, **ctx));
    Finish(call, absl::IsCancelled(status) ? call->stream->control().CancelStatus() : status);
  };
  call->submitted = Clock::now();
  call->latency.Add(Phase::kAdmit, call->submitted - call->begin);
  return StartJob(call, std::move(job), OperationMessage);
}

// Chooses a device, and brings the images there that are elsewhere.
absl::Status Place(const std::shared_ptr<RegisterCall>& call) {
  Inputs inputs;
  inputs.volumes = {&call->fixed, &call->moving, &call->plan.fixed_mask, &call->plan.moving_mask};
  inputs.transforms = {&call->plan.initial_transform};
  INTRAWARP_ASSIGN_OR_RETURN(const Claim claim, RegistrationClaim(call->context.devices[0].device, call->input,
                                                                  call->field ? &*call->field : nullptr));
  INTRAWARP_ASSIGN_OR_RETURN(call->device, PlaceJob(call->context, inputs, JobClass::kInteractive, claim));
  BringTo(*call->device, inputs, Share::kCommon, [call](const absl::Status& brought) {
    const absl::Status status = brought.ok() ? Submit(call) : brought;
    if (!status.ok()) Finish(call, status);
  });
  return absl::OkStatus();
}

// What sending the field of the first result takes.
absl::StatusOr<Claim> RepetitionClaim(const RegisterCall& call) {
  Claim claim;
  if (!call.field) return claim;
  const Transform& transform = call.first->transform;
  absl::StatusOr<Geometry> grid = FieldGrid(*call.field, *transform.domain());
  if (!grid.ok()) return Within("field", grid.status());
  const bool is_whole = call.field->form == FieldForm::kControlPoints;
  const int64_t bytes = is_whole ? transform.resident_bytes() : FieldBytes(*call.field, *grid);
  static_cast<Amounts&>(claim) = FieldStreamAmounts(call.device->device, *call.field, *grid, bytes, 0);
  claim.workspace_bytes = FieldStreamWorkspaceBytes();
  return claim;
}

absl::Status SubmitRepetition(const std::shared_ptr<RegisterCall>& call, const v1::RegisterRequest& request) {
  if (request.has_field()) {
    absl::StatusOr<FieldRequest> field = FieldRequestFromProto(request.field());
    if (!field.ok()) return Within("field", field.status());
    call->field = *field;
  }
  call->device = &call->context.devices[DeviceOf(*call->first)];
  INTRAWARP_ASSIGN_OR_RETURN(Claim claim, RepetitionClaim(*call));
  claim.owner = call->stream->caller().name;
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Grant> workspace, AdmitCall(*call, claim));
  Job job;
  job.workspace_bytes = claim.workspace_bytes;
  job.run = [call, workspace](const absl::StatusOr<const ExecContext*>& ctx) {
    FinishRepetition(*call, ctx.ok() ? RunRepetition(*call, **ctx) : ctx.status());
  };
  return SubmitJob(*call->device, *call->stream, std::move(job));
}

// An operation that has made its result before it began: that of a request without `detach`, or one whose operation is
// forgotten.
void FinishRepeatedOperation(RegisterCall& call) {
  call.record.Repeated();
  call.ticket = RequestTicket();
  call.operation->Done({TransformName(call.first->id)});
  Acknowledge(call.context, call.stream, call.operation, OperationMessage);
}

absl::Status StartDetached(const std::shared_ptr<RegisterCall>& call, const v1::RegisterRequest& request) {
  INTRAWARP_ASSIGN_OR_RETURN(const bool answered, AnswerEarlier(call->context, *call->stream, OperationKind::kRegister,
                                                                call->key, OperationMessage));
  if (answered) {
    call->record.Repeated();
    return absl::OkStatus();
  }
  INTRAWARP_RETURN_IF_ERROR(EnterRequest(*call));
  if (call->first == nullptr) INTRAWARP_RETURN_IF_ERROR(Resolve(*call, request));
  INTRAWARP_ASSIGN_OR_RETURN(
      call->operation, Detach(call->context, call->stream, OperationKind::kRegister, call->key, OperationMessage));
  if (call->operation == nullptr) {
    call->record.Repeated();
    return absl::OkStatus();
  }
  if (call->first == nullptr) return Place(call);
  FinishRepeatedOperation(*call);
  return absl::OkStatus();
}

absl::Status Start(const std::shared_ptr<RegisterCall>& call, const grpc::ByteBuffer& bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(v1::RegisterRequest request, ParseMessage<v1::RegisterRequest>(bytes));
  const bool detach = request.detach();
  INTRAWARP_RETURN_IF_ERROR(TakeKey(*call, request));
  if (detach) return StartDetached(call, request);
  INTRAWARP_RETURN_IF_ERROR(EnterRequest(*call));
  if (call->first != nullptr) return SubmitRepetition(call, request);
  INTRAWARP_RETURN_IF_ERROR(Resolve(*call, request));
  return Place(call);
}

class RegistrationServiceImpl final
    : public v1::RegistrationService::WithRawCallbackMethod_Register<
          v1::RegistrationService::WithRawCallbackMethod_Navigate<v1::RegistrationService::Service>> {
 public:
  explicit RegistrationServiceImpl(ServerContext& context) : context_(context) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Register(grpc::CallbackServerContext* rpc,
                                                       const grpc::ByteBuffer* request) override {
    std::shared_ptr<JobStream> stream = JobStream::Create(context_, *rpc);
    auto call = std::make_shared<RegisterCall>(context_, stream);
    if (stream->closed()) {
      call->record.Failed(absl::ResourceExhaustedError("too many streams"));
      return stream.get();
    }
    const absl::Status status = Start(call, *request);
    if (!status.ok()) Finish(call, status);
    return stream.get();
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Navigate(grpc::CallbackServerContext* rpc) override {
    return StartNavigate(context_, *rpc);
  }

 private:
  ServerContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRegistrationService(ServerContext& context) {
  return std::make_unique<RegistrationServiceImpl>(context);
}

}  // namespace intrawarp::server
