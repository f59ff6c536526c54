// SPDX-License-Identifier: Apache-2.0
#include "engine/device/pinned_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace intrawarp {
namespace {

// Sizes are rounded up so that leases of about the same size share buffers: to a sixteenth of their power of two.
size_t RoundedSize(size_t bytes) {
  size_t step = 4096;
  while (step * 32 < bytes) step *= 2;
  return (std::max<size_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

absl::StatusOr<std::shared_ptr<PinnedBuffer>> PinnedPool::Lease(size_t bytes) {
  if (bytes > capacity_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pinned memory: ", bytes, " bytes asked, ", capacity_bytes_, " in all"));
  }
  const size_t size = std::min(RoundedSize(bytes), capacity_bytes_);
  PinnedBuffer buffer;
  std::vector<PinnedBuffer> dropped;  // freed after the lock: freeing pinned memory is slow
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // A kept buffer up to twice as large will do.
    if (auto it = kept_.lower_bound(size); it != kept_.end() && it->first <= 2 * size) {
      buffer = std::move(it->second);
      kept_.erase(it);
      kept_bytes_ -= buffer.bytes();
      leased_bytes_ += buffer.bytes();
    } else {
      while (leased_bytes_ + kept_bytes_ + size > capacity_bytes_ && !kept_.empty()) {
        // The largest goes first: that takes the fewest, and leaves the small ones that frames lease again and again.
        const auto largest = std::prev(kept_.end());
        kept_bytes_ -= largest->first;
        dropped.push_back(std::move(largest->second));
        kept_.erase(largest);
      }
      if (leased_bytes_ + size > capacity_bytes_) {
        return absl::ResourceExhaustedError(absl::StrCat("pinned memory: ", bytes, " bytes asked, ", leased_bytes_,
                                                         " of ", capacity_bytes_, " in use"));
      }
      leased_bytes_ += size;
    }
  }
  dropped.clear();
  if (buffer.empty()) {
    absl::StatusOr<PinnedBuffer> made = device_.AllocatePinned(size);
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

void PinnedPool::GiveBack(PinnedBuffer buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  leased_bytes_ -= buffer.bytes();
  kept_bytes_ += buffer.bytes();
  kept_.emplace(buffer.bytes(), std::move(buffer));
}

size_t PinnedPool::leased_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return leased_bytes_;
}

size_t PinnedPool::kept_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return kept_bytes_;
}

}  // namespace intrawarp
