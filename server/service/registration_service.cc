// SPDX-License-Identifier: Apache-2.0
#include "server/service/registration_service.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/registration/automatic_steps.h"
#include "engine/registration/validate.h"
#include "intrawarp/v1/registration.grpc.pb.h"
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
#include "server/rpc/chunk_codec.h"
#include "server/rpc/job_stream.h"
#include "server/service/download.h"
#include "server/service/transform_service.h"
#include "server/service/work_call.h"
#include "server/session/rpc/navigate_stream.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/store/request_table.h"
#include "server/transform/transform_content.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

v1::RegisterResponse ResultOf(const StoredTransform& stored) {
  v1::RegisterResponse response;
  response.mutable_result()->set_transform(TransformName(stored.id));
  *response.mutable_result()->mutable_report() = *stored.report;
  return response;
}

grpc::ByteBuffer OperationMessage(const v1::Operation& operation) {
  v1::RegisterResponse response;
  *response.mutable_operation() = operation;
  return SerializeMessage(response);
}

// Only then do the prints of a request have those of weights, so that older ones stay as they are.
bool NamesWeights(const v1::RegistrationOptions& options) {
  return !options.fixed_weight().empty() || !options.moving_weight().empty();
}

// Nullopt where the frame of reference of one of them is unknown.
std::optional<bool> ShareFrameOfReference(const StoredVolume& fixed, const StoredVolume& moving) {
  const std::string& a = fixed.provenance.frame_of_reference_hash();
  const std::string& b = moving.provenance.frame_of_reference_hash();
  if (a.empty() || b.empty()) return std::nullopt;
  return a == b;
}

constexpr WorkKind kRegistration{OperationKind::kRegister, JobClass::kInteractive, LogRoom::kRegistration,
                                 "registration", OperationMessage};

// One Register call.
class RegisterCall final : public WorkCall {
 public:
  RegisterCall(ServerContext& context, const grpc::CallbackServerContext& rpc)
      : WorkCall(kRegistration, context.register_requests, context, rpc),
        record_(context.metrics.registration, WorkClass::kRegister) {}

 private:
  absl::StatusOr<WorkRequest> Parse(const grpc::ByteBuffer& bytes) override;
  std::vector<InputPrint> NamedInputs() const override;
  absl::StatusOr<std::optional<EarlierResult>> FindEarlier(const RequestKey& key) override;
  absl::Status Repeat() override;
  absl::Status Resolve() override;
  std::vector<InputPrint> FoundInputs() const override;
  absl::StatusOr<WorkNeeds> Needs() override;
  absl::StatusOr<WorkJob> ClaimJob() override;
  absl::StatusOr<ObjectContent> Run(const ExecContext& ctx) override;
  void Describe() override;
  absl::StatusOr<std::string> Store(ObjectOrigin origin) override;
  grpc::ByteBuffer Encode() const override { return SerializeMessage(ResultOf(*stored_)); }
  void Erase() override { context().durable.Erase(context().transforms, stored_); }
  void Release() override;
  void RecordFailure(const absl::Status& status) override { record_.Failed(status); }
  void RecordRepetition() override { record_.Repeated(); }
  void RecordSuccess() override { record_.Succeeded(outcome_, latency()); }

  absl::Status ResolveResult();
  void AuditInputs();
  absl::Status StreamField(const ExecContext& ctx, const Transform& transform, std::shared_ptr<const void> owner,
                           const Geometry& grid);
  std::optional<FieldOutput> MakeFieldOutput(std::shared_ptr<const void> owner);
  absl::Status RunRepetition(const ExecContext& ctx);
  void FinishRepetition(const absl::Status& status);
  absl::StatusOr<Claim> RepetitionClaim();
  absl::StatusOr<std::shared_ptr<Grant>> AdmitCall(const Claim& claim);
  void Tell(const Progress& progress);

  v1::RegisterRequest request_;
  // The result of the first request with this id; null: this one is the first.
  std::shared_ptr<const StoredTransform> first_;
  // The wanted id; empty: the server chooses one.
  std::string transform_id_;
  std::optional<std::chrono::nanoseconds> ttl_;
  std::shared_ptr<const StoredVolume> fixed_;
  std::shared_ptr<const StoredVolume> moving_;
  RegistrationPlan plan_;
  RegistrationInput input_;
  // Unset: the client wants none.
  std::optional<FieldRequest> field_;
  // Admits the stream of the field, and the memory and place of the result.
  Grant grant_;
  std::shared_ptr<Grant> result_grant_;
  // The evaluation of the field; null for none and for control points.
  std::shared_ptr<const FieldSource> field_source_;
  RegistrationOutcome outcome_;
  // Its job did all of its work.
  bool is_whole_ = false;
  // On a server that keeps its objects: the grant of the memory of the result's content.
  Grant content_grant_;
  v1::Report report_;
  // The transform that the result names, once that is made.
  std::shared_ptr<const StoredTransform> stored_;
  FrameRecord record_;
};

