// SPDX-License-Identifier: Apache-2.0
// The channels and stubs of a Client, and what its methods share. Internal to the client library.
#ifndef INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_
#define INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <memory>

#include "absl/strings/string_view.h"
#include "client/cpp/call.h"
#include "client/cpp/client.h"
#include "client/cpp/grid_receiver.h"
#include "client/cpp/raw_message.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/matrix.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/server.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"

namespace intrawarp::client {

// HealthCheckRequest {string service = 1} and HealthCheckResponse {enum status = 1} have the wire format of these two
// well-known wrappers.
using HealthStub = grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::Int32Value>;

struct Client::Impl {
  Impl(const ClientOptions& client_options, std::shared_ptr<grpc::Channel> control,
       std::shared_ptr<grpc::Channel> bulk_channel);

  const ClientOptions options;
  const std::shared_ptr<grpc::Channel> bulk;
  v1::VolumeService::Stub volumes;
  v1::VolumeService::Stub bulk_volumes;
  v1::SparseMatrixService::Stub matrices;
  v1::SparseMatrixService::Stub bulk_matrices;
  v1::TransformService::Stub transforms;
  v1::TransformService::Stub bulk_transforms;
  v1::RegistrationService::Stub bulk_registration;
  v1::ServerService::Stub server;
  HealthStub health;
};

// Calls write(chunk) for the pieces of `bytes` from `offset` on, until all are written or write answers false.
template <typename Write>
bool WriteChunks(absl::string_view bytes, int64_t offset, int64_t chunk_bytes, v1::Chunk* chunk, const Write& write) {
  const auto total = static_cast<int64_t>(bytes.size());
  while (offset < total) {
    const int64_t size = std::min(chunk_bytes, total - offset);
    chunk->set_offset(offset);
    chunk->set_data(bytes.data() + offset, static_cast<size_t>(size));
    offset += size;
    if (!write(offset)) return false;
  }
  return true;
}

// Calls a method that streams Responses with a grid or a matrix in chunks. Chunks go from the transport's memory into that of
// `receiver`, in one copy; every other message goes through `accept`. Their first error cancels the call and is the
// result.
template <typename Response, typename Request, typename Receiver, typename Accept>
absl::Status ReadGrid(Call& call, grpc::Channel& channel, const char* method, const Request& request,
                      Receiver& receiver, const Accept& accept) {
  const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::SERVER_STREAMING);
  // What the generated stubs do, for a response that is left in its bytes.
  const std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader(
      grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(&channel, rpc, call.context(), request));
  grpc::ByteBuffer message;
  absl::Status accepted;
  while (accepted.ok() && reader->Read(&message)) {
    if (receiver.AppendPlain(message, Response::kChunkFieldNumber)) continue;
    Response response;
    accepted = ParseRaw(message, &response);
    if (accepted.ok()) accepted = accept(response);
  }
  if (!accepted.ok()) call.Cancel();
  const absl::Status finished = FromGrpcStatus(reader->Finish());
  return accepted.ok() ? finished : accepted;
}

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_
