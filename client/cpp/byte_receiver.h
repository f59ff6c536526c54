// SPDX-License-Identifier: Apache-2.0
// ByteReceiver: checks the chunks of one stream and puts their bytes into the memory that they belong to, in one copy.
// Internal to the client library. Thread-compatible.
#ifndef INTRAWARP_CLIENT_CPP_BYTE_RECEIVER_H_
#define INTRAWARP_CLIENT_CPP_BYTE_RECEIVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "wire/chunk.h"

namespace intrawarp::client {

class ByteReceiver {
 public:
  // The arrays are filled one behind the other, and outlive the receiver. Once, or the other one.
  void Begin(std::vector<absl::Span<char>> arrays);
  // Append is not used; Take puts each chunk where its caller wants it.
  void Begin(int64_t total_bytes);
  // DATA_LOSS for a chunk before Begin, and for what wire::CheckPlace and CopyChunk refuse.
  absl::Status Append(const wire::ReceivedChunk& chunk);
  // Puts the next chunk into the memory that `place` answers, which has room for it. Errors as of Append.
  template <typename Place>
  absl::Status Take(const wire::ReceivedChunk& chunk, const Place& place) {
    if (absl::Status checked = Check(chunk); !checked.ok()) return checked;
    if (absl::Status copied = Refused(wire::CopyChunk(chunk, place())); !copied.ok()) return copied;
    received_bytes_ += chunk.size();
    return absl::OkStatus();
  }
  // DATA_LOSS unless everything is there.
  absl::Status Finish() const;

  bool begun() const { return begun_; }
  int64_t received_bytes() const { return received_bytes_; }

 private:
  absl::Status Check(const wire::ReceivedChunk& chunk) const;
  static absl::Status Refused(const absl::Status& status);
  // The rest of the array that byte `at` belongs to.
  absl::Span<char> RestFrom(size_t at) const;
  // Beginning at the first byte not received.
  void Scatter(absl::Span<const char> bytes, size_t at) const;

  bool begun_ = false;
  std::vector<absl::Span<char>> arrays_;
  int64_t total_bytes_ = 0;
  int64_t received_bytes_ = 0;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_BYTE_RECEIVER_H_
