// SPDX-License-Identifier: Apache-2.0
// The channels and stubs of a Client, and what its methods share. Internal to the client library.
#ifndef INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_
#define INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/sync_stream.h>

#include <algorithm>
#include <memory>

#include "absl/strings/string_view.h"
#include "client/cpp/call.h"
#include "client/cpp/client.h"
#include "client/cpp/grid_receiver.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/server.grpc.pb.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"

namespace intrawarp {

// HealthCheckRequest {string service = 1} and HealthCheckResponse {enum status = 1} have the wire format of these two
// well-known wrappers.
using HealthStub = grpc::TemplatedGenericStub<google::protobuf::StringValue, google::protobuf::Int32Value>;

struct Client::Impl {
  Impl(const ClientOptions& client_options, std::shared_ptr<grpc::Channel> control,
       std::shared_ptr<grpc::Channel> bulk);

  const ClientOptions options;
  v1::VolumeService::Stub volumes;
  v1::VolumeService::Stub bulk_volumes;
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

// Reads a stream to its end through `accept`; the first error of `accept` cancels the call and is the result.
template <typename Response, typename Accept>
absl::Status ReadAll(Call& call, grpc::ClientReader<Response>& reader, const Accept& accept) {
  Response response;
  absl::Status accepted;
  while (accepted.ok() && reader.Read(&response)) accepted = accept(response);
  if (!accepted.ok()) call.Cancel();
  const absl::Status finished = FromGrpcStatus(reader.Finish());
  return accepted.ok() ? finished : accepted;
}

}  // namespace intrawarp

#endif  // INTRAWARP_CLIENT_CPP_CLIENT_IMPL_H_
