// SPDX-License-Identifier: Apache-2.0
// GridReceiver: checks a header and the chunks after it, and puts their numbers into the caller's memory: float32 as it
// comes, 16-bit encodings of a field once all of it is there. Internal to the client library. Thread-compatible.
#ifndef INTRAWARP_CLIENT_CPP_GRID_RECEIVER_H_
#define INTRAWARP_CLIENT_CPP_GRID_RECEIVER_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/cpp/grid_data.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::client {

class GridReceiver {
 public:
  // `components`: floats a voxel. More than `max_bytes` of floats is refused before the sink is asked for memory.
  GridReceiver(GridSink sink, int components, int64_t max_bytes)
      : sink_(std::move(sink)), components_(components), max_bytes_(max_bytes) {}

  // INTERNAL when the server contradicts itself, RESOURCE_EXHAUSTED beyond max_bytes, or what the sink answers.
  absl::Status Begin(const v1::Geometry& geometry, int64_t total_bytes);
  // Of a field, in any encoding.
  absl::Status Begin(const v1::FieldHeader& header);
  // DATA_LOSS for a chunk before the header, out of order, or past the end.
  absl::Status Append(const v1::Chunk& chunk);
  // Appends the chunk of a message that is plainly the next one (ReadPlainChunk) and answers whether it was; if not,
  // nothing has changed.
  bool AppendPlain(const grpc::ByteBuffer& message, int chunk_field_number);
  // DATA_LOSS unless everything that was announced is there. Decodes.
  absl::Status Finish();

  bool begun() const { return begun_; }
  int64_t received_bytes() const { return received_bytes_; }

 private:
  const GridSink sink_;
  const int components_;
  const int64_t max_bytes_;
  bool begun_ = false;
  // Where bytes go: the caller's floats, or, of a 16-bit encoding, `encoded_`.
  absl::Span<char> destination_;
  absl::Span<float> floats_;
  v1::FieldEncoding encoding_ = v1::FIELD_ENCODING_FLOAT32;
  float scale_ = 0;
  int64_t value_bytes_ = sizeof(float);
  std::vector<char> encoded_;
  int64_t received_bytes_ = 0;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_GRID_RECEIVER_H_
