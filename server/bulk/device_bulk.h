// SPDX-License-Identifier: Apache-2.0
// DeviceBulk: bytes that come from the device, read through a ring of a few pinned slabs, from which the transport
// sends them without another copy. The ring is leased before the first byte is sent, so that a download does not fail
// half way: where the client is slower than the device, the next slab waits for one that the transport has let go of.
// At most one slab at a time is asked of the copy lane. A client that does not read holds the ring and no more.
#ifndef INTRAWARP_SERVER_BULK_DEVICE_BULK_H_
#define INTRAWARP_SERVER_BULK_DEVICE_BULK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "server/bulk/bulk_stream.h"
#include "server/bulk/slab_source.h"
#include "server/context/server_context.h"

namespace intrawarp::server {

class DeviceBulk final : public BulkStream, public std::enable_shared_from_this<DeviceBulk> {
 public:
  // Called on the lane's thread when bytes have come, or with the error that ends the stream. Answers whether to go on.
  using ChangedFn = std::function<bool(const absl::Status&)>;

  // What the ring claims of Resource::kPinned for a stream of `total_bytes` from `offset` on.
  static int64_t RingBytes(int64_t total_bytes, int64_t slab_bytes, int64_t offset);

  // The bytes from `offset` on, of a source on this device. `grant` holds RingBytes(), which the ring takes.
  static absl::StatusOr<std::shared_ptr<DeviceBulk>> Create(DeviceContext& context, std::shared_ptr<SlabSource> source,
                                                            int64_t offset, Grant& grant);
  // Once. UNAVAILABLE after the lane's shutdown.
  absl::Status Start(ChangedFn changed);

  std::optional<BulkPiece> Take(int64_t most) override;
  bool ended() const override;

 private:
  using Slab = std::shared_ptr<PinnedBuffer>;

  DeviceBulk(DeviceContext& context, std::shared_ptr<SlabSource> source, int64_t offset);
  // Asks the lane for the next slab when one is free and none is asked for.
  absl::Status Fetch();
  void Copied(const absl::StatusOr<const ExecContext*>& ctx, const Slab& slab, int64_t begin, int64_t bytes);
  void GiveUp();
  // The bytes that `slab` holds; when the last user lets go, the slab is free again.
  BulkPiece MakePiece(const Slab& slab, int64_t begin, int64_t bytes);
  void Freed(Slab slab);

  DeviceContext& context_;
  const std::shared_ptr<SlabSource> source_;
  ChangedFn changed_;

  mutable std::mutex mutex_;
  std::vector<Slab> free_;
  std::deque<BulkPiece> ready_;
  int64_t next_;   // where the first slab begins that was not asked for
  int64_t taken_;  // the first byte that was not taken
  bool fetching_ = false;
  bool given_up_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_DEVICE_BULK_H_
