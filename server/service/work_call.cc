// SPDX-License-Identifier: Apache-2.0
#include "server/service/work_call.h"

#include <functional>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_support.h"
#include "server/operation/operation_messages.h"
#include "server/rpc/call_log.h"
#include "server/rpc/grpc_status.h"
#include "server/status/errors.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

using Clock = std::chrono::steady_clock;

// INVALID_ARGUMENT naming request_id unless it is the id of an operation.
absl::Status ValidateDetachedId(absl::string_view request_id) {
  if (request_id.empty()) return InvalidField("request_id", "must be set with detach");
  return ValidateId(request_id, "request_id");
}

void Answer(JobStream& stream, const Operation& operation, const WorkKind& kind) {
  stream.Send(kind.operation_message(OperationToProto(operation)));
  stream.Close(absl::OkStatus());
}

}  // namespace

WorkCall::WorkCall(const WorkKind& kind, RequestTable& requests, ServerContext& context,
                   const grpc::CallbackServerContext& rpc)
    : kind_(kind), requests_(requests), context_(context), stream_(JobStream::Create(context, rpc)) {}

std::optional<RequestKey> WorkCall::request() const {
  return key_.id.empty() ? std::nullopt : std::optional<RequestKey>(key_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WorkCall::Start(const grpc::ByteBuffer& request) {
  if (stream_->closed()) {
    RecordFailure(absl::ResourceExhaustedError("too many streams"));
    return stream_.get();
  }
  const absl::Status status = Begin(request);
  if (!status.ok()) Fail(status);
  return stream_.get();
}

absl::Status WorkCall::Begin(const grpc::ByteBuffer& bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const WorkRequest request, Parse(bytes));
  INTRAWARP_RETURN_IF_ERROR(TakeKey(request));
  if (request.detach) return BeginDetached();
  INTRAWARP_RETURN_IF_ERROR(Enter());
  return earlier_ ? Repeat() : Place();
}

// The key tells the request from others.
absl::Status WorkCall::TakeKey(const WorkRequest& request) {
  INTRAWARP_RETURN_IF_ERROR(ValidateRequestId(request.id, "request_id"));
  if (request.detach) {
    INTRAWARP_RETURN_IF_ERROR(ValidateDetachedId(request.id));
    INTRAWARP_RETURN_IF_ERROR(request.detachable);
  }
  print_ = request.print;
  key_.id = request.id;
  // A request without an id is compared with none.
  if (!key_.id.empty()) key_.fingerprint = WithInputs(print_, NamedInputs());
  key_.owner = caller().name;
  return absl::OkStatus();
}

// The place of the request among those with its id; then the first one's result, or the inputs.
absl::Status WorkCall::Enter() {
  INTRAWARP_ASSIGN_OR_RETURN(ticket_, requests_.Enter(key_));
  INTRAWARP_ASSIGN_OR_RETURN(earlier_, FindEarlier(key_));
  if (earlier_) {
    key_ = earlier_->key;
    return absl::OkStatus();
  }
  INTRAWARP_RETURN_IF_ERROR(Resolve());
  // A name may have changed hands since the request came.
  key_.fingerprint = WithInputs(print_, FoundInputs());
  return absl::OkStatus();
}

absl::Status WorkCall::BeginDetached() {
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<Operation> begun,
                             context_.operations.FindBegun(kind_.operation, key_));
  if (begun) {
    AnswerWith(*begun);
    return absl::OkStatus();
  }
  INTRAWARP_RETURN_IF_ERROR(Enter());
  INTRAWARP_RETURN_IF_ERROR(BeginOperation());
  if (operation_ == nullptr) return absl::OkStatus();
  if (!earlier_) return Place();
  EndRepeatedOperation();
  return absl::OkStatus();
}

