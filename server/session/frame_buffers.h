// SPDX-License-Identifier: Apache-2.0
// FrameBuffers: pinned buffers of one size that a session leases once and hands out again and again, so that no other
// client can take them in between.
//
// Thread safety: safe for concurrent use; buffers may be given back on any thread, also after the object is gone.
#ifndef INTRAWARP_SERVER_SESSION_FRAME_BUFFERS_H_
#define INTRAWARP_SERVER_SESSION_FRAME_BUFFERS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/device/pinned_pool.h"
#include "server/context/server_context.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

class FrameBuffers {
 public:
  FrameBuffers();
  FrameBuffers(const FrameBuffers&) = delete;
  FrameBuffers& operator=(const FrameBuffers&) = delete;
  ~FrameBuffers() { Release(); }

  // Leases `count` buffers of `bytes` each, for which `grant` holds PinnedClaim(bytes); all of them or none. Errors of
  // LeasePinned. Once.
  absl::Status Lease(ServerContext& context, Grant& grant, int count, int64_t bytes);
  // A buffer of at least `bytes`, which comes back when the last copy of the pointer goes; null when there is none.
  std::shared_ptr<PinnedBuffer> Take(int64_t bytes);
  // Gives all buffers back to the pool, those in use as soon as their users let go.
  void Release();
  // What was leased.
  int64_t bytes() const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_FRAME_BUFFERS_H_
