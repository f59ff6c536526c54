// SPDX-License-Identifier: Apache-2.0
// Scheduler: runs the jobs of one device by the rules of SchedulingPolicy. A lane is a thread with a stream of its own,
// and takes jobs of one class. A job that gives way is held inside ExecContext::Checkpoint, on its lane and with its
// workspace, while a better one computes on another lane.
//
// Memory. A job's workspace is allocated when the job starts and freed when the job ends. Workspaces take no more than
// the largest one of each class times the lanes of the class, added up; an owner's take no more than the largest ones
// of twice as many jobs as compute at once (SchedulingPolicy: flows).
//
// Streams. Lanes of frames have a stream in Partition::kFrames, those of batch in kBatch. On a partitioned device,
// while no frames are open (SetFramesOpen), batch and interactive jobs have the whole device instead: an interactive
// job keeps the stream that it starts with, since registrations keep graphs recorded for its partition; a batch job
// changes over at its next checkpoint. On a device without partitions interactive jobs have the whole device for ever.
//
// Order on a CUDA device. Lanes share no stream, so nothing orders the work of two jobs but the host:
// - A job is held, changes its stream, and ends, only after its stream has been drained.
// - Memory that a job makes for others (a volume, a transform) is complete before they can find it, because the job
//   drains its stream before it stores the object.
// - Memory is freed in the order of the stream on which it was allocated, whichever job frees it. A job that uses an
//   object holds a reference to it in `run`, which is destroyed after the job's stream has been drained; so no memory
//   is freed under a kernel of another lane. A batch job frees what it made before a checkpoint only once it has
//   drained its stream, which may be another one since. Streams live as long as the scheduler, which outlives the
//   objects.
// - Graphs are captured on streams of their own in relaxed mode (Recording), so other lanes may allocate and free
//   meanwhile. A graph refers to its job's workspace, which stays where it is while the job is held.
//
// On the CPU device every parallel loop of a job is a row of checkpoints as well (LoopPause), and so is every loop on
// the host of an interactive job of a GPU: the job checks in and may be held there, but is not told to stop. A
// checkpoint inside a parallel loop (the sparse product has one) holds the thread of the job only: the loop's other
// threads finish the loop.
//
// Predictions. A job that names its kind of work gets a prediction from the costs of those that ran before it. Jobs
// that came before anything was known of their kind and size are admitted without one; they are judged once it is
// known, and those whose deadline cannot be met end then. A job that ended early after more than its prediction is
// learnt as that long. While its class has no other job, a job that its own cost forbids runs all the same if the mean
// is in time, and otherwise now and then (CostModel::MayProbe), so that a prediction that has become wrong corrects
// itself.
//
// Patience. A job without a deadline takes the place of one whose deadline is kPatience after its arrival, so that jobs
// with deadlines do not keep it out for ever.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_ENGINE_SCHEDULE_SCHEDULER_H_
#define INTRAWARP_ENGINE_SCHEDULE_SCHEDULER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/schedule/clock.h"
#include "engine/schedule/cost_model.h"
#include "engine/schedule/job_queue.h"
#include "engine/schedule/scheduling_policy.h"

