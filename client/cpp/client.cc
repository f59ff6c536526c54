// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <future>
#include <utility>

#include "client/cpp/client_impl.h"
#include "client/cpp/credentials.h"
#include "engine/base/field_error.h"

namespace intrawarp::client {
namespace {

// No message is larger than a chunk or a page; the slack is for the fields around them. Servers send 16 MiB at most.
constexpr int kMaxMessageBytes = (16 << 20) + (64 << 10);
constexpr int kFrameBytes = 1 << 20;
// 10 Gbit/s over 6 ms.
constexpr int kWindowBytes = 8 << 20;

// Channels with equal arguments share a connection; `role` keeps ours apart.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, const ClientOptions& options,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                           const char* role) {
  grpc::ChannelArguments arguments;
  arguments.SetString("intrawarp.role", role);
  if (!options.authority.empty()) arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, options.authority);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(options.keepalive_time.count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(options.keepalive_timeout.count()));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // In spite of its name, how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Servers are on the local network; a proxy that the environment names for the web is not for them.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // The client receives frames of a chunk instead of 16 KiB, by larger reads of the socket, in a window that is open
  // from the first stream on, instead of one that grows from 64 KiB with the measured round trips.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kFrameBytes);
  arguments.SetInt(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 64 << 10);
  arguments.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, 256 << 10);
  arguments.SetInt(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kFrameBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  arguments.SetCompressionAlgorithm(GRPC_COMPRESS_NONE);
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

}  // namespace

Client::Impl::Impl(const std::string& server_target, const ClientOptions& client_options,
                   std::shared_ptr<grpc::ChannelCredentials> channel_credentials)
    : target(server_target),
      options(client_options),
      credentials(std::move(channel_credentials)),
      control(MakeChannel(target, options, credentials, "control")),
      volumes(control),
      matrices(control),
      transforms(control),
      operations(control),
      server(control),
      health(control),
      bulk_(MakeChannel(target, options, credentials, "bulk")) {}

std::shared_ptr<grpc::Channel> Client::Impl::bulk() {
  std::lock_guard<std::mutex> lock(bulk_mutex_);
  return bulk_;
}

void Client::Impl::LeaveBulk(const std::shared_ptr<grpc::Channel>& silent) {
  std::lock_guard<std::mutex> lock(bulk_mutex_);
  if (bulk_ == silent) bulk_ = MakeChannel(target, options, credentials, "bulk");
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& target, const ClientOptions& options) {
  if (target.empty()) return FieldError(absl::StatusCode::kInvalidArgument, "target", "is empty");
  if (options.chunk_bytes < 1) {
    return FieldError(absl::StatusCode::kInvalidArgument, "chunk_bytes", "must be at least 1");
  }
  if (options.transfer_attempts < 1) {
    return FieldError(absl::StatusCode::kInvalidArgument, "transfer_attempts", "must be at least 1");
  }
  if (options.session_stall_timeout.count() < 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "session_stall_timeout", "must not be negative");
  }
  if (options.stall_timeout.count() < 0) {
    return FieldError(absl::StatusCode::kInvalidArgument, "stall_timeout", "must not be negative");
  }
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials, MakeCredentials(options.security));
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(target, options, std::move(credentials))));
}

absl::StatusOr<v1::ServerInfo> Client::GetServerInfo(const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::GetServerInfoResponse response;
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->server.GetServerInfo(call.context(), {}, &response)));
  return std::move(*response.mutable_info());
}

absl::StatusOr<std::vector<v1::RoomLogLevel>> Client::SetLogLevel(const v1::SetLogLevelRequest& request,
                                                                  const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::SetLogLevelResponse response;
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->server.SetLogLevel(call.context(), request, &response)));
  return std::vector<v1::RoomLogLevel>(response.log_levels().begin(), response.log_levels().end());
}

absl::StatusOr<bool> Client::IsServing(const std::string& service, const CallOptions& options) {
  constexpr int kServing = 1;
  google::protobuf::StringValue request;
  request.set_value(service);
  google::protobuf::Int32Value response;
  std::promise<grpc::Status> done;
  Call call(options, impl_->options.unary_timeout);
  impl_->health.UnaryCall(call.context(), kHealthCheckMethod, grpc::StubOptions(), &request, &response,
                          [&done](grpc::Status status) { done.set_value(std::move(status)); });
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(done.get_future().get()));
  return response.value() == kServing;
}

}  // namespace intrawarp::client
