// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <mutex>
#include <optional>
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

// Waits until one of the words, which the work in the stream writes, is not 0.
absl::Status WaitFor(const ExecContext& ctx, unsigned& word, unsigned& other_word) {
  constexpr int kLooks = 1000;  // before the stream is asked whether it failed
  const std::atomic_ref<unsigned> one(word), other(other_word);
  for (int looks = 1;; ++looks) {
    if (one.load(std::memory_order_acquire) != 0 || other.load(std::memory_order_acquire) != 0) break;
    if (looks % kLooks != 0 || cudaStreamQuery(CudaStream(ctx)) == cudaErrorNotReady) continue;
    return ctx.device().Synchronize(ctx.stream());
  }
  return absl::OkStatus();
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
  taken.memory_->long_rows = 0;
  return taken;
}

CounterMailbox::CounterMailbox(CounterMailbox&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}

CounterMailbox::~CounterMailbox() {
  if (memory_ == nullptr) return;
  const std::lock_guard lock(Kept().mutex);
  Kept().free.push_back(memory_);
}

absl::StatusOr<Counters> CounterMailbox::Wait(const ExecContext& ctx) const {
  INTRAWARP_RETURN_IF_ERROR(WaitFor(ctx, memory_->ready, memory_->ready));
  return memory_->counters;
}

absl::StatusOr<std::optional<Counters>> CounterMailbox::WaitUnlessLong(const ExecContext& ctx) const {
  INTRAWARP_RETURN_IF_ERROR(WaitFor(ctx, memory_->ready, memory_->long_rows));
  if (std::atomic_ref<unsigned>(memory_->long_rows).load(std::memory_order_acquire) != 0) return std::nullopt;
  return memory_->counters;
}

}  // namespace intrawarp::cuda::spgemm
