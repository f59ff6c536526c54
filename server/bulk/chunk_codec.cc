// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/chunk_codec.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include "server/rpc/rpc_support.h"

namespace intrawarp::server {

absl::Status ValidateChunk(const ReceivedChunk& chunk, const wire::ExpectedChunk& expected) {
  absl::Status checked = wire::CheckChunk(chunk, expected);
  return absl::IsDataLoss(checked) ? WithReason(std::move(checked), "CHUNK_CORRUPT") : checked;
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status ParseInto(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message) {
  grpc::ByteBuffer copy(buffer);  // shares the slices: the reader wants a pointer that is not const
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InvalidArgumentError("the message is malformed");
}

}  // namespace intrawarp::server
