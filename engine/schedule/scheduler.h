// SPDX-License-Identifier: Apache-2.0
// Scheduler: runs the jobs of one device by the rules of SchedulingPolicy. Each class has a lane: a thread with a
// stream of its own. One job computes at a time; a job that gives way is held inside ExecContext::Checkpoint, on its
// lane and with its workspace, while a better one computes on another lane. So a frame can always start.
//
// Memory. A job's workspace is allocated when the job starts and freed when the job ends. A class has at most one
// started job, so workspaces take no more than the largest one of each class, added up.
//
// Order on a CUDA device. Lanes share no stream, so nothing orders the work of two jobs but the host:
// - A job is held, and a job ends, only after its stream has been drained. Work of two jobs never overlaps, but for
//   the unwinding of a cancelled job.
// - Memory that a job makes for others (a volume, a transform) is complete before they can find it, because the job
//   drains its stream before it stores the object.
// - Memory is freed in the order of the stream on which it was allocated, whichever job frees it. A job that uses an
//   object holds a reference to it in `run`, which is destroyed after the job's stream has been drained; so no memory
//   is freed under a kernel of another lane. Streams live as long as the scheduler, which outlives the objects.
// - Graphs are captured on streams of their own in relaxed mode (Recording), so other lanes may allocate and free
//   meanwhile. A graph refers to its job's workspace, which stays where it is while the job is held.
//
// On the CPU device a checkpoint inside a parallel loop (the sparse product has one) holds the thread of the job alone:
// the loop's other threads finish the loop.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_ENGINE_SCHEDULE_SCHEDULER_H_
#define INTRAWARP_ENGINE_SCHEDULE_SCHEDULER_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/schedule/clock.h"
#include "engine/schedule/scheduling_policy.h"

namespace intrawarp {

struct Job {
  JobClass job_class = JobClass::kInteractive;
  // A job that still waits at its deadline never runs. A started job is not ended by it.
  std::optional<SchedulerClock::Time> deadline;
  // What Scheduler::Cancel names; may be null, and shared by several jobs.
  const void* owner = nullptr;
  // Size of the arena that `run` finds in its context.
  int64_t workspace_bytes = 0;
  // What ExecContext::Checkpoint asks, before it holds the job and again after; may be empty.
  CheckpointFn checkpoint;
  // Called by ExecContext::Checkpoint after the job was held for so long; may be empty.
  std::function<void(SchedulerClock::Duration)> on_held;
  // Called exactly once, on a thread of the scheduler's: with a context, valid during the call, or with the reason why
  // there is none (DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE at shutdown, no memory for the workspace). What has no
  // context is called at once, not when its turn comes.
  std::function<void(const absl::StatusOr<const ExecContext*>& ctx)> run;
};

class Scheduler {
 public:
  // Starts the threads. `device` and `clock` must outlive the scheduler.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(Device& device, const SchedulingOptions& options,
                                                           SchedulerClock& clock = SchedulerClock::Steady());
  // As Shutdown.
  ~Scheduler();

  // RESOURCE_EXHAUSTED when the queue of the job's class is full, UNAVAILABLE after Shutdown; then `run` is not called.
  absl::Status Submit(Job job);

  // Jobs of the owner that wait get CANCELLED and give up their places. Its started jobs are told to cancel at their
  // next checkpoint; one that is held there goes on at once, without a turn, to unwind. `owner` is not null.
  void Cancel(const void* owner);

  // Waits for the jobs that have started; those that wait get UNAVAILABLE. Idempotent. Not from a job, which it would
  // wait for.
  void Shutdown();

  // Jobs that wait, that have started (they compute or are held), and both with those whose `run` is being told why
  // they do not run.
  int64_t waiting(JobClass job_class) const;
  int64_t started(JobClass job_class) const;
  int64_t pending() const;
  // Jobs of a class that may wait.
  int capacity(JobClass job_class) const { return policy_.capacity(job_class); }

 private:
  struct Lane {
    Lane(JobClass job_class, Stream stream) : job_class(job_class), stream(std::move(stream)) {}
    const JobClass job_class;
    const Stream stream;
    std::condition_variable changed;
    Job job;                      // the started one; set with the mutex held, then the thread's
    const void* owner = nullptr;  // of the started job
    bool cancelled = false;       // the started job
    std::thread thread;
  };
  struct Refusal {
    Job job;
    absl::Status why;
  };

  Scheduler(Device& device, const SchedulingOptions& options, SchedulerClock& clock, std::vector<Stream> streams);
  void LaneLoop(Lane& lane);
  void Run(Lane& lane);
  void ClerkLoop();
  Decision Checkpoint(Lane& lane, const Progress& progress);
  // Holds the job while it must give way; false when it need not.
  bool GiveWay(Lane& lane);
  bool Cancelled(const Lane& lane) const;
  // All with the mutex held.
  bool HasTurn(const Lane& lane) const { return policy_.computing() == lane.job_class; }
  void Dispatch();
  void Begin(Lane& lane, SchedulingPolicy::JobId id);
  void Refuse(SchedulingPolicy::JobId id, absl::Status why);
  void DeliverRefusals(std::unique_lock<std::mutex>& lock);

  Device& device_;
  SchedulerClock& clock_;
  mutable std::mutex mutex_;
  SchedulingPolicy policy_;
  std::map<SchedulingPolicy::JobId, Job> waiting_;
  SchedulingPolicy::JobId next_id_ = 0;
  std::vector<Refusal> refusals_;
  int64_t refusing_ = 0;  // refusals, also while they are delivered
  bool stopping_ = false;
  std::array<std::unique_ptr<Lane>, kJobClasses> lanes_;
  std::condition_variable clerk_changed_;
  // Tells jobs why they do not run.
  std::thread clerk_;
  std::once_flag joined_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_SCHEDULER_H_
