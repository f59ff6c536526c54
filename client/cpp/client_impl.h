// SPDX-License-Identifier: Apache-2.0
// The channels and stubs of a Client, and what its methods share. Internal to the client library.
#ifndef INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_
#define INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_

#include <grpcpp/channel.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/cpp/call.h"
#include "client/cpp/client.h"
#include "client/cpp/grid_receiver.h"
#include "client/cpp/health_stub.h"
#include "client/cpp/raw_message.h"
#include "client/cpp/resuming.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/stall_watch.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/bulk.pb.h"
#include "intrawarp/v1/operation.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/server.grpc.pb.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "wire/chunk.h"

namespace intrawarp::client {

// Objects in one answer of a List call; the client asks until it has all.
inline constexpr int kPageSize = 500;

inline constexpr char kDownloadMethod[] = "/intrawarp.v1.BulkService/Download";

// Bytes to be uploaded, in arrays one behind the other; they outlive the call.
struct UploadBytes {
  std::vector<absl::string_view> arrays;
  std::function<void(int64_t sent, int64_t total)> on_progress;
};

struct Client::Impl {
  Impl(const std::string& server_target, const ClientOptions& client_options,
       std::shared_ptr<grpc::ChannelCredentials> channel_credentials);

  // The connection for everything that streams.
  std::shared_ptr<grpc::Channel> bulk();
  // Later streams get a new connection, unless `silent` is not theirs any more.
  void LeaveBulk(const std::shared_ptr<grpc::Channel>& silent);

  // Uploads what the header's content says; fills in the rest of the header but the id.
  absl::StatusOr<v1::UploadResponse> Upload(v1::UploadHeader header, const UploadBytes& bytes,
                                            const CallOptions& options);
  absl::StatusOr<v1::Transform> UploadTransform(v1::UploadHeader header, absl::Span<const float> values,
                                                const CallOptions& options);

  const std::string target;
  const ClientOptions options;
  const std::shared_ptr<grpc::ChannelCredentials> credentials;
  const std::shared_ptr<grpc::Channel> control;
  v1::VolumeService::Stub volumes;
  v1::SparseMatrixService::Stub matrices;
  v1::TransformService::Stub transforms;
  v1::OperationService::Stub operations;
  v1::ServerService::Stub server;
  HealthStub health;

 private:
  absl::Status SendFrom(const v1::UploadHeader& header, const UploadBytes& bytes, int64_t offset,
                        const CallOptions& options, v1::UploadResponse* response, bool* reached);
  absl::StatusOr<int64_t> CommittedBytes(const v1::UploadHeader& header, const CallOptions& options);

  std::mutex bulk_mutex_;
  std::shared_ptr<grpc::Channel> bulk_;
};

// Calls write(offset, data) for the pieces of the arrays from `offset` on, until all are written or write answers
// false. `data` is valid during the call.
bool ForEachChunk(absl::Span<const absl::string_view> arrays, int64_t offset, int64_t chunk_bytes,
                  const std::function<bool(int64_t offset, absl::string_view data)>& write);

// Calls a method that streams Responses with chunks. Those go from the transport's memory into that of `receiver`, in
// one copy; every other message goes through `accept`. The first error of either cancels the call and is the result.
// `moved` is called for each message.
template <typename Response, typename Request, typename Receiver, typename Accept>
absl::Status ReadChunks(
    Call& call, grpc::Channel& channel, const char* method, const Request& request, Receiver& receiver,
    const Accept& accept, const std::function<void()>& moved = [] {}) {
  const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::SERVER_STREAMING);
  // What the generated stubs do, for a response that is left in its bytes.
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
      grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(&channel, rpc, call.context(), request));
  const auto take = [&](const grpc::ByteBuffer& message) -> absl::Status {
    const std::optional<wire::ReceivedChunk> chunk = wire::DecodeChunk(message, Response::kChunkFieldNumber);
    if (chunk) return receiver.Append(*chunk);
    Response response;
    INTRAWARP_RETURN_IF_ERROR(ParseRaw(message, &response));
    if (!response.has_chunk()) return accept(response);
    return receiver.Append(wire::ReceivedChunk(std::move(*response.mutable_chunk())));
  };
  grpc::ByteBuffer message;
  absl::Status taken;
  while (taken.ok() && reader->Read(&message)) {
    moved();
    taken = take(message);
  }
  if (!taken.ok()) call.Cancel();
  const absl::Status finished = FromGrpcStatus(reader->Finish());
  return taken.ok() ? finished : taken;
}

// ReadChunks for a request with an offset and an etag: goes on with a stream that breaks or goes silent. Responses are
// headers, which `accept` gets the first one of, and chunks.
template <typename Response, typename Request, typename Receiver, typename Accept>
absl::Status ReadResuming(Client::Impl& impl, const char* method, Request request, Receiver& receiver,
                          const CallOptions& options, const Accept& accept) {
  TransferState state;
  std::optional<int64_t> total_bytes;
  const auto accept_header = [&](Response& response) -> absl::Status {
    if (!response.has_header()) return absl::OkStatus();  // a kind of message of a later version
    if (!total_bytes) {
      total_bytes = response.header().total_bytes();
      request.set_etag(response.header().etag());
      return accept(response);
    }
    if (response.header().total_bytes() == *total_bytes && response.header().etag() == request.etag()) {
      return absl::OkStatus();
    }
    return absl::InternalError("the server went on with other bytes");
  };
  const auto attempt = [&]() -> absl::Status {
    Call call(options);
    const std::shared_ptr<grpc::Channel> channel = impl.bulk();
    StallWatch watch(channel, impl.options.stall_timeout, [&call] { call.Cancel(); });
    request.set_offset(receiver.received_bytes());
    const absl::Status status = ReadChunks<Response>(call, *channel, method, request, receiver, accept_header, [&] {
      watch.Moved();
      state.reached = true;
    });
    state.arrived = receiver.received_bytes();
    if (!watch.stalled()) return status;
    impl.LeaveBulk(channel);
    state.reached = true;
    return absl::UnavailableError("the connection has gone silent");
  };
  INTRAWARP_RETURN_IF_ERROR(Resume(impl.options.transfer_attempts, options, state, attempt));
  return receiver.Finish();
}

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_
