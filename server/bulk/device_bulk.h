// SPDX-License-Identifier: Apache-2.0
// DeviceBulk: the bytes of a resident object, read from the device through a ring of a few pinned slabs, from which the
// transport sends them without another copy. The ring is leased before the first byte is sent, so that a download does
// not fail half way: where the client is slower than the device, the next slab waits for one that the transport has let
// go of. At most one slab at a time is asked of the copy lane.
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
#include "server/bulk/device_bytes.h"
#include "server/server_context.h"

namespace intrawarp::server {

// Where the bytes lie, and who keeps them there.
struct ResidentBytes {
  std::shared_ptr<const void> owner;
  DeviceBytes bytes;
};

class DeviceBulk final : public BulkStream, public std::enable_shared_from_this<DeviceBulk> {
 public:
  // Called on the lane's thread when bytes have come, or with the error that ends the stream. Answers whether to go on.
  using ChangedFn = std::function<bool(const absl::Status&)>;

  // The bytes from `offset` on. RESOURCE_EXHAUSTED (PINNED_MEMORY) when there is no room for the ring.
  static absl::StatusOr<std::shared_ptr<DeviceBulk>> Create(ServerContext& context, ResidentBytes source,
                                                            int64_t offset);
  // Once. UNAVAILABLE after the lane's shutdown.
  absl::Status Start(ChangedFn changed);

  std::optional<BulkPiece> Take(int64_t most) override;
  bool ended() const override;

 private:
  using Slab = std::shared_ptr<PinnedBuffer>;

  DeviceBulk(ServerContext& context, ResidentBytes source, int64_t offset);
  // Asks the lane for the next slab when one is free and none is asked for.
  absl::Status Fetch();
  void Copied(const absl::StatusOr<const ExecContext*>& ctx, const Slab& slab, int64_t begin, int64_t bytes);
  void GiveUp();
  // The bytes that `slab` holds; when the last user lets go, the slab is free again.
  BulkPiece MakePiece(const Slab& slab, int64_t begin, int64_t bytes);
  void Freed(Slab slab);

  ServerContext& context_;
  const ResidentBytes source_;
  const int64_t total_bytes_;
  ChangedFn changed_;

  mutable std::mutex mutex_;
  std::vector<Slab> free_;
  std::deque<BulkPiece> ready_;
  int64_t next_;   // the first byte that was not asked for
  int64_t taken_;  // the first byte that was not taken
  bool fetching_ = false;
  bool given_up_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_DEVICE_BULK_H_
