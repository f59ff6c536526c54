// SPDX-License-Identifier: Apache-2.0
// Received messages as the transport's bytes. Internal to the client library.
#ifndef INTRAWARP_CLIENT_CPP_RAW_MESSAGE_H_
#define INTRAWARP_CLIENT_CPP_RAW_MESSAGE_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace intrawarp::client {

// INTERNAL when the bytes are no such message.
absl::Status ParseRaw(const grpc::ByteBuffer& message, google::protobuf::MessageLite* parsed);

// Writes the data of a message that is nothing but a Chunk {offset, data} in field `field_number`, in the order of the
// fields, to the front of `to`; the number of bytes. -1 for every other message, and where the offset is another or the
// data is longer than `to`; then `to` holds nothing of value.
int64_t ReadPlainChunk(const grpc::ByteBuffer& message, int field_number, int64_t offset, absl::Span<char> to);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_RAW_MESSAGE_H_
