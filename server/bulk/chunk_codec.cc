// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/chunk_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <cstring>

#include "server/rpc/errors.h"

namespace intrawarp::server {
namespace {

using google::protobuf::io::CodedOutputStream;

constexpr uint8_t kOffsetTag = v1::Chunk::kOffsetFieldNumber << 3;  // varint
constexpr uint8_t kDataTag = v1::Chunk::kDataFieldNumber << 3 | 2;  // length-delimited
static_assert(v1::Chunk::kDataFieldNumber == 15, "data is the last field with a tag of one byte");

// Reads bytes across slices.
class Cursor {
 public:
  explicit Cursor(const std::vector<grpc::Slice>& slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices) remaining_ += slice.size();
  }
  uint64_t remaining() const { return remaining_; }

  bool ReadByte(uint8_t* byte) {
    if (remaining_ == 0) return false;
    SkipEmpty();
    *byte = slices_[index_].begin()[position_];
    Advance(1);
    return true;
  }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      uint8_t byte = 0;
      if (!ReadByte(&byte)) return false;
      // Of a tenth byte protobuf keeps one bit.
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // The next `bytes` bytes as slices of their own; the caller has compared with remaining().
  std::vector<grpc::Slice> Take(uint64_t bytes) {
    std::vector<grpc::Slice> taken;
    while (bytes > 0) {
      SkipEmpty();
      const size_t part = std::min<uint64_t>(bytes, slices_[index_].size() - position_);
      taken.push_back(slices_[index_].sub(position_, position_ + part));
      Advance(part);
      bytes -= part;
    }
    return taken;
  }

 private:
  void SkipEmpty() {
    while (position_ == slices_[index_].size()) {
      ++index_;
      position_ = 0;
    }
  }
  void Advance(size_t bytes) {
    position_ += bytes;
    remaining_ -= bytes;
  }

  const std::vector<grpc::Slice>& slices_;
  size_t index_ = 0;
  size_t position_ = 0;
  uint64_t remaining_ = 0;
};

void ReleaseOwner(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

}  // namespace

grpc::ByteBuffer EncodeChunk(int field_number, int64_t offset, const void* data, size_t bytes,
                             std::shared_ptr<const void> owner) {
  size_t inner = 0;
  if (offset != 0) inner += 1 + CodedOutputStream::VarintSize64(offset);
  if (bytes != 0) inner += 1 + CodedOutputStream::VarintSize64(bytes) + bytes;
  uint8_t head[64];
  uint8_t* end = CodedOutputStream::WriteTagToArray(static_cast<uint32_t>(field_number) << 3 | 2, head);
  end = CodedOutputStream::WriteVarint64ToArray(inner, end);
  if (offset != 0) {
    *end++ = kOffsetTag;
    end = CodedOutputStream::WriteVarint64ToArray(offset, end);
  }
  if (bytes == 0) {
    const grpc::Slice slice(head, end - head);
    return grpc::ByteBuffer(&slice, 1);
  }
  *end++ = kDataTag;
  end = CodedOutputStream::WriteVarint64ToArray(bytes, end);
  const grpc::Slice slices[2] = {
      grpc::Slice(head, end - head),
      grpc::Slice(const_cast<void*>(data), bytes, ReleaseOwner, new std::shared_ptr<const void>(std::move(owner)))};
  return grpc::ByteBuffer(slices, 2);
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
  return WithReason(absl::InvalidArgumentError("the message is malformed"), v1::MALFORMED_MESSAGE);
}

ReceivedChunk::ReceivedChunk(v1::Chunk chunk) : offset_(chunk.offset()), size_(chunk.data().size()) {
  if (size_ == 0) return;
  auto* data = new std::string(std::move(*chunk.mutable_data()));
  slices_.emplace_back(
      data->data(), data->size(), [](void* p) { delete static_cast<std::string*>(p); }, data);
}

void ReceivedChunk::CopyTo(void* to) const {
  auto* bytes = static_cast<uint8_t*>(to);
  for (const grpc::Slice& slice : slices_) {
    std::memcpy(bytes, slice.begin(), slice.size());
    bytes += slice.size();
  }
}

std::optional<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& buffer, int field_number) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return std::nullopt;
  Cursor cursor(slices);
  uint64_t value = 0;
  if (!cursor.ReadVarint(&value) || value != (static_cast<uint64_t>(field_number) << 3 | 2)) return std::nullopt;
  if (!cursor.ReadVarint(&value) || value != cursor.remaining()) return std::nullopt;
  ReceivedChunk chunk;
  while (cursor.remaining() > 0) {
    uint8_t tag = 0;
    cursor.ReadByte(&tag);
    if (tag == kOffsetTag) {
      if (!cursor.ReadVarint(&value)) return std::nullopt;
      chunk.offset_ = static_cast<int64_t>(value);
    } else if (tag == kDataTag) {
      if (!cursor.ReadVarint(&value) || value > cursor.remaining()) return std::nullopt;
      chunk.size_ = static_cast<int64_t>(value);
      chunk.slices_ = cursor.Take(value);
    } else {
      return std::nullopt;
    }
  }
  return chunk;
}

}  // namespace intrawarp::server
