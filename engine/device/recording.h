// SPDX-License-Identifier: Apache-2.0
// Work that is enqueued again and again with the same arguments, at less cost each time: on CUDA a graph where the
// driver has resources for one, otherwise (and on the CPU) the function itself. Results are the same bits.
#ifndef INTRAWARP_ENGINE_DEVICE_RECORDING_H_
#define INTRAWARP_ENGINE_DEVICE_RECORDING_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"

namespace intrawarp {

// Not thread-safe. Outlives nothing that the work refers to: its function, device memory, the context's device.
class Recording {
 public:
  using WorkFn = std::function<absl::Status(const ExecContext& ctx)>;

  // `work` enqueues on the stream of the context that it is called with, and does not allocate or free device memory,
  // copy to or from the host, or wait. On CUDA it is called once, here, with the arena of `ctx` but a stream of its
  // own: on that of `ctx` other threads free memory, which would be recorded. Nothing runs until Enqueue; on the CPU it
  // is called by Enqueue. On CUDA the work runs in the partition of the stream of `ctx`, wherever it is enqueued.
  static absl::StatusOr<Recording> Make(const ExecContext& ctx, WorkFn work);

  Recording(Recording&&) noexcept = default;
  Recording& operator=(Recording&&) noexcept = default;

  // On the stream of `ctx`, as often as it is called. May be destroyed before the work is done.
  absl::Status Enqueue(const ExecContext& ctx) const;

 private:
  Recording() = default;
  WorkFn work_;
  std::shared_ptr<void> graph_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_RECORDING_H_
