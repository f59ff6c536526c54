// SPDX-License-Identifier: Apache-2.0
// ResponseQueue: what a stream has yet to send, in order: messages, bulk streams in chunks as they are produced, and
// results, which are made when their turn comes, so that they can tell how long the bulk before them took to send.
//
// Thread-compatible: a reactor guards it with its own mutex.
#ifndef INTRAWARP_SERVER_RPC_RESPONSE_QUEUE_H_
#define INTRAWARP_SERVER_RPC_RESPONSE_QUEUE_H_

#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "server/bulk/bulk_stream.h"

namespace intrawarp::server {

class ResponseQueue {
 public:
  // Makes the message; `sending` is how long bulk headers and chunks since the last result kept the transport busy.
  // nullopt: the message is made elsewhere, and pushed once it is there.
  using ResultFn = std::function<absl::StatusOr<std::optional<grpc::ByteBuffer>>(std::chrono::nanoseconds sending)>;

  explicit ResponseQueue(int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  void PushMessage(grpc::ByteBuffer message) { items_.push_back({std::move(message), nullptr, 0, nullptr, false}); }
  // `header`, then `bulk` in chunks, each a message whose field `chunk_field` is the Chunk. What a stream that was
  // given up has not yet sent is left out.
  void PushBulk(grpc::ByteBuffer header, std::shared_ptr<BulkStream> bulk, int chunk_field);
  void PushResult(ResultFn make) { items_.push_back({{}, nullptr, 0, std::move(make), false}); }

  // The next message to write; nullopt while there is none; or the error of a result. Written() when the transport has
  // taken it.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Take();
  // Makes the next chunk, if one is next and its bytes are there, while the transport takes the message before it.
  void Prepare();
  void Written();

  bool empty() const { return !prepared_ && items_.empty(); }
  void Clear() {
    prepared_.reset();
    items_.clear();
  }

 private:
  // Exactly one of: a message, a bulk stream, a result.
  struct Item {
    grpc::ByteBuffer message;
    std::shared_ptr<BulkStream> bulk;
    int chunk_field = 0;
    ResultFn result;
    bool timed = false;
  };
  void DropEnded();
  std::optional<grpc::ByteBuffer> TakeChunk();
  absl::StatusOr<std::optional<grpc::ByteBuffer>> TakeWhole();

  const int64_t chunk_bytes_;
  std::deque<Item> items_;
  std::optional<grpc::ByteBuffer> prepared_;  // comes before them
  std::optional<std::chrono::steady_clock::time_point> write_begin_;
  std::chrono::nanoseconds sending_{};
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_RESPONSE_QUEUE_H_
