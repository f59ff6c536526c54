// SPDX-License-Identifier: Apache-2.0
// Brings the counters of a plan to the host. Internal to engine/sparse/cuda.
#ifndef INTRAWARP_ENGINE_SPARSE_CUDA_COUNTER_MAILBOX_H_
#define INTRAWARP_ENGINE_SPARSE_CUDA_COUNTER_MAILBOX_H_

#include <optional>

#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/sparse/cuda/counters.h"

namespace intrawarp::cuda::spgemm {

// Page-locked memory that a kernel writes its counters to while the host polls it: waiting for the stream, or copying,
// takes some us longer. The destructor keeps the memory for the next mailbox, for as long as the process runs.
// Take and the destructor are thread-safe; a mailbox belongs to one thread.
class CounterMailbox {
 public:
  static absl::StatusOr<CounterMailbox> Take();
  CounterMailbox(CounterMailbox&& other) noexcept;
  CounterMailbox& operator=(CounterMailbox&&) = delete;
  ~CounterMailbox();

  HostCounters* get() const { return memory_; }

  // Waits until the work that writes the counters, which the stream already holds, has done so.
  absl::StatusOr<Counters> Wait(const ExecContext& ctx) const;
  // The same, but ends without counters as soon as there is a long row. The mailbox must then live until the work has
  // ended.
  absl::StatusOr<std::optional<Counters>> WaitUnlessLong(const ExecContext& ctx) const;

 private:
  CounterMailbox() = default;
  HostCounters* memory_ = nullptr;
};

}  // namespace intrawarp::cuda::spgemm

#endif  // INTRAWARP_ENGINE_SPARSE_CUDA_COUNTER_MAILBOX_H_
