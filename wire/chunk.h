// SPDX-License-Identifier: Apache-2.0
// Chunks of a byte stream (v1::Chunk), as both ends make, take apart and check them.
//
// Sending: EncodeChunk makes the bytes of a message whose only member is a Chunk by hand, so that gRPC sends the
// payload from the memory where it lies. Any protobuf peer reads them. Receiving: a chunk's payload stays in the
// transport's slices until CopyChunk puts it where it belongs: its only copy, in the same pass as its checksum.
//
// Free functions, and values that are thread-compatible.
#ifndef INTRAWARP_WIRE_CHUNK_H_
#define INTRAWARP_WIRE_CHUNK_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::wire {

// A message whose field `field_number` is a Chunk of these bytes, its CRC32C included. Refers to [data, data + bytes);
// `owner` is held until gRPC has let go of that memory, which may be after the call has ended, and is released on any
// thread. Without an owner the bytes are copied.
grpc::ByteBuffer EncodeChunk(int field_number, int64_t offset, const void* data, size_t bytes,
                             std::shared_ptr<const void> owner);

// A received chunk. Holds the transport's memory; a movable value.
class ReceivedChunk {
 public:
  explicit ReceivedChunk(v1::Chunk chunk);

  int64_t offset() const { return offset_; }
  int64_t size() const { return size_; }
  std::optional<uint32_t> crc32c() const { return crc32c_; }
  // Writes the payload from byte `from` on, size() - from bytes, and answers the checksum of all of it.
  uint32_t CopyTo(void* to, int64_t from = 0) const;

 private:
  friend std::optional<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& buffer, int field_number);
  ReceivedChunk() = default;

  int64_t offset_ = 0;
  int64_t size_ = 0;
  std::optional<uint32_t> crc32c_;
  std::vector<grpc::Slice> slices_;  // the payload, in order
};

// The chunk of a message that is plainly nothing but a Chunk in field `field_number`; nullopt for every other message,
// which protobuf may yet understand.
std::optional<ReceivedChunk> DecodeChunk(const grpc::ByteBuffer& buffer, int field_number);

// Which chunk may come next.
struct ExpectedChunk {
  // The first bytes are there; the chunk must begin at `offset`.
  int64_t offset = 0;
  int64_t total_bytes = 0;
  int64_t max_bytes = 0;
};

// All that can be told without reading the payload: INVALID_ARGUMENT "chunk.data: ..." (empty, or larger than allowed)
// or "chunk.crc32c: ..." (unset), OUT_OF_RANGE "chunk.offset: ..." (out of order, overlapping) or "chunk.data: ..."
// (past the end).
absl::Status CheckPlace(const ReceivedChunk& chunk, const ExpectedChunk& expected);
// Copies as ReceivedChunk::CopyTo a chunk that CheckPlace has passed. DATA_LOSS "chunk.crc32c: ..." when its checksum
// is not that of the data, which are then in place all the same.
absl::Status CopyChunk(const ReceivedChunk& chunk, void* to, int64_t from = 0);

}  // namespace intrawarp::wire

#endif  // INTRAWARP_WIRE_CHUNK_H_