namespace intrawarp {

struct Job {
  JobClass job_class = JobClass::kInteractive;
  // A job that still waits at its deadline, or that has less time left than jobs of its kind take, never runs (frames,
  // which may be wanted late, wait until the deadline). A started job is not ended by it.
  std::optional<SchedulerClock::Time> deadline;
  // How long the job will compute. Unset: the prediction for `cost_kind` and `cost_size`, if there is one.
  std::optional<SchedulerClock::Duration> predicted;
  // The job's cost depends on these (CostModel). Empty: nothing is learnt from the job.
  std::string cost_kind;
  int64_t cost_size = 0;
  // Asked after `run`: whether the job did all of its work, so that its cost can be learnt; empty: yes.
  std::function<bool()> completed;
  // The owner that Scheduler::Cancel names; may be null, and shared by several jobs.
  const void* owner = nullptr;
  // The owner whose turn the job's time counts as (SchedulingPolicy: turns); empty: nobody's.
  std::string party = {};
  // Short work, which has turns and lanes of its own: an upload, a warp, points.
  bool is_short = false;
  // Size of the arena that `run` finds in its context.
  int64_t workspace_bytes = 0;
  // The question that ExecContext::Checkpoint asks, before it holds the job and again after; may be empty.
  CheckpointFn checkpoint;
  // Called by ExecContext::Checkpoint after the job was held for so long; may be empty.
  std::function<void(SchedulerClock::Duration)> on_held;
  // Called exactly once, on a thread of the scheduler's: with a context, valid during the call, or with the reason why
  // there is none (DEADLINE_EXCEEDED, with IsUnreachable while the deadline lies ahead; CANCELLED, UNAVAILABLE at
  // shutdown, no memory for the workspace).
  // A job without a context is called at once, without waiting for its turn.
  std::function<void(const absl::StatusOr<const ExecContext*>& ctx)> run;
};

// A started job, for whoever watches that jobs come to their checkpoints.
struct RunningJob {
  JobClass job_class = JobClass::kInteractive;
  SchedulerClock::Duration since_start{0};
  // Since its last checkpoint, its start, or the end of its being held, whichever came last; 0 while it is held.
  SchedulerClock::Duration since_checkpoint{0};
  bool held = false;
  // One more with each checkpoint, start and end of being held, in all jobs of the lane; names the lane, too.
  int lane = 0;
  int64_t progress = 0;
};

// The lanes and slots that suit a device: one job at a time on the CPU, whose operators use every core; several small
// ones on a GPU. Either has lanes for the held jobs of several owners.
SchedulingOptions DefaultScheduling(const Device& device);

class Scheduler final : public JobQueue {
 public:
  static constexpr SchedulerClock::Duration kPatience = std::chrono::seconds(30);

  // Starts the threads. `device` and `clock` must outlive the scheduler. INVALID_ARGUMENT for a class without a lane,
  // no slot, or `partitioned` on a device that is not.
  static absl::StatusOr<std::unique_ptr<Scheduler>> Create(Device& device, const SchedulingOptions& options,
                                                           SchedulerClock& clock = SchedulerClock::Steady());
  // Does the same as Shutdown.
  ~Scheduler() override;

  absl::Status Submit(Job job) override;
  void Cancel(const void* owner) override;

  // Whether sessions want frames computed (see Streams above): the other classes then have fewer jobs at once
  // (SchedulingOptions.beside_frames). Jobs that waited for a place start when frames are no longer open. At first
  // frames are not open.
  void SetFramesOpen(bool open);

  // Waits for the jobs that have started; those that wait get UNAVAILABLE. Idempotent. Not from a job, which it would
  // wait for.
  void Shutdown();

  int64_t waiting(JobClass job_class) const override;
  int64_t started(JobClass job_class) const override;
  int64_t pending() const override;
  int capacity(JobClass job_class) const override { return policy_.capacity(job_class); }
  std::vector<RunningJob> running() const;
  // Waits while a frame computes or waits, `most` at most.
  void AwaitFrames(SchedulerClock::Duration most);
  SchedulerClock::Duration PredictedWait(JobClass job_class) override;
  CostModel& costs() override { return costs_; }

