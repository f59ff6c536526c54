// SPDX-License-Identifier: Apache-2.0
// Messages as the transport's bytes. Internal to the client library. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CPP_RAW_MESSAGE_H_
#define INTRAWARP_CLIENT_CPP_RAW_MESSAGE_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace intrawarp::client {

// INTERNAL when the bytes are not such a message.
absl::Status ParseRaw(const grpc::ByteBuffer& message, google::protobuf::MessageLite* parsed);

grpc::ByteBuffer SerializeRaw(const google::protobuf::MessageLite& message);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_RAW_MESSAGE_H_
