// SPDX-License-Identifier: Apache-2.0
#include "server/service/operation_service.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/operation/operation_messages.h"
#include "server/operation/operation_table.h"
#include "server/rpc/caller.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/unary.h"
#include "server/status/errors.h"
#include "server/trail/audit_trail.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::seconds kDefaultWait{60};
constexpr std::chrono::hours kMaxWait{24};

absl::Status Get(const OperationTable& operations, const Identity& caller, const std::string& name,
                 v1::Operation& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseOperationName(name, "name"));
  INTRAWARP_ASSIGN_OR_RETURN(const Operation operation, operations.Find(id, caller));
  response = OperationToProto(operation);
  return absl::OkStatus();
}

absl::Status List(const OperationTable& operations, const Identity& caller, const v1::ListOperationsRequest& request,
                  v1::ListOperationsResponse& response) {
  const auto list = [&](const std::string& after, int limit) {
    ListedMessages<v1::Operation> page;
    for (const Operation& operation : operations.List(after, limit, caller)) {
      page[OwnedKey(operation.key.id, operation.key.owner)] = OperationToProto(operation);
    }
    return page;
  };
  return ListPage("operations", request, response, *response.mutable_operations(), list);
}

absl::Status Cancel(OperationTable& operations, const Identity& caller, const std::string& name,
                    v1::Operation& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseOperationName(name, "name"));
  INTRAWARP_ASSIGN_OR_RETURN(const Operation operation, operations.Cancel(id, caller));
  response = OperationToProto(operation);
  return absl::OkStatus();
}

// How long the call waits: so that its answer arrives before its deadline.
absl::StatusOr<nanoseconds> WaitTime(const grpc::CallbackServerContext& call, const v1::WaitOperationRequest& request,
                                     const Seams& seams) {
  const nanoseconds left = call.deadline() - seams.system_now();
  const nanoseconds margin = std::min<nanoseconds>(std::chrono::milliseconds(20), left / 20);
  const nanoseconds most = std::max(nanoseconds(0), left - margin);
  if (!request.has_timeout()) return left > kMaxWait ? nanoseconds(kDefaultWait) : most;
  INTRAWARP_ASSIGN_OR_RETURN(const nanoseconds timeout, DurationFromProto(request.timeout(), "timeout", kMaxWait));
  return std::min(timeout, most);
}

// One WaitOperation call. It lives until gRPC is done with it and nobody who answers it just now holds it.
class Wait final : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<Wait> {
 public:
  Wait(OperationTable& operations, v1::Operation* response) : operations_(operations), response_(response) {}

  // gRPC reacts to the end of the call only after the handler that starts it has returned.
  void Start(const grpc::CallbackServerContext& call, const v1::WaitOperationRequest& request, const Seams& seams) {
    self_ = shared_from_this();
    caller_ = CallerOf(call);
    const absl::Status status = Begin(call, request, seams);
    if (!status.ok()) End(status);
  }

  void OnCancel() override { End(absl::CancelledError("the call was cancelled")); }

  void OnDone() override {
    alarm_.Cancel();
    operations_.Unwatch(watch_);
    const std::shared_ptr<Wait> self = std::move(self_);
  }

 private:
  absl::Status Begin(const grpc::CallbackServerContext& call, const v1::WaitOperationRequest& request,
                     const Seams& seams) {
    INTRAWARP_ASSIGN_OR_RETURN(id_, ParseOperationName(request.name(), "name"));
    INTRAWARP_ASSIGN_OR_RETURN(const nanoseconds time, WaitTime(call, request, seams));
    const auto ended = [self = weak_from_this()](const Operation& operation) {
      if (const std::shared_ptr<Wait> wait = self.lock()) wait->Answer(operation);
    };
    INTRAWARP_ASSIGN_OR_RETURN(watch_, operations_.Watch(id_, caller_, ended));
    using std::chrono::system_clock;
    alarm_.Set(system_clock::now() + std::chrono::duration_cast<system_clock::duration>(time),
               [self = weak_from_this()](bool) {
                 if (const std::shared_ptr<Wait> wait = self.lock()) wait->TimeOut();
               });
    return absl::OkStatus();
  }

  void TimeOut() {
    const absl::StatusOr<Operation> operation = operations_.Find(id_, caller_);
    operation.ok() ? Answer(*operation) : End(operation.status());
  }

  void Answer(const Operation& operation) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(finished_, true)) return;
    *response_ = OperationToProto(operation);
    Finish(grpc::Status::OK);
  }

  void End(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!std::exchange(finished_, true)) Finish(ToGrpcStatus(status));
  }

  OperationTable& operations_;
  v1::Operation* const response_;
  Identity caller_;
  std::string id_;
  int64_t watch_ = 0;
  grpc::Alarm alarm_;
  std::shared_ptr<Wait> self_;  // until OnDone
  std::mutex mutex_;
  bool finished_ = false;
};

}  // namespace

grpc::ServerUnaryReactor* OperationService::GetOperation(grpc::CallbackServerContext* call,
                                                         const v1::GetOperationRequest* request,
                                                         v1::GetOperationResponse* response) {
  return Reply(call, Get(context_.operations, CallerOf(*call), request->name(), *response->mutable_operation()));
}

grpc::ServerUnaryReactor* OperationService::ListOperations(grpc::CallbackServerContext* call,
                                                           const v1::ListOperationsRequest* request,
                                                           v1::ListOperationsResponse* response) {
  return Reply(call, List(context_.operations, CallerOf(*call), *request, *response));
}

grpc::ServerUnaryReactor* OperationService::WaitOperation(grpc::CallbackServerContext* call,
                                                          const v1::WaitOperationRequest* request,
                                                          v1::WaitOperationResponse* response) {
  const auto wait = std::make_shared<Wait>(context_.operations, response->mutable_operation());
  wait->Start(*call, *request, context_.seams);
  return wait.get();
}

grpc::ServerUnaryReactor* OperationService::CancelOperation(grpc::CallbackServerContext* call,
                                                            const v1::CancelOperationRequest* request,
                                                            v1::CancelOperationResponse* response) {
  AuditOf(*call)->Name("object", request->name());
  return Reply(call, Cancel(context_.operations, CallerOf(*call), request->name(), *response->mutable_operation()));
}

}  // namespace intrawarp::server
