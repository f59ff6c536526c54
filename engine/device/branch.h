// SPDX-License-Identifier: Apache-2.0
// Work beside other work of a recording (recording.h): two chains of small kernels that do not need each other take the
// time of the longer one.
#ifndef INTRAWARP_ENGINE_DEVICE_BRANCH_H_
#define INTRAWARP_ENGINE_DEVICE_BRANCH_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"

namespace intrawarp {

// Not thread-safe. Made before the recording that uses it and alive as long as that: without a graph its function runs
// at each Enqueue.
class Branch {
 public:
  // For a recording that is made next, on the stream that `ctx` has now.
  static absl::StatusOr<Branch> Create(const ExecContext& ctx);

  Branch(Branch&&) noexcept = default;
  Branch& operator=(Branch&&) = delete;

  // `ctx` is the context that a recording's function is called with. Work on the result's stream follows what was
  // enqueued on `ctx` before and runs beside what is enqueued on `ctx` afterwards, until Join, from where on work on
  // `ctx` follows both. Both take workspace from one arena, whose memory is not stream-ordered between them: what the
  // branch uses must not be handed out again before Join. Where nothing is recorded (on the CPU, or without a graph)
  // the result is `ctx`, and everything runs in the order of the calls.
  absl::StatusOr<ExecContext> Fork(const ExecContext& ctx) const;
  absl::Status Join(const ExecContext& ctx) const;

 private:
  Branch() = default;
  // CUDA only.
  std::optional<Stream> stream_;
  std::shared_ptr<void> forked_, joined_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_DEVICE_BRANCH_H_