absl::StatusOr<WorkRequest> RegisterCall::Parse(const grpc::ByteBuffer& bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(request_, ParseMessage<v1::RegisterRequest>(bytes));
  WorkRequest work;
  work.id = std::exchange(*request_.mutable_request_id(), "");
  work.detach = request_.detach();
  if (request_.has_field()) work.detachable = InvalidField("field", "must not be set with detach");
  request_.clear_detach();
  work.print = Fingerprint("Register", request_);
  return work;
}

std::vector<InputPrint> RegisterCall::NamedInputs() const {
  const auto volume = [this](const std::string& name) {
    return InputPrint::Of(name, FindVolume(context().volumes, name, "", caller()));
  };
  const v1::RegistrationOptions& options = request_.options();
  const std::string& initial = options.initial_transform();
  std::vector<InputPrint> prints = {
      volume(request_.fixed()), volume(request_.moving()), volume(options.fixed_mask()), volume(options.moving_mask()),
      InputPrint::Of(initial, FindTransform(context().transforms, initial, "", caller()))};
  if (NamesWeights(options)) {
    prints.push_back(volume(options.fixed_weight()));
    prints.push_back(volume(options.moving_weight()));
  }
  return prints;
}

std::vector<InputPrint> RegisterCall::FoundInputs() const {
  std::vector<InputPrint> prints = {InputPrint::Of(fixed_), InputPrint::Of(moving_), InputPrint::Of(plan_.fixed_mask),
                                    InputPrint::Of(plan_.moving_mask), plan_.initial_print};
  if (NamesWeights(request_.options())) {
    prints.push_back(InputPrint::Of(plan_.fixed_weight));
    prints.push_back(InputPrint::Of(plan_.moving_weight));
  }
  return prints;
}

absl::StatusOr<std::optional<EarlierResult>> RegisterCall::FindEarlier(const RequestKey& key) {
  INTRAWARP_ASSIGN_OR_RETURN(first_, FindResult(context().transforms, key));
  if (first_ == nullptr) return std::nullopt;
  return EarlierResult{*first_->request, TransformName(first_->id)};
}

absl::Status RegisterCall::ResolveResult() {
  transform_id_ = request_.transform_id();
  if (!transform_id_.empty()) {
    INTRAWARP_RETURN_IF_ERROR(ValidateId(transform_id_, "transform_id"));
    INTRAWARP_RETURN_IF_ERROR(CheckIdIsFree(context().transforms, transform_id_, caller().name));
  }
  if (request_.has_ttl()) {
    INTRAWARP_ASSIGN_OR_RETURN(ttl_, DurationFromProto(request_.ttl(), "ttl", kMaxTtl));
  }
  return absl::OkStatus();
}

void RegisterCall::AuditInputs() {
  CallAudit& audit = stream().audit();
  audit.Digest("fixed", fixed_->content_digest);
  audit.Digest("moving", moving_->content_digest);
  AuditPlan(plan_, request_.options(), audit);
}

