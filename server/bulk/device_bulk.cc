// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/device_bulk.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/schedule/copy_lane.h"
#include "server/job/job_support.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kRingSlabs = 4;

// Where the slab begins that holds the byte `offset`.
int64_t SlabBegin(int64_t slab_bytes, int64_t offset) { return offset / slab_bytes * slab_bytes; }

struct Ring {
  int64_t slabs = 0;
  int64_t slab_bytes = 0;
};

Ring RingFor(int64_t total_bytes, int64_t slab_bytes, int64_t offset) {
  const int64_t rest = offset == total_bytes ? 0 : total_bytes - SlabBegin(slab_bytes, offset);
  return {std::min(kRingSlabs, (rest + slab_bytes - 1) / slab_bytes), std::min(slab_bytes, rest)};
}

}  // namespace

int64_t DeviceBulk::RingBytes(int64_t total_bytes, int64_t slab_bytes, int64_t offset) {
  const Ring ring = RingFor(total_bytes, slab_bytes, offset);
  return ring.slabs * PinnedClaim(ring.slab_bytes);
}

absl::StatusOr<std::shared_ptr<DeviceBulk>> DeviceBulk::Create(DeviceContext& context,
                                                               std::shared_ptr<SlabSource> source, int64_t offset,
                                                               Grant& grant) {
  const Ring ring = RingFor(source->total_bytes(), source->slab_bytes(), offset);
  std::shared_ptr<DeviceBulk> bulk(new DeviceBulk(context, std::move(source), offset));
  for (int64_t i = 0; i < ring.slabs; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(Slab slab, LeasePinned(context, grant, ring.slab_bytes));
    bulk->free_.push_back(std::move(slab));
  }
  return bulk;
}

DeviceBulk::DeviceBulk(DeviceContext& context, std::shared_ptr<SlabSource> source, int64_t offset)
    : context_(context),
      source_(std::move(source)),
      next_(offset == source_->total_bytes() ? offset : SlabBegin(source_->slab_bytes(), offset)),
      taken_(offset) {}

absl::Status DeviceBulk::Start(ChangedFn changed) {
  changed_ = std::move(changed);
  return Fetch();
}

absl::Status DeviceBulk::Fetch() {
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t rest = source_->total_bytes() - next_;
  if (fetching_ || given_up_ || rest == 0 || free_.empty()) return absl::OkStatus();
  Slab slab = std::move(free_.back());
  free_.pop_back();
  const int64_t begin = next_;
  const int64_t bytes = std::min(source_->slab_bytes(), rest);
  next_ += bytes;
  fetching_ = true;
  const absl::Status submitted = context_.copies.Submit(
      [self = shared_from_this(), slab = std::move(slab), begin, bytes](const absl::StatusOr<const ExecContext*>& ctx) {
        self->Copied(ctx, slab, begin, bytes);
      });
  return Stopping(context_.device, submitted);
}

void DeviceBulk::Copied(const absl::StatusOr<const ExecContext*>& ctx, const Slab& slab, int64_t begin, int64_t bytes) {
  const auto copy = [&]() -> absl::Status {
    INTRAWARP_RETURN_IF_ERROR(Stopping(context_.device, ctx.status()));
    const absl::Status copied = source_->Read(**ctx, begin, bytes, slab->as<void>());
    // Also after an error: nothing may write into the slab any more.
    const absl::Status synchronized = (*ctx)->device().Synchronize((*ctx)->stream());
    return copied.ok() ? synchronized : copied;
  };
  absl::Status status = copy();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    fetching_ = false;
    if (status.ok()) ready_.push_back(MakePiece(slab, begin, bytes));
  }
  if (!changed_(status) || !status.ok()) return GiveUp();
  status = Fetch();
  if (status.ok()) return;
  (void)changed_(status);
  GiveUp();
}

void DeviceBulk::GiveUp() {
  std::deque<BulkPiece> dropped;  // let go after the lock, which their slabs take as they come back
  std::lock_guard<std::mutex> lock(mutex_);
  given_up_ = true;
  dropped.swap(ready_);
}

BulkPiece DeviceBulk::MakePiece(const Slab& slab, int64_t begin, int64_t bytes) {
  std::shared_ptr<const void> owner(slab->as<void>(), [weak = weak_from_this(), slab](const void*) {
    if (const std::shared_ptr<DeviceBulk> self = weak.lock()) self->Freed(slab);
  });
  // The first slab may begin before the first byte that is sent.
  const int64_t skipped = std::max<int64_t>(taken_ - begin, 0);
  return {begin + skipped, slab->as<char>() + skipped, bytes - skipped, std::move(owner)};
}

// On any thread, perhaps within gRPC. What fails after the lane's shutdown is a call that is cancelled anyway.
void DeviceBulk::Freed(Slab slab) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(slab));
  }
  (void)Fetch();
}

std::optional<BulkPiece> DeviceBulk::Take(int64_t most) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (ready_.empty()) return std::nullopt;
  BulkPiece& front = ready_.front();
  BulkPiece piece = front;
  piece.bytes = std::min(most, front.bytes);
  taken_ += piece.bytes;
  front.offset += piece.bytes;
  front.data += piece.bytes;
  front.bytes -= piece.bytes;
  if (front.bytes == 0) ready_.pop_front();
  return piece;
}

bool DeviceBulk::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return given_up_ || taken_ == source_->total_bytes();
}

}  // namespace intrawarp::server
