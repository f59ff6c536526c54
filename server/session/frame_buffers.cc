// SPDX-License-Identifier: Apache-2.0
#include "server/session/frame_buffers.h"

#include <mutex>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/job/job_support.h"

namespace intrawarp::server {

struct FrameBuffers::Shared {
  std::mutex mutex;
  std::vector<std::shared_ptr<PinnedBuffer>> free;
  int64_t each_bytes = 0;
  int64_t all_bytes = 0;
  bool released = false;

  void GiveBack(std::shared_ptr<PinnedBuffer> lease) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!released) free.push_back(std::move(lease));
  }
};

FrameBuffers::FrameBuffers() : shared_(std::make_shared<Shared>()) {}

absl::Status FrameBuffers::Lease(ServerContext& context, Grant& grant, int count, int64_t bytes) {
  std::vector<std::shared_ptr<PinnedBuffer>> leases;
  for (int i = 0; i < count; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<PinnedBuffer> lease, LeasePinned(context, grant, bytes));
    leases.push_back(std::move(lease));
  }
  std::lock_guard<std::mutex> lock(shared_->mutex);
  if (shared_->released) return absl::CancelledError("the session was closed");
  shared_->free = std::move(leases);
  shared_->each_bytes = bytes;
  shared_->all_bytes = count * bytes;
  return absl::OkStatus();
}

std::shared_ptr<PinnedBuffer> FrameBuffers::Take(int64_t bytes) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  if (shared_->free.empty() || bytes > shared_->each_bytes) return nullptr;
  std::shared_ptr<PinnedBuffer> lease = std::move(shared_->free.back());
  shared_->free.pop_back();
  PinnedBuffer* const buffer = lease.get();
  return std::shared_ptr<PinnedBuffer>(buffer, [shared = shared_, lease = std::move(lease)](PinnedBuffer*) mutable {
    shared->GiveBack(std::move(lease));
  });
}

void FrameBuffers::Release() {
  std::vector<std::shared_ptr<PinnedBuffer>> leases;  // given back after the lock
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->released = true;
  shared_->all_bytes = 0;
  leases.swap(shared_->free);
}

int64_t FrameBuffers::bytes() const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->all_bytes;
}

}  // namespace intrawarp::server
