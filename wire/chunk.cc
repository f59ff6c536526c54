// SPDX-License-Identifier: Apache-2.0
#include "wire/chunk.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "io/file/crc32c.h"

namespace intrawarp::wire {
namespace {

using google::protobuf::io::CodedOutputStream;

constexpr uint8_t kOffsetTag = v1::Chunk::kOffsetFieldNumber << 3;      // varint
constexpr uint8_t kCrc32cTag = v1::Chunk::kCrc32CFieldNumber << 3 | 5;  // four bytes
constexpr uint8_t kDataTag = v1::Chunk::kDataFieldNumber << 3 | 2;      // length-delimited
// The longest forms of a varint that protobuf reads as a tag, a length and a value.
constexpr int kTagVarint = 5, kLengthVarint = 5, kValueVarint = 10;
constexpr size_t kCrc32cBytes = 1 + sizeof(uint32_t);
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

  // False beyond so many bytes: protobuf refuses longer forms of the same number.
  bool ReadVarint(uint64_t* value, int most_bytes) {
    *value = 0;
    for (int shift = 0; shift < 7 * most_bytes; shift += 7) {
      uint8_t byte = 0;
      if (!ReadByte(&byte)) return false;
      // Protobuf keeps one bit of a tenth byte.
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // Little-endian.
  bool ReadFixed32(uint32_t* value) {
    *value = 0;
    for (int shift = 0; shift < 32; shift += 8) {
      uint8_t byte = 0;
      if (!ReadByte(&byte)) return false;
      *value |= static_cast<uint32_t>(byte) << shift;
    }
    return true;
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

// The payload of EncodeChunk, and its checksum.
grpc::Slice DataSlice(const void* data, size_t bytes, std::shared_ptr<const void> owner, uint32_t* crc) {
  if (owner == nullptr) {
    grpc::Slice copy(bytes);
    *crc = io::CopyWithCrc32c(const_cast<uint8_t*>(copy.begin()), data, bytes);
    return copy;
  }
  *crc = io::Crc32c(data, bytes);
  return grpc::Slice(const_cast<void*>(data), bytes, ReleaseOwner, new std::shared_ptr<const void>(std::move(owner)));
}

}  // namespace

grpc::ByteBuffer EncodeChunk(int field_number, int64_t offset, const void* data, size_t bytes,
                             std::shared_ptr<const void> owner) {
  size_t inner = kCrc32cBytes;
  if (offset != 0) inner += 1 + CodedOutputStream::VarintSize64(offset);
  if (bytes != 0) inner += 1 + CodedOutputStream::VarintSize64(bytes) + bytes;
  uint32_t crc = 0;
  const grpc::Slice payload = DataSlice(data, bytes, std::move(owner), &crc);
  uint8_t head[64];
  uint8_t* end = CodedOutputStream::WriteTagToArray(static_cast<uint32_t>(field_number) << 3 | 2, head);
  end = CodedOutputStream::WriteVarint64ToArray(inner, end);
  if (offset != 0) {
    *end++ = kOffsetTag;
    end = CodedOutputStream::WriteVarint64ToArray(offset, end);
  }
  *end++ = kCrc32cTag;
  end = CodedOutputStream::WriteLittleEndian32ToArray(crc, end);
  if (bytes == 0) {
    const grpc::Slice slice(head, end - head);
    return grpc::ByteBuffer(&slice, 1);
  }
  *end++ = kDataTag;
  end = CodedOutputStream::WriteVarint64ToArray(bytes, end);
  const grpc::Slice slices[2] = {grpc::Slice(head, end - head), payload};
  return grpc::ByteBuffer(slices, 2);
}

ReceivedChunk::ReceivedChunk(v1::Chunk chunk) : offset_(chunk.offset()), size_(chunk.data().size()) {
  if (chunk.has_crc32c()) crc32c_ = chunk.crc32c();
  if (size_ == 0) return;
  auto* data = new std::string(std::move(*chunk.mutable_data()));
  slices_.emplace_back(
      data->data(), data->size(), [](void* p) { delete static_cast<std::string*>(p); }, data);
}

uint32_t ReceivedChunk::CopyTo(void* to, int64_t from) const {
  auto* bytes = static_cast<uint8_t*>(to);
  auto skip = static_cast<size_t>(from);
  uint32_t crc = 0;
  for (const grpc::Slice& slice : slices_) {
    const size_t skipped = std::min(skip, slice.size());
    const size_t rest = slice.size() - skipped;
    crc = io::Crc32c(slice.begin(), skipped, crc);
    crc = io::CopyWithCrc32c(bytes, slice.begin() + skipped, rest, crc);
    bytes += rest;
    skip -= skipped;
  }
  return crc;
}

std::optional<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& buffer, int field_number) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return std::nullopt;
  Cursor cursor(slices);
  uint64_t value = 0;
  const uint64_t tag = static_cast<uint64_t>(field_number) << 3 | 2;
  if (!cursor.ReadVarint(&value, kTagVarint) || value != tag) return std::nullopt;
  if (!cursor.ReadVarint(&value, kLengthVarint) || value != cursor.remaining()) return std::nullopt;
  ReceivedChunk chunk;
  while (cursor.remaining() > 0) {
    uint8_t tag = 0;
    cursor.ReadByte(&tag);
    if (tag == kOffsetTag) {
      if (!cursor.ReadVarint(&value, kValueVarint)) return std::nullopt;
      chunk.offset_ = static_cast<int64_t>(value);
    } else if (tag == kCrc32cTag) {
      uint32_t crc = 0;
      if (!cursor.ReadFixed32(&crc)) return std::nullopt;
      chunk.crc32c_ = crc;
    } else if (tag == kDataTag) {
      if (!cursor.ReadVarint(&value, kLengthVarint) || value > cursor.remaining()) return std::nullopt;
      chunk.size_ = static_cast<int64_t>(value);
      chunk.slices_ = cursor.Take(value);
    } else {
      return std::nullopt;
    }
  }
  return chunk;
}

absl::Status CheckPlace(const ReceivedChunk& chunk, const ExpectedChunk& expected) {
  if (chunk.size() == 0) return FieldError(absl::StatusCode::kInvalidArgument, "chunk.data", "is empty");
  if (chunk.size() > expected.max_bytes) {
    return FieldError(absl::StatusCode::kInvalidArgument, "chunk.data",
                      absl::StrCat("has ", chunk.size(), " bytes, at most ", expected.max_bytes, " are allowed"));
  }
  if (!chunk.crc32c()) return FieldError(absl::StatusCode::kInvalidArgument, "chunk.crc32c", "must be given");
  if (chunk.offset() != expected.offset) {
    return FieldError(absl::StatusCode::kOutOfRange, "chunk.offset",
                      absl::StrCat("is ", chunk.offset(), ", must be ", expected.offset));
  }
  if (chunk.size() > expected.total_bytes - expected.offset) {
    return FieldError(absl::StatusCode::kOutOfRange, "chunk.data",
                      absl::StrCat("passes the end of the ", expected.total_bytes, " bytes announced"));
  }
  return absl::OkStatus();
}

absl::Status CopyChunk(const ReceivedChunk& chunk, void* to, int64_t from) {
  if (chunk.CopyTo(to, from) == chunk.crc32c()) return absl::OkStatus();
  return FieldError(absl::StatusCode::kDataLoss, "chunk.crc32c",
                    absl::StrCat("is not that of the ", chunk.size(), " bytes at ", chunk.offset(),
                                 "; the data was changed on its way"));
}

}  // namespace intrawarp::wire
