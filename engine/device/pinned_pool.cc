// SPDX-License-Identifier: Apache-2.0
#include "engine/device/pinned_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace intrawarp {

size_t PinnedPool::RoundedBytes(size_t bytes) {
  // To a sixteenth of the power of two.
  size_t step = 4096;
  while (step * 32 < bytes) step *= 2;
  return (std::max<size_t>(bytes, 1) + step - 1) / step * step;
}

PinnedBuffer PinnedPool::TakePooled(size_t size) {
  std::vector<PinnedBuffer> dropped;  // freed after the lock: freeing pinned memory is slow
  std::lock_guard<std::mutex> lock(mutex_);
  leased_bytes_ += size;
  PinnedBuffer buffer;
  if (const auto it = pooled_.find(size); it != pooled_.end()) {
    buffer = std::move(it->second);
    pooled_.erase(it);
    pooled_bytes_ -= size;
  }
  dropped = TakeExcess();
  return buffer;
}

std::vector<PinnedBuffer> PinnedPool::TakeExcess() {
  std::vector<PinnedBuffer> excess;
  while (leased_bytes_ + pooled_bytes_ > capacity_bytes_ && !pooled_.empty()) {
    // The largest goes first: that takes the fewest, and leaves the small ones that frames lease again and again.
    const auto largest = std::prev(pooled_.end());
    pooled_bytes_ -= largest->first;
    excess.push_back(std::move(largest->second));
    pooled_.erase(largest);
  }
  return excess;
}

absl::StatusOr<std::shared_ptr<PinnedBuffer>> PinnedPool::Lease(size_t bytes) {
  const size_t size = RoundedBytes(bytes);
  PinnedBuffer buffer = TakePooled(size);
  if (buffer.empty()) {
    absl::StatusOr<PinnedBuffer> made = Make(size);
    if (!made.ok()) {
      std::lock_guard<std::mutex> lock(mutex_);
      leased_bytes_ -= size;
      return made.status();
    }
    buffer = *std::move(made);
  }
  return std::shared_ptr<PinnedBuffer>(new PinnedBuffer(std::move(buffer)), [this](PinnedBuffer* lease) {
    GiveBack(std::move(*lease));
    delete lease;
  });
}

absl::StatusOr<PinnedBuffer> PinnedPool::Make(size_t size) {
  const auto healthy =
      std::find_if(devices_.begin(), devices_.end(), [](const Device* device) { return device->health().ok(); });
  return (healthy == devices_.end() ? devices_.front() : *healthy)->AllocatePinned(size);
}

void PinnedPool::GiveBack(PinnedBuffer buffer) {
  std::vector<PinnedBuffer> dropped;
  std::lock_guard<std::mutex> lock(mutex_);
  leased_bytes_ -= buffer.bytes();
  pooled_bytes_ += buffer.bytes();
  pooled_.emplace(buffer.bytes(), std::move(buffer));
  dropped = TakeExcess();
}

size_t PinnedPool::leased_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return leased_bytes_;
}

size_t PinnedPool::pooled_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return pooled_bytes_;
}

}  // namespace intrawarp