// From now on neither the call's end nor its deadline cancels the work. Without an operation afterwards: an earlier
// request began it, and the call has been answered with it.
absl::Status WorkCall::BeginOperation() {
  absl::StatusOr<OperationTable::Begun> begun = context_.operations.Begin(kind_.operation, key_);
  if (!begun.ok()) {
    context_.metrics.admission.CountRejection(ReasonOf(begun.status()));
    return begun.status();
  }
  if (begun->work == nullptr) {
    AnswerWith(begun->operation);
    return absl::OkStatus();
  }
  stream_->audit().Name("operation", OperationName(key_.id));
  stream_->Detach();
  operation_ = std::move(begun->work);
  operation_->set_on_cancel([stream = stream_] { stream->CancelDetached(); });
  return absl::OkStatus();
}

// Answers with an operation that an earlier request began.
void WorkCall::AnswerWith(const Operation& operation) {
  stream_->audit().Name("operation", OperationName(key_.id));
  Answer(*stream_, operation, kind_);
  RecordRepetition();
}

// An operation that has made its result before it began: the request came without `detach` before, or its operation is
// forgotten.
void WorkCall::EndRepeatedOperation() {
  RecordRepetition();
  ticket_ = RequestTicket();
  operation_->Done({earlier_->name});
  Acknowledge();
}

// Tells the call of its operation and ends it, once the state directory has the operation. When that cannot be, the
// work is cancelled, the operation forgotten and the call ends with the error.
void WorkCall::Acknowledge() {
  context_.durable.Run([stream = stream_, work = operation_, &kind = kind_] {
    const absl::Status kept = work->Keep();
    if (kept.ok()) return Answer(*stream, work->operation(), kind);
    work->Drop();
    stream->CancelDetached();
    stream->Close(kept);
  });
}

void WorkCall::AnswerRepetition(const absl::StatusOr<grpc::ByteBuffer>& result) {
  RecordRepetition();
  ticket_ = RequestTicket();
  stream_->audit().Name("repeated", earlier_->name);
  if (!result.ok()) return stream_->Close(result.status());
  stream_->SendResult([result](std::chrono::nanoseconds) { return result; }, nullptr);
}

// Chooses a device, and brings the inputs there that are elsewhere.
absl::Status WorkCall::Place() {
  INTRAWARP_ASSIGN_OR_RETURN(const WorkNeeds needs, Needs());
  INTRAWARP_ASSIGN_OR_RETURN(device_, PlaceJob(context_, needs.inputs, kind_.job_class, needs.claim));
  BringTo(*device_, needs.inputs, Share::kCommon, [self = shared_from_this()](const absl::Status& brought) {
    const absl::Status status = brought.ok() ? self->Submit() : brought;
    if (!status.ok()) self->Fail(status);
  });
  return absl::OkStatus();
}

absl::Status WorkCall::Submit() {
  INTRAWARP_ASSIGN_OR_RETURN(WorkJob work, ClaimJob());
  Job job = std::move(work.job);
  job.job_class = kind_.job_class;
  job.checkpoint = [this](const Progress& progress) { return stream_->control().Check(progress); };
  job.run = [self = shared_from_this(), workspace = std::move(work.workspace)](
                const absl::StatusOr<const ExecContext*>& ctx) { self->RunJob(ctx); };
  submitted_ = Clock::now();
  latency_.Add(Phase::kAdmit, submitted_ - begin_);
  return operation_ == nullptr ? SubmitJob(*device_, *stream_, std::move(job)) : SubmitDetached(std::move(job));
}

absl::Status WorkCall::SubmitDetached(Job job) {
  is_detached_ = true;  // the job may end at once
  const absl::Status submitted = SubmitJob(*device_, *stream_, std::move(job));
  submitted.ok() ? Acknowledge() : void(is_detached_ = false);
  return submitted;
}

