// SPDX-License-Identifier: Apache-2.0
#include "server/placement/device_transfer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/schedule/copy_lane.h"
#include "server/device/device_set.h"
#include "server/job/job_support.h"

namespace intrawarp::server {
namespace {

// Two slabs, so that one lane fills the one while the other lane empties the other. Half a millisecond of a GPU's bus,
// so that downloads on the same lanes get between two slabs.
constexpr int64_t kSlabBytes = int64_t{8} << 20;

struct Slab {
  std::shared_ptr<PinnedBuffer> memory;
  int64_t begin = 0, bytes = 0;  // of what it holds
};

class Transfer final : public std::enable_shared_from_this<Transfer> {
 public:
  Transfer(DeviceContext& from, DeviceContext& to, ResidentBytes bytes, TransferredFn done)
      : from_(from), to_(to), bytes_(std::move(bytes)), total_(TotalBytes(bytes_.bytes)), done_(std::move(done)) {}

  void Start(Share share) {
    const size_t slabs = total_ > kSlabBytes ? 2 : 1;
    for (size_t i = 0; i < slabs; ++i) {
      absl::StatusOr<std::shared_ptr<PinnedBuffer>> slab =
          LeasePinned(to_, std::min(kSlabBytes, total_), /*owner=*/"", share);
      if (!slab.ok()) return done_(slab.status());
      slabs_.push_back({*std::move(slab)});
    }
    On(to_, [this](const ExecContext& ctx) { return Allocate(ctx); });
  }

 private:
  // What follows one another: allocation at first, then the filling and emptying of each slab.
  using Step = std::function<absl::Status(const ExecContext& ctx)>;

  // Runs a step on the lane of a device. A step that fails ends its chain.
  void On(DeviceContext& device, Step step) {
    const absl::Status submitted = device.copies.Submit(
        [self = shared_from_this(), &device, step = std::move(step)](const absl::StatusOr<const ExecContext*>& ctx) {
          const absl::Status status = ctx.ok() ? step(**ctx) : ctx.status();
          if (!status.ok()) self->EndChain(Stopping(device.device, status));
        });
    if (!submitted.ok()) EndChain(Stopping(device.device, submitted));
  }

  absl::Status Allocate(const ExecContext& ctx) {
    begun_ = std::chrono::steady_clock::now();
    for (const DevicePiece& piece : bytes_.bytes) {
      INTRAWARP_ASSIGN_OR_RETURN(Buffer copy, ctx.device().Allocate(static_cast<size_t>(piece.bytes), ctx.stream()));
      copies_.push_back(std::move(copy));
    }
    const size_t slabs = slabs_.size();
    chains_ = static_cast<int>(slabs);
    for (size_t i = 0; i < slabs; ++i) Next(slabs_[i]);  // the last one may clear slabs_
    return absl::OkStatus();
  }

  // Begins the next part through this slab, if there is one that no other slab has taken.
  void Next(Slab& slab) {
    slab.begin = taken_.fetch_add(kSlabBytes);
    slab.bytes = std::min(kSlabBytes, total_ - slab.begin);
    if (slab.bytes <= 0) return EndChain(absl::OkStatus());
    On(from_, [this, &slab](const ExecContext& ctx) { return Fill(slab, ctx); });
  }

  absl::Status Fill(Slab& slab, const ExecContext& ctx) {
    const absl::Status copied = CopyRange(ctx, bytes_.bytes, slab.begin, slab.bytes, slab.memory->as<void>());
    // Also after an error: nothing may write into the slab any more.
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    INTRAWARP_RETURN_IF_ERROR(copied);
    INTRAWARP_RETURN_IF_ERROR(synchronized);
    On(to_, [this, &slab](const ExecContext& on_to) { return Empty(slab, on_to); });
    return absl::OkStatus();
  }

  absl::Status Empty(Slab& slab, const ExecContext& ctx) {
    const absl::Status copied = CopySlab(slab, ctx);
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    INTRAWARP_RETURN_IF_ERROR(copied);
    INTRAWARP_RETURN_IF_ERROR(synchronized);
    Next(slab);
    return absl::OkStatus();
  }

  absl::Status CopySlab(const Slab& slab, const ExecContext& ctx) {
    int64_t begin = slab.begin, left = slab.bytes;
    const char* from = slab.memory->as<char>();
    for (const Buffer& copy : copies_) {
      const auto size = static_cast<int64_t>(copy.bytes());
      const int64_t part = std::min(size - begin, left);
      if (part > 0) {
        INTRAWARP_RETURN_IF_ERROR(
            ctx.device().Copy(copy.as<char>() + begin, from, static_cast<size_t>(part), ctx.stream()));
        from += part;
        left -= part;
      }
      begin = std::max<int64_t>(begin - size, 0);
    }
    return absl::OkStatus();
  }

  // The last chain to end tells the caller, so that nothing is under way then. Its first error counts; a chain that
  // ends in one lets the others take no more.
  void EndChain(const absl::Status& status) {
    if (!status.ok()) taken_ = total_;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      status_.Update(status);
      if (--chains_ > 0) return;
    }
    slabs_.clear();
    if (!status_.ok()) return done_(status_);
    to_.devices.copy_rate().Add(total_, std::chrono::steady_clock::now() - begun_);
    done_(std::move(copies_));
  }

  DeviceContext& from_;
  DeviceContext& to_;
  const ResidentBytes bytes_;
  const int64_t total_;
  const TransferredFn done_;
  std::chrono::steady_clock::time_point begun_;
  std::vector<Slab> slabs_;
  std::vector<Buffer> copies_;
  std::atomic<int64_t> taken_{0};
  std::mutex mutex_;
  int chains_ = 1;  // under way
  absl::Status status_;
};

}  // namespace

void StartTransfer(DeviceContext& from, DeviceContext& to, ResidentBytes bytes, Share share, TransferredFn done) {
  std::make_shared<Transfer>(from, to, std::move(bytes), std::move(done))->Start(share);
}

}  // namespace intrawarp::server