 private:
  using Time = SchedulerClock::Time;
  using Duration = SchedulerClock::Duration;
  struct LaneStreams {
    Stream own;                   // in the partition of the class
    std::optional<Stream> whole;  // where the class may have the whole device
  };
  struct Lane {
    Lane(JobClass job_class, LaneStreams streams)
        : job_class(job_class), streams(std::move(streams)), stream(this->streams.own.view()) {}
    const JobClass job_class;
    const LaneStreams streams;
    // The one that the job uses; changed by the job's thread at checkpoints.
    StreamView stream;
    bool on_whole = false;
    std::condition_variable changed;
    Job job;  // the started one; set with the mutex held, then the thread's
    std::optional<SchedulingPolicy::JobId> id;
    const void* owner = nullptr;
    bool has_turn = false;
    bool cancelled = false;
    JobOutcome outcome = JobOutcome::kDone;
    Time submitted, started, checkpoint;
    int64_t progress = 0;
    Duration held{0};
    std::thread thread;
  };
  struct Waiting {
    Job job;
    SchedulingPolicy::Request request;
    Time submitted;
  };
  // Whom the clerk tells what; a job that was refused at its submission has only a record.
  struct Refusal {
    Job job;
    absl::Status why;
    JobRecord record;
  };

  Scheduler(Device& device, const SchedulingOptions& options, SchedulerClock& clock, std::vector<LaneStreams> streams);
  static absl::StatusOr<std::vector<LaneStreams>> CreateStreams(Device& device, const SchedulingOptions& options);
  void LaneLoop(Lane& lane);
  void Run(Lane& lane);
  void End(Lane& lane, std::unique_lock<std::mutex>& lock);
  void Learn(const Job& job, const JobRecord& record, bool crowded);
  void ClerkLoop();
  Decision Checkpoint(Lane& lane, const Progress& progress);
  Decision Ask(Lane& lane, const Progress& progress);
  // With the mutex held.
  void CheckIn(Lane& lane);
  // For a cancelled job that computes. With the mutex held.
  void GiveUpTurn(Lane& lane);
  // Between two slices of a parallel loop of the CPU device.
  void PauseLoop(Lane& lane);
  // Holds the job while it must give way; false when it need not.
  bool GiveWay(Lane& lane);
  void Hold(Lane& lane, std::unique_lock<std::mutex>& lock);
  // Gives the mutex up meanwhile.
  void Drain(Lane& lane, std::unique_lock<std::mutex>& lock);
  // The request of a job that is submitted now.
  SchedulingPolicy::Request RequestOf(const Job& job, Time now);
  void AddPrediction(const Job& job, SchedulingPolicy::Request* request);
  // All with the mutex held.
  // Admits the job, if need be as a probe of its cost.
  absl::Status Push(const Job& job, SchedulingPolicy::Request* request, Time now);
  // Judges the waiting jobs of the kind that have no prediction.
  void JudgeWaiting(const std::string& cost_kind, Time now);
  absl::Status WhyExpired(SchedulingPolicy::JobId id, Time now);
  bool MustChangeStream(const Lane& lane) const;
  void ChooseStream(Lane& lane);
  void Dispatch();
  Lane& LaneFor(const SchedulingPolicy::Turn& turn);
  void Begin(Lane& lane, SchedulingPolicy::JobId id);
  void Refuse(SchedulingPolicy::JobId id, absl::Status why, JobOutcome outcome);
  void RecordRefused(const Job& job);
  void DeliverRefusals(std::unique_lock<std::mutex>& lock);
  JobRecord RecordOf(const Job& job, JobOutcome outcome, Time submitted) const;
  void Observe(const JobRecord& record) const;

  Device& device_;
  SchedulerClock& clock_;
  const JobObserver on_job_;
  CostModel costs_;
  mutable std::mutex mutex_;
  SchedulingPolicy policy_;
  std::map<SchedulingPolicy::JobId, Waiting> waiting_;
  SchedulingPolicy::JobId next_id_ = 0;
  std::vector<Refusal> refusals_;
  int64_t telling_ = 0;  // ends of jobs that are not told yet
  bool stopping_ = false;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::condition_variable clerk_changed_;
  std::condition_variable frames_changed_;  // a frame has ended or goes
  // Tells jobs why they do not run.
  std::thread clerk_;
  std::once_flag joined_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_SCHEDULER_H_