absl::Status RegisterCall::Resolve() {
  INTRAWARP_RETURN_IF_ERROR(ResolveResult());
  INTRAWARP_ASSIGN_OR_RETURN(fixed_, FindVolume(context().volumes, request_.fixed(), "fixed", caller()));
  INTRAWARP_ASSIGN_OR_RETURN(moving_, FindVolume(context().volumes, request_.moving(), "moving", caller()));
  absl::StatusOr<RegistrationPlan> plan =
      ResolveOptions(request_.options(), context().volumes, context().transforms, caller());
  if (!plan.ok()) return Within("options", plan.status());
  plan_ = *std::move(plan);
  AuditInputs();
  input_ = MakeRegistrationInput(plan_, fixed_->image, moving_->image);
  INTRAWARP_RETURN_IF_ERROR(InRequest(request_.options(), ValidateRegistration(input_)));
  if (!request_.has_field()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(field_, ResolveField(request_.field(), plan_));
  return Within("field", FieldGrid(*field_, fixed_->image.geometry()).status());
}

absl::StatusOr<WorkNeeds> RegisterCall::Needs() {
  WorkNeeds needs;
  needs.inputs.volumes = {
      &fixed_, &moving_, &plan_.fixed_mask, &plan_.moving_mask, &plan_.fixed_weight, &plan_.moving_weight};
  needs.inputs.transforms = {&plan_.initial_transform};
  INTRAWARP_ASSIGN_OR_RETURN(needs.claim,
                             RegistrationClaim(context().devices[0].device, input_, field_ ? &*field_ : nullptr));
  return needs;
}

// All that the call will hold. The workspace is the job's.
absl::StatusOr<std::shared_ptr<Grant>> RegisterCall::AdmitCall(const Claim& claim) {
  INTRAWARP_ASSIGN_OR_RETURN(grant_, Admit(device(), claim));
  return std::make_shared<Grant>(grant_.Split({.workspace_bytes = claim.workspace_bytes}));
}

void RegisterCall::Tell(const Progress& progress) {
  if (operation() != nullptr) {
    return operation()->Progressed({StepText(input_, progress), progress.iteration, 0, "iterations"});
  }
  v1::RegisterResponse response;
  *response.mutable_progress() = ProgressToProto(progress);
  stream().SendProgress(SerializeMessage(response));
}

absl::StatusOr<WorkJob> RegisterCall::ClaimJob() {
  input_ = MakeRegistrationInput(plan_, fixed_->image, moving_->image);
  INTRAWARP_ASSIGN_OR_RETURN(Claim claim, RegistrationClaim(device().device, input_, field_ ? &*field_ : nullptr));
  claim.owner = caller().name;
  claim.uploading_bytes = ContentClaim(context(), RegistrationMemoryBytes(input_));
  WorkJob work;
  INTRAWARP_ASSIGN_OR_RETURN(work.workspace, AdmitCall(claim));
  result_grant_ = std::make_shared<Grant>(
      grant_.Split({.resident_bytes = RegistrationMemoryBytes(input_), .transforms = claim.transforms}));
  content_grant_ = grant_.Split({.uploading_bytes = claim.uploading_bytes});
  stream().control().set_on_progress([this](const Progress& progress) { Tell(progress); });
  work.job.cost_kind = CostKind("register", plan_, field_);
  work.job.cost_size = CostSize(fixed_->image.geometry(), moving_->image.geometry());
  work.job.completed = [this] { return is_whole_; };
  work.job.workspace_bytes = claim.workspace_bytes;
  work.job.on_held = [this](SchedulerClock::Duration held) {
    stream().control().Held(held);
    latency().Held(held);
  };
  return work;
}

// `owner` keeps the transform's memory accounted.
absl::Status RegisterCall::StreamField(const ExecContext& ctx, const Transform& transform,
                                       std::shared_ptr<const void> owner, const Geometry& grid) {
  INTRAWARP_ASSIGN_OR_RETURN(FieldStream field,
                             MakeFieldStream(ctx, device(), *field_, transform, std::move(owner), grid, 0, grant_));
  grant_ = Grant();  // what the stream did not take
  field_source_ = field.source;
  v1::RegisterResponse response;
  *response.mutable_field() = field.header;
  return StartBulk(shared_stream(), SerializeMessage(response), std::move(field.bulk),
                   v1::RegisterResponse::kChunkFieldNumber);
}

std::optional<FieldOutput> RegisterCall::MakeFieldOutput(std::shared_ptr<const void> owner) {
  if (!field_) return std::nullopt;
  FieldOutput output;
  output.request = *field_;
  output.stream = [this, owner = std::move(owner)](const ExecContext& ctx, const Transform& transform,
                                                   const Geometry& grid) {
    return StreamField(ctx, transform, owner, grid);
  };
  return output;
}

absl::StatusOr<ObjectContent> RegisterCall::Run(const ExecContext& ctx) {
  if (stream().control().cancelled()) return stream().control().CancelStatus();
  RegistrationTask task{input_, [this](int64_t) { return result_grant_; }, plan_.budget, plan_.best_effort,
                        MakeFieldOutput(result_grant_)};
  task.error_limit_mm = plan_.error_limit_mm;
  task.error = plan_.error;
  absl::StatusOr<RegistrationOutcome> outcome = RunRegistration(ctx, task, stream().control(), latency());
  if (!outcome.ok()) return InRequest(plan_.asked, outcome.status());
  outcome_ = *std::move(outcome);
  is_whole_ = outcome_.result.stop_reason != StopReason::kBudget;
  if (!context().durable.enabled()) return ObjectContent();
  return CopyTransform(ctx, outcome_.result.transform, std::move(content_grant_));
}

void RegisterCall::Describe() {
  if (field_source_ != nullptr) {
    const LatencyBreakdown field = field_source_->latency();
    for (const Phase phase : {Phase::kEncode, Phase::kDownload}) latency().Add(phase, field.phase(phase));
  }
  const std::chrono::nanoseconds total = latency().total();
  report_ = MakeReport(device().device.name(), plan_, outcome_, latency());
  const std::optional<bool> same_frame = ShareFrameOfReference(*fixed_, *moving_);
  if (same_frame) report_.set_same_frame_of_reference(*same_frame);
  *report_.mutable_provenance() = MakeProvenance({fixed_.get(), moving_.get()}, plan_, context().seams, total);
  if (plan_.budget && total > *plan_.budget) AddLateness(*plan_.budget, total, report_);
  stream().audit().Report(report_);
}

absl::StatusOr<std::string> RegisterCall::Store(ObjectOrigin origin) {
  const std::chrono::nanoseconds default_ttl = context().limits.result_ttl;
  if (!ttl_ && default_ttl.count() > 0) ttl_ = default_ttl;
  ResultIdentity identity{transform_id_, ExpiryAfter(context().seams, ttl_), request(), caller().name};
  if (identity.id.empty()) identity.id = RandomId(context().seams);
  INTRAWARP_ASSIGN_OR_RETURN(stored_,
                             StoreResult(context(), std::move(identity), outcome_, report_, std::move(origin)));
  return TransformName(stored_->id);
}

void RegisterCall::Release() {
  grant_ = Grant();
  content_grant_ = Grant();
  result_grant_ = nullptr;
}

// The claim for sending the field of the first result.
absl::StatusOr<Claim> RegisterCall::RepetitionClaim() {
  Claim claim;
  if (!field_) return claim;
  const Transform& transform = first_->transform;
  absl::StatusOr<Geometry> grid = FieldGrid(*field_, *transform.domain());
  if (!grid.ok()) return Within("field", grid.status());
  const bool is_whole = field_->form == FieldForm::kControlPoints;
  const int64_t bytes = is_whole ? transform.resident_bytes() : FieldBytes(*field_, *grid);
  static_cast<Amounts&>(claim) = FieldStreamAmounts(device().device, *field_, *grid, bytes, 0);
  claim.workspace_bytes = FieldStreamWorkspaceBytes();
  return claim;
}

// The first request's result again: its field is made anew, which gives the same bytes.
absl::Status RegisterCall::RunRepetition(const ExecContext& ctx) {
  if (stream().control().cancelled()) return stream().control().CancelStatus();
  const std::optional<FieldOutput> field = MakeFieldOutput(first_);
  return field ? SendField(ctx, *field, first_->transform, nullptr, latency()) : absl::OkStatus();
}

void RegisterCall::FinishRepetition(const absl::Status& status) {
  if (!status.ok()) return AnswerRepetition(status);
  AnswerRepetition(SerializeMessage(ResultOf(*first_)));
}

absl::Status RegisterCall::Repeat() {
  if (request_.has_field()) {
    absl::StatusOr<FieldRequest> field = FieldRequestFromProto(request_.field());
    if (!field.ok()) return Within("field", field.status());
    field_ = *field;
  }
  set_device(context().devices[DeviceOf(*first_)]);
  INTRAWARP_ASSIGN_OR_RETURN(Claim claim, RepetitionClaim());
  claim.owner = caller().name;
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Grant> workspace, AdmitCall(claim));
  Job job;
  job.workspace_bytes = claim.workspace_bytes;
  job.run = [this, self = shared_from_this(), workspace](const absl::StatusOr<const ExecContext*>& ctx) {
    FinishRepetition(ctx.ok() ? RunRepetition(**ctx) : ctx.status());
  };
  return SubmitJob(device(), stream(), std::move(job));
}

class RegistrationServiceImpl final
    : public v1::RegistrationService::WithRawCallbackMethod_Register<
          v1::RegistrationService::WithRawCallbackMethod_Navigate<v1::RegistrationService::Service>> {
 public:
  explicit RegistrationServiceImpl(ServerContext& context) : context_(context) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Register(grpc::CallbackServerContext* rpc,
                                                       const grpc::ByteBuffer* request) override {
    return std::make_shared<RegisterCall>(context_, *rpc)->Start(*request);
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
