// SPDX-License-Identifier: Apache-2.0
// The calls of Client that are about work which goes on without its call.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/byte_receiver.h"
#include "client/cpp/client_impl.h"
#include "client/cpp/uuid.h"
#include "wire/convert.h"

namespace intrawarp::client {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The limit of one WaitOperation call.
constexpr milliseconds kOneWait{30000};

bool HasEnded(const v1::Operation& operation) {
  return operation.state() == v1::OPERATION_STATE_DONE || operation.state() == v1::OPERATION_STATE_FAILED;
}

// The request with an id is repeated over a connection that broke: it finds its operation, or begins it.
template <typename Response, typename Request>
absl::StatusOr<v1::Operation> StartOperation(Client::Impl& impl, const char* method, Request request,
                                             const CallOptions& options) {
  if (request.request_id().empty()) {
    INTRAWARP_ASSIGN_OR_RETURN(*request.mutable_request_id(), RandomUuid());
  }
  request.set_detach(true);
  std::optional<v1::Operation> operation;
  const auto accept = [&](Response& response) -> absl::Status {
    if (!response.has_operation()) return absl::OkStatus();  // a kind of message of a later version
    operation = std::move(*response.mutable_operation());
    return absl::OkStatus();
  };
  TransferState state;
  const auto attempt = [&] {
    Call call(options, impl.options.unary_timeout);
    ByteReceiver nothing;
    return ReadChunks<Response>(call, *impl.bulk(), method, request, nothing, accept, [&] { state.reached = true; });
  };
  INTRAWARP_RETURN_IF_ERROR(Resume(impl.options.transfer_attempts, options, state, attempt));
  if (!operation) return absl::InternalError("the server ended without an operation: is it an older one?");
  return *std::move(operation);
}

}  // namespace

absl::StatusOr<v1::Operation> Client::StartRegister(v1::RegisterRequest request, const CallOptions& options) {
  return StartOperation<v1::RegisterResponse>(*impl_, "/intrawarp.v1.RegistrationService/Register", std::move(request),
                                              options);
}

absl::StatusOr<v1::Operation> Client::StartMultiply(v1::MultiplyRequest request, const CallOptions& options) {
  return StartOperation<v1::MultiplyResponse>(*impl_, "/intrawarp.v1.SparseMatrixService/Multiply", std::move(request),
                                              options);
}

absl::StatusOr<v1::Operation> Client::StartMultiplyTriple(v1::MultiplyTripleRequest request,
                                                          const CallOptions& options) {
  return StartOperation<v1::MultiplyResponse>(*impl_, "/intrawarp.v1.SparseMatrixService/MultiplyTriple",
                                              std::move(request), options);
}

absl::StatusOr<v1::Operation> Client::GetOperation(const std::string& name, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::GetOperationRequest request;
  request.set_name(name);
  v1::GetOperationResponse response;
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->operations.GetOperation(call.context(), request, &response)));
  return std::move(*response.mutable_operation());
}

absl::StatusOr<std::vector<v1::Operation>> Client::ListOperations(const CallOptions& options) {
  std::vector<v1::Operation> operations;
  v1::ListOperationsRequest request;
  request.set_page_size(kPageSize);
  do {
    Call call(options, impl_->options.unary_timeout);
    v1::ListOperationsResponse response;
    INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->operations.ListOperations(call.context(), request, &response)));
    for (v1::Operation& operation : *response.mutable_operations()) operations.push_back(std::move(operation));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return operations;
}

absl::StatusOr<v1::Operation> Client::WaitOperation(const std::string& name, const CallOptions& options) {
  std::optional<Clock::time_point> end;
  if (options.timeout.count() > 0) end = Clock::now() + options.timeout;
  v1::WaitOperationRequest request;
  request.set_name(name);
  v1::WaitOperationResponse response;
  TransferState state;
  const auto attempt = [&]() -> absl::Status {
    while (true) {
      milliseconds time = kOneWait;
      if (end) time = std::min(time, std::chrono::ceil<milliseconds>(*end - Clock::now()));
      if (time.count() <= 0) return absl::DeadlineExceededError("the operation has not ended in time");
      *request.mutable_timeout() = DurationToProto(time);
      CallOptions one = options;
      one.timeout = time + impl_->options.unary_timeout;
      Call call(one);
      INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->operations.WaitOperation(call.context(), request, &response)));
      if (HasEnded(response.operation())) return absl::OkStatus();
      // The server answers: what breaks from now on may be waited for again.
      state.reached = true;
      ++state.arrived;
    }
  };
  // The first connection may break, too: the operation is known to be there.
  state.reached = true;
  INTRAWARP_RETURN_IF_ERROR(Resume(impl_->options.transfer_attempts, options, state, attempt));
  return std::move(*response.mutable_operation());
}

absl::StatusOr<v1::Operation> Client::CancelOperation(const std::string& name, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::CancelOperationRequest request;
  request.set_name(name);
  v1::CancelOperationResponse response;
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->operations.CancelOperation(call.context(), request, &response)));
  return std::move(*response.mutable_operation());
}

}  // namespace intrawarp::client
