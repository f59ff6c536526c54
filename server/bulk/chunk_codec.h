// SPDX-License-Identifier: Apache-2.0
// Messages as raw bytes, for the methods that move bulk data (grpc::ByteBuffer requests and responses).
//
// Sending: the bytes of a response whose only member is a Chunk, made by hand, so that gRPC sends the payload from the
// memory where it lies. Any protobuf client reads them.
// Receiving: a chunk's payload stays in the transport's slices until CopyTo puts it where it belongs: its only copy.
//
// Bytes from the wire are hostile: what is not a plain chunk message goes to protobuf, whose word is final.
#ifndef INTRAWARP_SERVER_BULK_CHUNK_CODEC_H_
#define INTRAWARP_SERVER_BULK_CHUNK_CODEC_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::server {

// A message whose field `field_number` is a Chunk {offset, data}. Refers to [data, data + bytes); `owner` is held until
// gRPC has let go of that memory, which may be after the call has ended, and is released on any thread.
grpc::ByteBuffer EncodeChunk(int field_number, int64_t offset, const void* data, size_t bytes,
                             std::shared_ptr<const void> owner);

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message);

// INVALID_ARGUMENT when the bytes are no such message.
absl::Status ParseInto(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);
template <typename T>
absl::StatusOr<T> ParseMessage(const grpc::ByteBuffer& buffer) {
  T message;
  absl::Status status = ParseInto(buffer, &message);
  if (!status.ok()) return status;
  return message;
}

// A received chunk. Holds the transport's memory; a movable value.
class ReceivedChunk {
 public:
  explicit ReceivedChunk(v1::Chunk chunk);

  int64_t offset() const { return offset_; }
  int64_t size() const { return size_; }
  // Writes size() bytes.
  void CopyTo(void* to) const;

 private:
  friend std::optional<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& buffer, int field_number);
  ReceivedChunk() = default;

  int64_t offset_ = 0;
  int64_t size_ = 0;
  std::vector<grpc::Slice> slices_;  // the payload, in order
};

// The chunk of a message that is plainly nothing but a Chunk in field `field_number`; nullopt for every other message,
// which ParseMessage may yet understand.
std::optional<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& buffer, int field_number);

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

#endif  // INTRAWARP_SERVER_BULK_CHUNK_CODEC_H_
