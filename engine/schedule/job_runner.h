// SPDX-License-Identifier: Apache-2.0
// JobRunner: runs jobs on a device, one after the other, in the order of their submission, on a thread and a stream of
// its own. The queue is bounded. (Classes, deadlines and several streams take this class's place later.)
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_ENGINE_SCHEDULE_JOB_RUNNER_H_
#define INTRAWARP_ENGINE_SCHEDULE_JOB_RUNNER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"

namespace intrawarp {

struct Job {
  // Size of the arena that `run` finds in its context.
  int64_t workspace_bytes = 0;
  // What ExecContext::Checkpoint asks; may be empty.
  CheckpointFn checkpoint;
  // Called exactly once, on the runner's thread: with a context, or with the reason why there is none (no memory for
  // the workspace, device lost, shutdown). The context is valid during the call.
  std::function<void(const absl::StatusOr<const ExecContext*>& ctx)> run;
};

class JobRunner {
 public:
  // Starts the thread. `device` must outlive the runner.
  static absl::StatusOr<std::unique_ptr<JobRunner>> Create(Device& device, int max_queued);
  // As Shutdown.
  ~JobRunner();

  // RESOURCE_EXHAUSTED when the queue is full, UNAVAILABLE after Shutdown; then `run` is not called.
  absl::Status Submit(Job job);

  // Waits for the job that runs; those still queued get UNAVAILABLE. Idempotent. Not from a job, which it would wait
  // for.
  void Shutdown();

  // Waiting and running.
  int64_t pending() const;
  int max_queued() const { return max_queued_; }

 private:
  JobRunner(Device& device, Stream stream, int max_queued);
  void Loop();
  void Run(Job& job);

  Device& device_;
  Stream stream_;
  const int max_queued_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  bool running_ = false;
  bool stopping_ = false;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_JOB_RUNNER_H_
