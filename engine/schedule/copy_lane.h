// SPDX-License-Identifier: Apache-2.0
// CopyLane: copies between host and device memory, one after the other in the order of their submission, on a thread
// and a stream of their own, so that they wait neither for jobs nor in the jobs' queue.
//
// On the CPU device, whose copies and jobs compute on the same cores, the lane calls `give_way` before each copy and
// between the slices of a copy's parallel loops (LoopPause). It may wait there.
//
// A lane never refuses a copy for want of room: whoever submits has at most one copy waiting, so that their number is
// that of the submitters. A copy leaves nothing in the stream that still runs: it synchronises before it returns.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_ENGINE_SCHEDULE_COPY_LANE_H_
#define INTRAWARP_ENGINE_SCHEDULE_COPY_LANE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"

namespace intrawarp {

class CopyLane {
 public:
  // Called exactly once, on the lane's thread: with a context whose arena is empty, or, after Shutdown, UNAVAILABLE.
  using Copy = std::function<void(const absl::StatusOr<const ExecContext*>& ctx)>;

  // Starts the thread. `device` must outlive the lane, and the lane what copies allocate on its stream. `give_way` may
  // be empty.
  static absl::StatusOr<std::unique_ptr<CopyLane>> Create(Device& device, std::function<void()> give_way = nullptr);
  // As Shutdown.
  ~CopyLane();

  // Does not wait. UNAVAILABLE after Shutdown; then `copy` is not called.
  absl::Status Submit(Copy copy);

  // Waits for the copy that runs; those still waiting get UNAVAILABLE. Idempotent. Not from a copy.
  void Shutdown();

  // Waiting and running.
  int64_t pending() const;

 private:
  CopyLane(Device& device, Stream stream, std::function<void()> give_way);
  void Loop();

  Device& device_;
  Stream stream_;
  const std::function<void()> give_way_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> waiting_;
  bool running_ = false;
  bool stopping_ = false;
  std::once_flag joined_;
  std::promise<void> ready_;  // the thread is about to take copies
  std::thread thread_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_COPY_LANE_H_
