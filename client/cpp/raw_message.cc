// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/raw_message.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

namespace intrawarp::client {

absl::Status ParseRaw(const grpc::ByteBuffer& message, google::protobuf::MessageLite* parsed) {
  grpc::ByteBuffer copy(message);  // shares the slices: the reader wants a pointer that is not const
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && parsed->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InternalError("the server sent a malformed message");
}

grpc::ByteBuffer SerializeRaw(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace intrawarp::client
