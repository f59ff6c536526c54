// SPDX-License-Identifier: Apache-2.0
// Messages as raw bytes, for the methods that move bulk data (grpc::ByteBuffer requests and responses), and the
// requests that are a header or a chunk (wire/chunk.h).
//
// Bytes from the wire are hostile: what is not a plain chunk message goes to protobuf, whose word is final.
#ifndef INTRAWARP_SERVER_RPC_CHUNK_CODEC_H_
#define INTRAWARP_SERVER_RPC_CHUNK_CODEC_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/bulk/received_chunk.h"
#include "wire/chunk.h"

namespace intrawarp::server {

using wire::DecodeChunk;
using wire::EncodeChunk;

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message);

// INVALID_ARGUMENT when the bytes are not such a message.
absl::Status ParseInto(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);
template <typename T>
absl::StatusOr<T> ParseMessage(const grpc::ByteBuffer& buffer) {
  T message;
  absl::Status status = ParseInto(buffer, &message);
  if (!status.ok()) return status;
  return message;
}

// A received request: its chunk, or, when it holds none, the message.
template <typename T>
struct ReceivedRequest {
  std::optional<ReceivedChunk> chunk;
  T message;
};
template <typename T>
absl::StatusOr<ReceivedRequest<T>> ReceiveRequest(const grpc::ByteBuffer& buffer) {
  ReceivedRequest<T> request;
  request.chunk = DecodeChunk(buffer, T::kChunkFieldNumber);
  if (request.chunk) return request;
  absl::Status status = ParseInto(buffer, &request.message);
  if (!status.ok()) return status;
  if (request.message.has_chunk()) request.chunk = ReceivedChunk(std::move(*request.message.mutable_chunk()));
  return request;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_CHUNK_CODEC_H_
