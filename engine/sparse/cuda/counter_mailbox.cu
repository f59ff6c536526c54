// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/cuda_device.h"
#include "engine/sparse/cuda/counter_mailbox.h"

namespace intrawarp::cuda::spgemm {
namespace {

struct FreeList {
  std::mutex mutex;
  std::vector<HostCounters*> free;
};

FreeList& Kept() {
  static FreeList* const list = new FreeList;
  return *list;
}

}  // namespace

absl::StatusOr<CounterMailbox> CounterMailbox::Take() {
  CounterMailbox taken;
  {
    const std::lock_guard lock(Kept().mutex);
    if (!Kept().free.empty()) {
      taken.memory_ = Kept().free.back();
      Kept().free.pop_back();
    }
  }
  if (taken.memory_ == nullptr) {
    void* memory = nullptr;
    INTRAWARP_CUDA_RETURN_IF_ERROR(cudaHostAlloc(&memory, sizeof(HostCounters), cudaHostAllocPortable));
    taken.memory_ = static_cast<HostCounters*>(memory);
  }
  taken.memory_->ready = 0;
  return taken;
}

CounterMailbox::CounterMailbox(CounterMailbox&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}

CounterMailbox::~CounterMailbox() {
  if (memory_ == nullptr) return;
  const std::lock_guard lock(Kept().mutex);
  Kept().free.push_back(memory_);
}

absl::StatusOr<Counters> CounterMailbox::Wait(const ExecContext& ctx) const {
  constexpr int kLooks = 1000;  // before the stream is asked whether it failed
  std::atomic_ref<unsigned> ready(memory_->ready);
  for (int looks = 1; ready.load(std::memory_order_acquire) == 0; ++looks) {
    if (looks % kLooks != 0 || cudaStreamQuery(CudaStream(ctx)) == cudaErrorNotReady) continue;
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
    break;
  }
  return memory_->counters;
}

}  // namespace intrawarp::cuda::spgemm