void WorkCall::RunJob(const absl::StatusOr<const ExecContext*>& ctx) {
  latency_.Add(Phase::kQueue, Clock::now() - submitted_);
  if (operation_ != nullptr) operation_->Started();
  if (!ctx.ok()) return Fail(absl::IsCancelled(ctx.status()) ? stream_->control().CancelStatus() : ctx.status());
  absl::StatusOr<ObjectContent> content = Run(**ctx);
  if (!content.ok()) return Fail(content.status());
  if (!result_stays() || !context_.durable.enabled()) return SendResult();
  content_ = *std::move(content);
  context_.durable.Run([self = shared_from_this()] { self->WriteContent(); });
}

// The result is written while what it sends beside its last message is sent, and before that message.
void WorkCall::WriteContent() {
  absl::StatusOr<ObjectOrigin> origin = KeepContent(context_.durable, std::exchange(content_, {}));
  if (!origin.ok()) return Fail(origin.status());
  origin_ = *std::move(origin);
  SendResult();
}

void WorkCall::SendResult() {
  if (is_detached_) return FinishOperation();
  const auto make = [self = shared_from_this()](std::chrono::nanoseconds sending) { return self->MakeResult(sending); };
  if (!result_stays()) return stream_->SendResult(make, nullptr);
  std::function<void()> undo;
  // A result that nobody learned of is deleted again, unless its request can be repeated.
  if (key_.id.empty()) {
    undo = [self = shared_from_this()] { self->context_.durable.Run([self] { self->Erase(); }); };
  }
  stream_->SendResidentResult(make, std::move(undo));
}

// Stores the result and makes the last message of the stream.
absl::StatusOr<grpc::ByteBuffer> WorkCall::MakeResult(std::chrono::nanoseconds sending) {
  latency_.Add(Phase::kSend, sending);
  latency_.set_total(Clock::now() - begin_);
  Describe();
  const absl::Status stored = result_stays() ? StoreAndAudit() : absl::OkStatus();
  if (!stored.ok()) {
    RecordFailure(stored);
    LogEnd(stored);
    return stored;
  }
  ticket_ = RequestTicket();  // from now on a repetition finds the result
  RecordSuccess();
  LogEnd(absl::OkStatus());
  return Encode();
}

absl::Status WorkCall::StoreAndAudit() {
  CallAudit& audit = stream_->audit();
  if (origin_.payload != nullptr) audit.Digest("result", origin_.payload->digest());
  INTRAWARP_ASSIGN_OR_RETURN(result_name_, Store(std::exchange(origin_, {})));
  audit.Name("result", result_name_);
  return absl::OkStatus();
}

// The result of an operation, which nobody's call waits for.
void WorkCall::FinishOperation() {
  const absl::Status made = MakeResult(std::chrono::nanoseconds(0)).status();
  std::vector<std::string> results;
  if (made.ok()) results.push_back(result_name_);
  EndOperation(made, std::move(results), latency_.total());
}

// With its audit record, which holds what the job has added to the audit of the stream.
void WorkCall::EndOperation(const absl::Status& status, std::vector<std::string> results,
                            std::chrono::nanoseconds elapsed) {
  stream_->audit().Close({"operation", caller().name, ""}, OutcomeOf(ToGrpcStatus(status)), elapsed,
                         [](const absl::Status&) {});
  status.ok() ? operation_->Done(std::move(results)) : operation_->Failed(status);
}

void WorkCall::Fail(const absl::Status& status) {
  RecordFailure(status);
  LogEnd(status);
  ticket_ = RequestTicket();
  Release();
  content_ = ObjectContent();
  origin_ = ObjectOrigin();
  if (is_detached_) return EndOperation(status, {}, Clock::now() - begin_);
  if (operation_ != nullptr) operation_->Drop();
  stream_->Close(status);
}

void WorkCall::LogEnd(const absl::Status& status) const {
  LogWorkEnd({kind_.log_room, kind_.log_event, stream_->trace_id(), std::nullopt}, status, latency_);
}

}  // namespace intrawarp::server
