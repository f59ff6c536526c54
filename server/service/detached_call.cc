// SPDX-License-Identifier: Apache-2.0
#include "server/service/detached_call.h"

#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/operation/operation_messages.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

void Answer(JobStream& stream, const Operation& operation, const OperationMessageFn& message) {
  stream.Send(message(OperationToProto(operation)));
  stream.Close(absl::OkStatus());
}

}  // namespace

absl::Status ValidateDetachedId(absl::string_view request_id) {
  if (request_id.empty()) return InvalidField("request_id", "must be set with detach");
  return ValidateId(request_id, "request_id");
}

absl::StatusOr<bool> AnswerEarlier(ServerContext& context, JobStream& stream, OperationKind kind, const RequestKey& key,
                                   const OperationMessageFn& message) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<Operation> earlier, context.operations.FindBegun(kind, key));
  if (!earlier) return false;
  stream.audit().Name("operation", OperationName(key.id));
  Answer(stream, *earlier, message);
  return true;
}

absl::StatusOr<std::shared_ptr<OperationWork>> Detach(ServerContext& context, const std::shared_ptr<JobStream>& stream,
                                                      OperationKind kind, const RequestKey& key,
                                                      const OperationMessageFn& message) {
  absl::StatusOr<OperationTable::Begun> begun = context.operations.Begin(kind, key);
  if (!begun.ok()) {
    context.metrics.CountRejection(ReasonOf(begun.status()));
    return begun.status();
  }
  stream->audit().Name("operation", OperationName(key.id));
  if (begun->work == nullptr) {
    Answer(*stream, begun->operation, message);
    return nullptr;
  }
  stream->Detach();
  begun->work->set_on_cancel([stream] { stream->CancelDetached(); });
  return std::move(begun->work);
}

void Acknowledge(ServerContext& context, std::shared_ptr<JobStream> stream, std::shared_ptr<OperationWork> work,
                 OperationMessageFn message) {
  context.durable.Run([stream = std::move(stream), work = std::move(work), message = std::move(message)] {
    const absl::Status kept = work->Keep();
    if (kept.ok()) return Answer(*stream, work->operation(), message);
    work->Drop();
    stream->CancelDetached();
    stream->Close(kept);
  });
}

void EndOperation(JobStream& stream, OperationWork& work, const absl::Status& status, std::vector<std::string> results,
                  std::chrono::nanoseconds elapsed) {
  stream.audit().Close({"operation", stream.caller().name, ""}, OutcomeOf(ToGrpcStatus(status)), elapsed,
                       [](const absl::Status&) {});
  status.ok() ? work.Done(std::move(results)) : work.Failed(status);
}

}  // namespace intrawarp::server
