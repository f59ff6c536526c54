// SPDX-License-Identifier: Apache-2.0
// Calls whose work goes on without them (`detach`), as operations.
//
// The job of such a call is that of any other until it is admitted. From then on its end is the operation's: the call
// is told of the operation, and ends. Functions are thread-safe.
#ifndef INTRAWARP_SERVER_SERVICE_DETACHED_CALL_H_
#define INTRAWARP_SERVER_SERVICE_DETACHED_CALL_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "intrawarp/v1/operation.pb.h"
#include "server/context/server_context.h"
#include "server/job/job_support.h"
#include "server/operation/operation_table.h"
#include "server/rpc/job_stream.h"

namespace intrawarp::server {

// INVALID_ARGUMENT naming request_id unless it is the id of an operation.
absl::Status ValidateDetachedId(absl::string_view request_id);

// The message by which a call tells of an operation.
using OperationMessageFn = std::function<grpc::ByteBuffer(const v1::Operation& operation)>;

// Begins the operation of a call, whose job neither the call's end nor its deadline cancels from now on. Null: an
// earlier request began it, and the call has been answered with it. The errors of OperationTable::Begin.
absl::StatusOr<std::shared_ptr<OperationWork>> Detach(ServerContext& context, const std::shared_ptr<JobStream>& stream,
                                                      OperationKind kind, const RequestKey& key,
                                                      const OperationMessageFn& message);

// Tells the call of its operation and ends it, once the state directory has the operation. When that cannot be, the
// work is cancelled, the operation forgotten and the call ends with the error.
void Acknowledge(ServerContext& context, std::shared_ptr<JobStream> stream, std::shared_ptr<OperationWork> work,
                 OperationMessageFn message);

// Submits the job of a call. With an operation (`call->operation`), the job is the operation's from then on, and the
// call is told of it. Call: RegisterCall, MultiplyCall.
template <typename Call>
absl::Status StartJob(const std::shared_ptr<Call>& call, Job job, const OperationMessageFn& message) {
  if (call->operation == nullptr) return SubmitJob(*call->device, *call->stream, std::move(job));
  call->is_detached = true;  // the job may end at once
  const absl::Status submitted = SubmitJob(*call->device, *call->stream, std::move(job));
  if (submitted.ok()) {
    Acknowledge(call->context, call->stream, call->operation, message);
  } else {
    call->is_detached = false;
  }
  return submitted;
}

// Answers with an operation that an earlier request began. False when there is none. The errors of
// OperationTable::FindBegun.
absl::StatusOr<bool> AnswerEarlier(ServerContext& context, JobStream& stream, OperationKind kind, const RequestKey& key,
                                   const OperationMessageFn& message);

// Ends the operation with what its job has made or failed with, and writes its audit record, which holds what the job
// has added to the audit of the stream.
void EndOperation(JobStream& stream, OperationWork& work, const absl::Status& status, std::vector<std::string> results,
                  std::chrono::nanoseconds elapsed);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_DETACHED_CALL_H_
