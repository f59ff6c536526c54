// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/chunk_codec.h"

#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/status/errors.h"

namespace intrawarp::server {

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status ParseInto(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message) {
  grpc::ByteBuffer copy(buffer);  // shares the slices: the reader wants a pointer that is not const
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError("the message is malformed"), v1::MALFORMED_MESSAGE);
}

}  // namespace intrawarp::server
