// SPDX-License-Identifier: Apache-2.0
#include "server/device/device_transfer.h"

#include <algorithm>
#include <utility>

#include "engine/base/status_macros.h"
#include "server/rpc/job_support.h"

namespace intrawarp::server {
namespace {

// A millisecond or less of a GPU's bus, so that downloads on the same lanes get between two slabs.
constexpr int64_t kSlabBytes = int64_t{16} << 20;

class Transfer final : public std::enable_shared_from_this<Transfer> {
 public:
  Transfer(DeviceContext& from, DeviceContext& to, ResidentBytes bytes, TransferredFn done)
      : from_(from), to_(to), bytes_(std::move(bytes)), total_(TotalBytes(bytes_.bytes)), done_(std::move(done)) {}

  void Start(Share share) {
    absl::StatusOr<std::shared_ptr<PinnedBuffer>> slab = LeasePinned(to_, std::min(kSlabBytes, total_), share);
    if (!slab.ok()) return done_(slab.status());
    slab_ = *std::move(slab);
    On(to_, &Transfer::Allocate);
  }

 private:
  using Step = absl::Status (Transfer::*)(const ExecContext& ctx);

  // Runs a step on the lane of a device.
  void On(DeviceContext& device, Step step) {
    const absl::Status submitted =
        device.copies.Submit([self = shared_from_this(), &device, step](const absl::StatusOr<const ExecContext*>& ctx) {
          absl::Status status = ctx.status();
          if (status.ok()) status = (self.get()->*step)(**ctx);
          if (!status.ok()) self->done_(Stopping(device.device, status));
        });
    if (!submitted.ok()) done_(Stopping(device.device, submitted));
  }

  absl::Status Allocate(const ExecContext& ctx) {
    for (const DevicePiece& piece : bytes_.bytes) {
      INTRAWARP_ASSIGN_OR_RETURN(Buffer copy, ctx.device().Allocate(static_cast<size_t>(piece.bytes), ctx.stream()));
      copies_.push_back(std::move(copy));
    }
    Next();
    return absl::OkStatus();
  }

  void Next() {
    if (begin_ < total_) return On(from_, &Transfer::Fill);
    slab_.reset();
    done_(std::move(copies_));
  }

  absl::Status Fill(const ExecContext& ctx) {
    const absl::Status copied = CopyRange(ctx, bytes_.bytes, begin_, SlabBytes(), slab_->as<void>());
    // Also after an error: nothing may write into the slab any more.
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    INTRAWARP_RETURN_IF_ERROR(copied);
    INTRAWARP_RETURN_IF_ERROR(synchronized);
    On(to_, &Transfer::Empty);
    return absl::OkStatus();
  }

  absl::Status Empty(const ExecContext& ctx) {
    const absl::Status copied = CopySlab(ctx);
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    INTRAWARP_RETURN_IF_ERROR(copied);
    INTRAWARP_RETURN_IF_ERROR(synchronized);
    begin_ += SlabBytes();
    Next();
    return absl::OkStatus();
  }

  absl::Status CopySlab(const ExecContext& ctx) {
    int64_t begin = begin_, left = SlabBytes();
    const char* from = slab_->as<char>();
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

  int64_t SlabBytes() const { return std::min(kSlabBytes, total_ - begin_); }

  DeviceContext& from_;
  DeviceContext& to_;
  const ResidentBytes bytes_;
  const int64_t total_;
  const TransferredFn done_;
  std::shared_ptr<PinnedBuffer> slab_;
  std::vector<Buffer> copies_;
  int64_t begin_ = 0;
};

}  // namespace

void StartTransfer(DeviceContext& from, DeviceContext& to, ResidentBytes bytes, Share share, TransferredFn done) {
  std::make_shared<Transfer>(from, to, std::move(bytes), std::move(done))->Start(share);
}

}  // namespace intrawarp::server
