// SPDX-License-Identifier: Apache-2.0
// ByteReceiver: checks the chunks of one stream and puts their bytes into the memory that they belong to, in one copy.
// Internal to the client library. Thread-compatible.
#ifndef INTRAWARP_CLIENT_CPP_BYTE_RECEIVER_H_
#define INTRAWARP_CLIENT_CPP_BYTE_RECEIVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/chunk.h"

namespace intrawarp::client {

class ByteReceiver {
 public:
  // The arrays are filled one behind the other, and outlive the receiver. Once.
  void Begin(std::vector<absl::Span<char>> arrays);
  // DATA_LOSS for a chunk before Begin, and for what wire::CheckChunk refuses.
  absl::Status Append(const wire::ReceivedChunk& chunk);
  // DATA_LOSS unless everything is there.
  absl::Status Finish() const;

  bool begun() const { return begun_; }
  int64_t received_bytes() const { return received_bytes_; }

 private:
  // The rest of the array that the next byte belongs to.
  absl::Span<char> Rest() const;
  void Scatter(absl::Span<const char> bytes);

  bool begun_ = false;
  std::vector<absl::Span<char>> arrays_;
  int64_t total_bytes_ = 0;
  int64_t received_bytes_ = 0;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_BYTE_RECEIVER_H_
