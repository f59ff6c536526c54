// SPDX-License-Identifier: Apache-2.0
// PinnedPool: keeps pinned buffers for reuse, since making one costs far more than a frame may take. How much may be
// leased is for the callers to bound.
//
// Thread safety: safe for concurrent use. A lease may be given back on any thread.
#ifndef INTRAWARP_ENGINE_DEVICE_PINNED_POOL_H_
#define INTRAWARP_ENGINE_DEVICE_PINNED_POOL_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/device.h"

namespace intrawarp {

class PinnedPool {
 public:
  // Buffers are pooled as long as what is leased and pooled makes at most `capacity_bytes`; `device` must outlive the
  // pool and every lease.
  PinnedPool(Device& device, size_t capacity_bytes) : PinnedPool(std::vector<Device*>{&device}, capacity_bytes) {}
  // The same for several devices of one kind, all of which can use each buffer. The first healthy one makes it.
  PinnedPool(std::vector<Device*> devices, size_t capacity_bytes)
      : devices_(std::move(devices)), capacity_bytes_(capacity_bytes) {}

  // A lease of `bytes` takes so much: rounded up so that leases of about the same size share buffers.
  static size_t RoundedBytes(size_t bytes);

  // At least `bytes` of pinned memory, back in the pool when the last copy of the pointer goes; the pool must outlive
  // it. The errors of Device::AllocatePinned.
  absl::StatusOr<std::shared_ptr<PinnedBuffer>> Lease(size_t bytes);

  size_t leased_bytes() const;
  size_t pooled_bytes() const;

 private:
  // A pooled buffer of the size; otherwise an empty one, with room for a new one beside what stays pooled.
  PinnedBuffer TakePooled(size_t size);
  absl::StatusOr<PinnedBuffer> Make(size_t size);
  void GiveBack(PinnedBuffer buffer);
  // Takes pooled buffers out until it is within its capacity. With the mutex held.
  std::vector<PinnedBuffer> TakeExcess();

  const std::vector<Device*> devices_;  // not empty
  const size_t capacity_bytes_;
  mutable std::mutex mutex_;
  size_t leased_bytes_ = 0;
  size_t pooled_bytes_ = 0;
  std::multimap<size_t, PinnedBuffer> pooled_;  // by size
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_PINNED_POOL_H_
