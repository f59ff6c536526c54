// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduler.h"

#include "engine/base/status_macros.h"

namespace intrawarp {

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(Device& device, const SchedulingOptions& options,
                                                             SchedulerClock& clock) {
  std::vector<Stream> streams;
  for (int i = 0; i < kJobClasses; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(Stream stream, device.CreateStream());
    streams.push_back(std::move(stream));
  }
  return std::unique_ptr<Scheduler>(new Scheduler(device, options, clock, std::move(streams)));
}

Scheduler::Scheduler(Device& device, const SchedulingOptions& options, SchedulerClock& clock,
                     std::vector<Stream> streams)
    : device_(device), clock_(clock), policy_(options) {
  for (int i = 0; i < kJobClasses; ++i) {
    lanes_[i] = std::make_unique<Lane>(static_cast<JobClass>(i), std::move(streams[i]));
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->thread = std::thread([this, &lane] { LaneLoop(*lane); });
  clerk_ = std::thread([this] { ClerkLoop(); });
}

Scheduler::~Scheduler() { Shutdown(); }

absl::Status Scheduler::Submit(Job job) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return absl::UnavailableError("the server is shutting down");
  INTRAWARP_RETURN_IF_ERROR(policy_.Push(next_id_, job.job_class, job.deadline, clock_.Now()));
  if (job.deadline) clerk_changed_.notify_one();
  waiting_.emplace(next_id_++, std::move(job));
  Dispatch();
  return absl::OkStatus();
}

void Scheduler::Cancel(const void* owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SchedulingPolicy::JobId> ids;
  for (const auto& [id, job] : waiting_) {
    if (job.owner == owner) ids.push_back(id);
  }
  for (SchedulingPolicy::JobId id : ids) {
    policy_.Remove(id, clock_.Now());
    Refuse(id, absl::CancelledError("the job was cancelled while it waited"));
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->owner != owner || !policy_.started(lane->job_class)) continue;
    lane->cancelled = true;
    if (!HasTurn(*lane)) policy_.Abandon(lane->job_class, clock_.Now());
    lane->changed.notify_one();
  }
}

void Scheduler::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    while (!waiting_.empty()) {
      const SchedulingPolicy::JobId id = waiting_.begin()->first;
      policy_.Remove(id, clock_.Now());
      Refuse(id, absl::UnavailableError("the server is shutting down"));
    }
    for (const std::unique_ptr<Lane>& lane : lanes_) lane->changed.notify_one();
    clerk_changed_.notify_one();
  }
  std::call_once(joined_, [this] {
    for (const std::unique_ptr<Lane>& lane : lanes_) lane->thread.join();
    clerk_.join();
  });
}

int64_t Scheduler::waiting(JobClass job_class) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return policy_.waiting(job_class);
}

int64_t Scheduler::started(JobClass job_class) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return policy_.started(job_class) ? 1 : 0;
}

int64_t Scheduler::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t jobs = static_cast<int64_t>(waiting_.size()) + refusing_;
  for (const std::unique_ptr<Lane>& lane : lanes_) jobs += policy_.started(lane->job_class) ? 1 : 0;
  return jobs;
}

void Scheduler::LaneLoop(Lane& lane) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    lane.changed.wait(lock, [&] { return HasTurn(lane) || stopping_; });
    if (!HasTurn(lane)) return;
    lock.unlock();
    Run(lane);
    (void)device_.Synchronize(lane.stream.view());  // an error of the device shows in its health
    lane.job = Job();                               // what it holds is released before the job counts as ended
    lock.lock();
    policy_.Finish(lane.job_class, clock_.Now());
    Dispatch();
  }
}

void Scheduler::Run(Lane& lane) {
  absl::StatusOr<Buffer> workspace = device_.Allocate(Arena::Rounded(lane.job.workspace_bytes), lane.stream.view());
  if (!workspace.ok()) {
    lane.job.run(workspace.status());
    return;
  }
  Arena arena(*std::move(workspace));
  const ExecContext ctx(device_, lane.stream.view(), arena,
                        [this, &lane](const Progress& progress) { return Checkpoint(lane, progress); });
  lane.job.run(&ctx);
}

void Scheduler::ClerkLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    DeliverRefusals(lock);
    if (!refusals_.empty()) continue;
    if (stopping_) return;
    const std::optional<SchedulerClock::Time> deadline = policy_.NextDeadline();
    if (deadline) {
      clock_.WaitUntil(clerk_changed_, lock, *deadline);
    } else {
      clerk_changed_.wait(lock);
    }
    Dispatch();
  }
}

void Scheduler::DeliverRefusals(std::unique_lock<std::mutex>& lock) {
  std::vector<Refusal> refusals = std::exchange(refusals_, {});
  lock.unlock();
  const auto count = static_cast<int64_t>(refusals.size());
  for (const Refusal& refusal : refusals) refusal.job.run(refusal.why);
  refusals.clear();
  lock.lock();
  refusing_ -= count;
}

Decision Scheduler::Checkpoint(Lane& lane, const Progress& progress) {
  const auto ask = [&] {
    if (Cancelled(lane)) return Decision::kCancel;
    return lane.job.checkpoint ? lane.job.checkpoint(progress) : Decision::kContinue;
  };
  const Decision decision = ask();
  return decision == Decision::kContinue && GiveWay(lane) ? ask() : decision;
}

bool Scheduler::GiveWay(Lane& lane) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!policy_.ShouldYield(clock_.Now())) return false;
  lock.unlock();
  (void)device_.Synchronize(lane.stream.view());  // an error shows again in the job's next call
  lock.lock();
  if (lane.cancelled) return true;
  const SchedulerClock::Time begin = clock_.Now();
  policy_.Yield(begin);
  Dispatch();
  lane.changed.wait(lock, [&] { return HasTurn(lane) || lane.cancelled; });
  const SchedulerClock::Duration held = clock_.Now() - begin;
  lock.unlock();
  if (lane.job.on_held) lane.job.on_held(held);
  return true;
}

bool Scheduler::Cancelled(const Lane& lane) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return lane.cancelled;
}

void Scheduler::Dispatch() {
  const SchedulerClock::Time now = clock_.Now();
  for (SchedulingPolicy::JobId id : policy_.TakeExpired(now)) {
    Refuse(id, absl::DeadlineExceededError("the deadline passed while the job waited"));
  }
  if (policy_.computing()) return;
  const std::optional<SchedulingPolicy::Turn> turn = policy_.Grant(now);
  if (!turn) return;
  Lane& lane = *lanes_[static_cast<int>(turn->job_class)];
  if (waiting_.contains(turn->job)) Begin(lane, turn->job);
  lane.changed.notify_one();
}

void Scheduler::Begin(Lane& lane, SchedulingPolicy::JobId id) {
  lane.job = std::move(waiting_.extract(id).mapped());
  lane.owner = lane.job.owner;
  lane.cancelled = false;
}

void Scheduler::Refuse(SchedulingPolicy::JobId id, absl::Status why) {
  refusals_.push_back({std::move(waiting_.extract(id).mapped()), std::move(why)});
  ++refusing_;
  clerk_changed_.notify_one();
}

}  // namespace intrawarp
