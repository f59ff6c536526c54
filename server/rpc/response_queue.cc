// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/response_queue.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/rpc/chunk_codec.h"

namespace intrawarp::server {

void ResponseQueue::PushBulk(grpc::ByteBuffer header, std::shared_ptr<BulkStream> bulk, int chunk_field) {
  items_.push_back({std::move(header), nullptr, 0, nullptr, true});
  items_.push_back({{}, std::move(bulk), chunk_field, nullptr, true});
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> ResponseQueue::Take() {
  if (prepared_) {
    write_begin_ = std::chrono::steady_clock::now();
    return std::exchange(prepared_, std::nullopt);
  }
  DropEnded();
  if (items_.empty()) return std::nullopt;
  const bool timed = items_.front().timed;
  absl::StatusOr<std::optional<grpc::ByteBuffer>> message = items_.front().bulk ? TakeChunk() : TakeWhole();
  if (timed && message.ok() && *message) write_begin_ = std::chrono::steady_clock::now();
  return message;
}

void ResponseQueue::Prepare() {
  if (prepared_) return;
  DropEnded();
  if (!items_.empty() && items_.front().bulk != nullptr) prepared_ = TakeChunk();
}

void ResponseQueue::Written() {
  if (!write_begin_) return;
  sending_ += std::chrono::steady_clock::now() - *write_begin_;
  write_begin_.reset();
}

void ResponseQueue::DropEnded() {
  while (!items_.empty() && items_.front().bulk != nullptr && items_.front().bulk->ended()) items_.pop_front();
}

std::optional<grpc::ByteBuffer> ResponseQueue::TakeChunk() {
  std::optional<BulkPiece> piece = items_.front().bulk->Take(chunk_bytes_);
  if (!piece) return std::nullopt;
  return EncodeChunk(items_.front().chunk_field, piece->offset, piece->data, piece->bytes, std::move(piece->owner));
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> ResponseQueue::TakeWhole() {
  Item item = std::move(items_.front());
  items_.pop_front();
  if (!item.result) return std::optional<grpc::ByteBuffer>(std::move(item.message));
  return item.result(std::exchange(sending_, {}));
}

}  // namespace intrawarp::server
