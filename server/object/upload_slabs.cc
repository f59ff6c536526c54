// SPDX-License-Identifier: Apache-2.0
#include "server/object/upload_slabs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/job/job_support.h"
#include "server/status/errors.h"

namespace intrawarp::server {

void UploadSlabs::Take(int64_t bytes, ReadyFn ready) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({bytes, std::move(ready)});
  }
  Retry();
}

void UploadSlabs::Retry() {
  while (auto next = Next()) next->first(std::move(next->second));
}

void UploadSlabs::Clear() {
  std::deque<Waiting> dropped;  // let go after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  dropped.swap(waiting_);
}

int64_t UploadSlabs::waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(waiting_.size());
}

std::optional<std::pair<UploadSlabs::ReadyFn, absl::StatusOr<std::shared_ptr<SlabPair>>>> UploadSlabs::Next() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (waiting_.empty() || *out_ >= kMaxPairs) return std::nullopt;
  absl::StatusOr<std::shared_ptr<SlabPair>> pair = Lease(waiting_.front().bytes);
  // Others hold the memory now.
  if (absl::IsResourceExhausted(pair.status()) && ReasonOf(pair.status()) == v1::PINNED_MEMORY) return std::nullopt;
  ReadyFn ready = std::move(waiting_.front().ready);
  waiting_.pop_front();
  return std::make_pair(std::move(ready), std::move(pair));
}

// Smaller slabs where the whole share has no room for two.
int64_t UploadSlabs::SlabBytes(int64_t bytes) const {
  constexpr int64_t kLeast = 4096;
  int64_t slab = std::clamp(bytes, kLeast, kSlabBytes);
  while (slab > kLeast && 2 * PinnedClaim(slab) > ledger_.capacity(Resource::kPinned)) slab /= 2;
  return slab;
}

absl::StatusOr<std::shared_ptr<SlabPair>> UploadSlabs::Lease(int64_t bytes) {
  auto pair = std::make_unique<SlabPair>();
  pair->slab_bytes = SlabBytes(bytes);
  INTRAWARP_ASSIGN_OR_RETURN(pair->grant, ledger_.Admit({{.pinned_bytes = 2 * PinnedClaim(pair->slab_bytes)}}));
  for (std::shared_ptr<PinnedBuffer>& slab : pair->slabs) {
    INTRAWARP_ASSIGN_OR_RETURN(slab, pinned_.Lease(static_cast<size_t>(pair->slab_bytes)));
  }
  ++*out_;
  return std::shared_ptr<SlabPair>(pair.release(), [out = out_](SlabPair* gone) {
    delete gone;
    --*out;
  });
}

absl::Status StagedUpload::CopyTo(const ExecContext& ctx, void* to, int64_t begin, int64_t bytes) {
  const char* from = data_ + begin;
  if (pair_ == nullptr) return ctx.device().Copy(to, from, static_cast<size_t>(bytes), ctx.stream());
  for (int64_t at = 0; at < bytes; at += pair_->slab_bytes) {
    if (ctx.Checkpoint(Progress()) == Decision::kCancel) return absl::CancelledError("the call was cancelled");
    const int64_t piece = std::min(pair_->slab_bytes, bytes - at);
    INTRAWARP_RETURN_IF_ERROR(CopyPiece(ctx, static_cast<char*>(to) + at, from + at, piece));
  }
  return absl::OkStatus();
}

absl::Status StagedUpload::CopyPiece(const ExecContext& ctx, void* to, const char* from, int64_t bytes) {
  std::optional<Event>& copied = copied_[next_];
  void* const slab = pair_->slabs[next_]->as<void>();
  next_ = 1 - next_;
  if (copied) {
    INTRAWARP_RETURN_IF_ERROR(copied->Wait());
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(Event event, ctx.device().CreateEvent());
    copied.emplace(std::move(event));
  }
  std::memcpy(slab, from, static_cast<size_t>(bytes));
  INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(to, slab, static_cast<size_t>(bytes), ctx.stream()));
  return copied->Record(ctx.stream());
}

}  // namespace intrawarp::server
