// SPDX-License-Identifier: Apache-2.0
// GridReceiver: checks a header and the chunks after it, and puts their numbers into the caller's memory, decoded from
// the 16-bit encodings of a field as they come, or from all bytes of a field at once. Internal to the client library.
// Thread-compatible.
#ifndef INTRAWARP_CLIENT_CPP_GRID_RECEIVER_H_
#define INTRAWARP_CLIENT_CPP_GRID_RECEIVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/cpp/byte_receiver.h"
#include "client/cpp/grid_data.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::client {

// INTERNAL for a field's header that contradicts itself.
absl::Status CheckFieldHeader(const v1::FieldHeader& header);

class GridReceiver {
 public:
  // `components`: floats a voxel. More than `max_bytes` of floats is refused before the sink is asked for memory.
  GridReceiver(GridSink sink, int components, int64_t max_bytes)
      : sink_(std::move(sink)), components_(components), max_bytes_(max_bytes) {}

  // INTERNAL when the server contradicts itself, RESOURCE_EXHAUSTED beyond max_bytes, or what the sink answers.
  absl::Status Begin(const v1::Geometry& geometry, int64_t total_bytes);
  // For a field, in any encoding.
  absl::Status Begin(const v1::FieldHeader& header);
  // The same as ByteReceiver::Append.
  absl::Status Append(const wire::ReceivedChunk& chunk);
  // Instead of chunks: all bytes of the field that has begun. INTERNAL when they are not as many as were announced.
  absl::Status TakeWhole(absl::Span<const char> bytes);
  // DATA_LOSS unless everything that was announced is there.
  absl::Status Finish() const { return is_whole_ ? absl::OkStatus() : bytes_.Finish(); }

  bool begun() const { return bytes_.begun(); }
  int64_t received_bytes() const { return bytes_.received_bytes(); }

 private:
  const GridSink sink_;
  const int components_;
  const int64_t max_bytes_;
  absl::Status AppendEncoded(const wire::ReceivedChunk& chunk);
  // The numbers that `encoded` begins with.
  void DecodeInto(absl::Span<float> out, const char* encoded) const;

  ByteReceiver bytes_;
  absl::Span<float> floats_;
  v1::FieldEncoding encoding_ = v1::FIELD_ENCODING_FLOAT32;
  float scale_ = 0;
  int64_t value_bytes_ = sizeof(float);
  // A 16-bit encoding has here the last byte of the chunk before, where that ends within a number, then a chunk.
  std::vector<char> encoded_;
  size_t left_over_ = 0;
  size_t decoded_ = 0;
  bool is_whole_ = false;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_GRID_RECEIVER_H_
