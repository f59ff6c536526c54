// SPDX-License-Identifier: Apache-2.0
// PinnedPool: keeps pinned buffers for reuse, since making one costs far more than a frame may take.
//
// Thread safety: safe for concurrent use. A lease may be given back on any thread.
#ifndef INTRAWARP_ENGINE_DEVICE_PINNED_POOL_H_
#define INTRAWARP_ENGINE_DEVICE_PINNED_POOL_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "engine/device/device.h"

namespace intrawarp {

class PinnedPool {
 public:
  // At most `capacity_bytes` in all, leased and kept; `device` must outlive the pool and every lease.
  PinnedPool(Device& device, size_t capacity_bytes) : device_(device), capacity_bytes_(capacity_bytes) {}

  // At least `bytes` of pinned memory, back in the pool when the last copy of the pointer goes; the pool must outlive
  // it. RESOURCE_EXHAUSTED beyond the capacity.
  absl::StatusOr<std::shared_ptr<PinnedBuffer>> Lease(size_t bytes);

  size_t leased_bytes() const;
  size_t kept_bytes() const;

  size_t capacity_bytes() const { return capacity_bytes_; }

 private:
  void GiveBack(PinnedBuffer buffer);

  Device& device_;
  const size_t capacity_bytes_;
  mutable std::mutex mutex_;
  size_t leased_bytes_ = 0;
  size_t kept_bytes_ = 0;
  std::multimap<size_t, PinnedBuffer> kept_;  // by size
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_PINNED_POOL_H_
