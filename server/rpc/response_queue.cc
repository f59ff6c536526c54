// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/response_queue.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/bulk/chunk_codec.h"

namespace intrawarp::server {

void ResponseQueue::PushField(grpc::ByteBuffer header, std::shared_ptr<FieldStream> field, int chunk_field) {
  items_.push_back({std::move(header), nullptr, 0, nullptr, true});
  items_.push_back({{}, std::move(field), chunk_field, nullptr, true});
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> ResponseQueue::Take() {
  DropSentFields();
  if (items_.empty()) return std::nullopt;
  const bool timed = items_.front().timed;
  absl::StatusOr<std::optional<grpc::ByteBuffer>> message = items_.front().field ? TakeChunk() : TakeWhole();
  if (timed && message.ok() && *message) write_begin_ = std::chrono::steady_clock::now();
  return message;
}

void ResponseQueue::Written() {
  if (!write_begin_) return;
  sending_ += std::chrono::steady_clock::now() - *write_begin_;
  write_begin_.reset();
}

void ResponseQueue::DropSentFields() {
  while (!items_.empty() && items_.front().field != nullptr) {
    const FieldStream& field = *items_.front().field;
    if (!field.abandoned() && sent_bytes_ < field.total_bytes()) return;
    items_.pop_front();
    sent_bytes_ = 0;
  }
}

std::optional<grpc::ByteBuffer> ResponseQueue::TakeChunk() {
  const FieldStream& field = *items_.front().field;
  const int64_t end = std::min(sent_bytes_ + chunk_bytes_, field.total_bytes());
  if (field.produced() < end) return std::nullopt;
  const int64_t offset = std::exchange(sent_bytes_, end);
  return EncodeChunk(items_.front().chunk_field, offset, field.data() + offset, end - offset, field.memory());
}

absl::StatusOr<std::optional<grpc::ByteBuffer>> ResponseQueue::TakeWhole() {
  Item item = std::move(items_.front());
  items_.pop_front();
  if (!item.result) return std::optional<grpc::ByteBuffer>(std::move(item.message));
  INTRAWARP_ASSIGN_OR_RETURN(grpc::ByteBuffer message, item.result(std::exchange(sending_, {})));
  return std::optional<grpc::ByteBuffer>(std::move(message));
}

}  // namespace intrawarp::server
