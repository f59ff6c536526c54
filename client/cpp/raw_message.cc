// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/raw_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "intrawarp/v1/common.pb.h"

namespace intrawarp::client {
namespace {

constexpr uint32_t kVarint = 0, kLengthDelimited = 2;
constexpr uint32_t Tag(int field_number, uint32_t wire_type) {
  return static_cast<uint32_t>(field_number) << 3 | wire_type;
}

// Reads a length that must be what is left of the `total` bytes of the message.
bool ReadLengthOfRest(google::protobuf::io::CodedInputStream& in, int total, uint32_t* length) {
  return in.ReadVarint32(length) && *length == static_cast<uint32_t>(total - in.CurrentPosition());
}

}  // namespace

absl::Status ParseRaw(const grpc::ByteBuffer& message, google::protobuf::MessageLite* parsed) {
  grpc::ByteBuffer copy(message);  // shares the slices: the reader wants a pointer that is not const
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok() && parsed->ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  return absl::InternalError("the server sent a malformed message");
}

int64_t ReadPlainChunk(const grpc::ByteBuffer& message, int field_number, int64_t offset, absl::Span<char> to) {
  grpc::ByteBuffer copy(message);
  grpc::ProtoBufferReader reader(&copy);
  // The client's channels take no message near 2 GiB.
  const int total = static_cast<int>(message.Length());
  if (!reader.status().ok()) return -1;
  google::protobuf::io::CodedInputStream in(&reader);
  uint32_t length = 0;
  if (in.ReadTag() != Tag(field_number, kLengthDelimited) || !ReadLengthOfRest(in, total, &length)) return -1;
  uint64_t at = 0;
  uint32_t tag = in.ReadTag();
  if (tag == Tag(v1::Chunk::kOffsetFieldNumber, kVarint)) {
    if (!in.ReadVarint64(&at)) return -1;
    tag = in.ReadTag();
  }
  if (at != static_cast<uint64_t>(offset) || tag != Tag(v1::Chunk::kDataFieldNumber, kLengthDelimited)) return -1;
  if (!ReadLengthOfRest(in, total, &length) || length > to.size()) return -1;
  return in.ReadRaw(to.data(), static_cast<int>(length)) ? static_cast<int64_t>(length) : -1;
}

}  // namespace intrawarp::client
