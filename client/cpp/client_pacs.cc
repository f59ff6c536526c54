// SPDX-License-Identifier: Apache-2.0
// The calls of Client about archives, and the operations that they begin.
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/client_impl.h"
#include "intrawarp/v1/operation.grpc.pb.h"
#include "intrawarp/v1/pacs.grpc.pb.h"
#include "wire/convert.h"

namespace intrawarp::client {
namespace {

// An archive may be slow.
constexpr std::chrono::minutes kQuestionTimeout{2};
// The time of an answer beyond that for which the server waits.
constexpr std::chrono::seconds kWaitMargin{10};

}  // namespace

absl::StatusOr<std::vector<v1::Remote>> Client::ListRemotes(const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::ListRemotesResponse response;
  v1::PacsService::Stub stub(impl_->control);
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(stub.ListRemotes(call.context(), {}, &response)));
  return std::vector<v1::Remote>(response.remotes().begin(), response.remotes().end());
}

absl::Status Client::EchoRemote(const std::string& remote, const CallOptions& options) {
  Call call(options, kQuestionTimeout);
  v1::EchoRemoteRequest request;
  request.set_remote(remote);
  v1::EchoRemoteResponse response;
  v1::PacsService::Stub stub(impl_->control);
  return FromGrpcStatus(stub.EchoRemote(call.context(), request, &response));
}

absl::StatusOr<v1::FindSeriesResponse> Client::FindSeries(const v1::FindSeriesRequest& request,
                                                          const CallOptions& options) {
  Call call(options, kQuestionTimeout);
  v1::FindSeriesResponse response;
  v1::PacsService::Stub stub(impl_->control);
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(stub.FindSeries(call.context(), request, &response)));
  return response;
}

absl::StatusOr<v1::Operation> Client::ImportSeries(const v1::ImportSeriesRequest& request, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::ImportSeriesResponse response;
  v1::PacsService::Stub stub(impl_->control);
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(stub.ImportSeries(call.context(), request, &response)));
  return std::move(*response.mutable_operation());
}

absl::StatusOr<v1::Operation> Client::WaitOperation(const std::string& name, std::chrono::milliseconds wait,
                                                    const CallOptions& options) {
  Call call(options, wait + kWaitMargin);
  v1::WaitOperationRequest request;
  request.set_name(name);
  *request.mutable_timeout() = DurationToProto(wait);
  v1::WaitOperationResponse response;
  v1::OperationService::Stub stub(impl_->control);
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(stub.WaitOperation(call.context(), request, &response)));
  return std::move(*response.mutable_operation());
}

}  // namespace intrawarp::client
