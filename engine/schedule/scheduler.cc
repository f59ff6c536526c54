// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/loop_pause.h"
#include "engine/schedule/retry_after.h"
#include "engine/schedule/unreachable.h"

namespace intrawarp {
namespace {

absl::Status Validate(const Device& device, const SchedulingOptions& options) {
  for (int i = 0; i < kJobClasses; ++i) {
    if (options.lanes[i] - options.short_lanes[i] >= 1) continue;
    return absl::InvalidArgumentError(absl::StrCat("class ", kJobClassNames[i], " needs a lane"));
  }
  if (options.slots < 1) return absl::InvalidArgumentError("jobs need a slot to compute in");
  if (options.partitioned && !device.partitioned()) {
    return absl::InvalidArgumentError(absl::StrCat(device.name(), " has no partitions"));
  }
  return absl::OkStatus();
}

Partition PartitionOf(JobClass job_class, bool partitioned) {
  if (job_class == JobClass::kBatch) return Partition::kBatch;
  return job_class == JobClass::kFrame || partitioned ? Partition::kFrames : Partition::kWhole;
}

// A probe that fails wastes the time until its deadline: a tenth of all time at most.
constexpr SchedulerClock::Duration kProbeInterval = std::chrono::seconds(1);
constexpr int kProbeTimes = 10;

absl::Status ShuttingDown() { return absl::UnavailableError("the server is shutting down"); }

// Whether the workspaces of four large registrations of one owner take a small part of the device's memory.
bool HasRoomForFour(const Device& device) {
  constexpr int64_t kLargeMemory = int64_t{32} << 30;
  const absl::StatusOr<DeviceMemory> memory = device.memory();
  return memory.ok() && memory->total_bytes >= kLargeMemory;
}

}  // namespace

SchedulingOptions DefaultScheduling(const Device& device) {
  SchedulingOptions options;
  options.lanes = {1, 10, 4};
  options.short_lanes = {0, 2, 0};
  options.at_once = {1, 1, 1};
  if (device.kind() != DeviceKind::kCuda) return options;
  options.at_once = {4, HasRoomForFour(device) ? 4 : 2, 1};
  // Four registrations beside frames make one of a hundred frames half as long again (docs/evidence/performance.md).
  options.beside_frames = {0, 2, 0};
  // Room for the long jobs of four owners (Flows in scheduling_policy.h).
  options.lanes = {4, 4 * options.at_once[1] + options.short_lanes[1], 4};
  options.slots = 4;
  options.partitioned = device.partitioned();
  options.owner_turn = std::chrono::milliseconds(10);
  options.owner_credit = std::chrono::seconds(1);
  return options;
}

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(Device& device, const SchedulingOptions& options,
                                                             SchedulerClock& clock) {
  INTRAWARP_RETURN_IF_ERROR(Validate(device, options));
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<LaneStreams> streams, CreateStreams(device, options));
  return std::unique_ptr<Scheduler>(new Scheduler(device, options, clock, std::move(streams)));
}

absl::StatusOr<std::vector<Scheduler::LaneStreams>> Scheduler::CreateStreams(Device& device,
                                                                             const SchedulingOptions& options) {
  std::vector<LaneStreams> streams;
  for (int i = 0; i < kJobClasses; ++i) {
    const auto job_class = static_cast<JobClass>(i);
    for (int lane = 0; lane < options.lanes[i]; ++lane) {
      INTRAWARP_ASSIGN_OR_RETURN(Stream own, device.CreateStream(PartitionOf(job_class, options.partitioned)));
      std::optional<Stream> whole;
      if (options.partitioned && job_class != JobClass::kFrame) {
        INTRAWARP_ASSIGN_OR_RETURN(Stream stream, device.CreateStream(Partition::kWhole));
        whole.emplace(std::move(stream));
      }
      streams.push_back({std::move(own), std::move(whole)});
    }
  }
  return streams;
}

Scheduler::Scheduler(Device& device, const SchedulingOptions& options, SchedulerClock& clock,
                     std::vector<LaneStreams> streams)
    : device_(device), clock_(clock), on_job_(options.on_job), policy_(options) {
  auto next = streams.begin();
  for (int i = 0; i < kJobClasses; ++i) {
    for (int lane = 0; lane < options.lanes[i]; ++lane) {
      lanes_.push_back(std::make_unique<Lane>(static_cast<JobClass>(i), std::move(*next++)));
    }
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) lane->thread = std::thread([this, &lane] { LaneLoop(*lane); });
  clerk_ = std::thread([this] { ClerkLoop(); });
}

Scheduler::~Scheduler() { Shutdown(); }

absl::Status Scheduler::Submit(Job job) {
  SchedulingPolicy::Request request = RequestOf(job, clock_.Now());
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return ShuttingDown();
  const Time now = clock_.Now();
  const absl::Status pushed = Push(job, &request, now);
  job.predicted = request.predicted;
  if (!pushed.ok()) {
    RecordRefused(job);
    return pushed;
  }
  if (job.deadline) clerk_changed_.notify_one();
  waiting_.emplace(next_id_++, Waiting{std::move(job), request, now});
  Dispatch();
  return absl::OkStatus();
}

SchedulingPolicy::Request Scheduler::RequestOf(const Job& job, Time now) {
  SchedulingPolicy::Request request;
  request.job_class = job.job_class;
  request.deadline = job.deadline;
  request.predicted = job.predicted;
  request.owner = job.party;
  request.is_short = job.is_short;
  if (!job.deadline) request.due = now + kPatience;
  if (!job.predicted) AddPrediction(job, &request);
  return request;
}

void Scheduler::AddPrediction(const Job& job, SchedulingPolicy::Request* request) {
  if (job.cost_kind.empty()) return;
  const std::optional<CostModel::Prediction> costs = costs_.Predict(job.cost_kind, job.cost_size);
  if (!costs || !costs->sure) return;
  request->predicted = costs->alone;
  request->crowded = costs->crowded;
  if (job.job_class != JobClass::kFrame) request->expected = costs->expected;
}

absl::Status Scheduler::Push(const Job& job, SchedulingPolicy::Request* request, Time now) {
  const absl::Status pushed = policy_.Push(next_id_, *request, now);
  if (!IsUnreachable(pushed) || job.cost_kind.empty() || job.predicted) return pushed;
  const Duration left = *job.deadline - now;
  const bool is_frame = job.job_class == JobClass::kFrame;
  const bool is_alone = policy_.waiting(job.job_class) + policy_.started(job.job_class) == 0;
  if (!(is_alone || is_frame) || left <= Duration(0)) return pushed;
  if (!is_frame && *request->predicted <= left) return pushed;
  const Duration wait = policy_.PredictedWait(*request, now);
  const Duration interval = std::max(kProbeInterval, std::min(left, Duration(std::chrono::hours(1))) * kProbeTimes);
  const std::optional<CostModel::Prediction> costs = costs_.Predict(job.cost_kind, job.cost_size);
  const bool is_likely = costs && wait + costs->expected <= left;
  if (!is_likely && !costs_.MayProbe(job.cost_kind, job.cost_size, now, interval)) return pushed;
  // Nobody waits for its answer after the deadline, so it takes no longer than that.
  request->predicted = request->crowded = std::max(left - wait, Duration(0));
  request->expected.reset();
  return policy_.Push(next_id_, *request, now);
}

void Scheduler::JudgeWaiting(const std::string& cost_kind, Time now) {
  std::vector<SchedulingPolicy::JobId> ids;
  for (const auto& [id, waiting] : waiting_) {
    if (!waiting.request.predicted && waiting.job.cost_kind == cost_kind) ids.push_back(id);
  }
  for (SchedulingPolicy::JobId id : ids) {
    Waiting& waiting = waiting_.at(id);
    AddPrediction(waiting.job, &waiting.request);
    if (!waiting.request.predicted) continue;
    policy_.Remove(id, now);
    waiting.job.predicted = waiting.request.predicted;
    const absl::Status pushed = policy_.Push(id, waiting.request, now);
    if (!pushed.ok()) Refuse(id, pushed, JobOutcome::kRefused);
  }
}

void Scheduler::Cancel(const void* owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SchedulingPolicy::JobId> ids;
  for (const auto& [id, waiting] : waiting_) {
    if (waiting.job.owner == owner) ids.push_back(id);
  }
  for (SchedulingPolicy::JobId id : ids) {
    policy_.Remove(id, clock_.Now());
    Refuse(id, absl::CancelledError("the job was cancelled while it waited"), JobOutcome::kCancelled);
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->owner != owner || !lane->id || std::exchange(lane->cancelled, true)) continue;
    if (!lane->has_turn) policy_.Abandon(*lane->id, clock_.Now());
    lane->changed.notify_one();
  }
}

void Scheduler::SetFramesOpen(bool open) {
  std::lock_guard<std::mutex> lock(mutex_);
  policy_.SetFramesOpen(open);
  Dispatch();
}

void Scheduler::Shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    while (!waiting_.empty()) {
      const SchedulingPolicy::JobId id = waiting_.begin()->first;
      policy_.Remove(id, clock_.Now());
      Refuse(id, ShuttingDown(), JobOutcome::kRefused);
    }
    for (const std::unique_ptr<Lane>& lane : lanes_) lane->changed.notify_one();
    clerk_changed_.notify_one();
    frames_changed_.notify_all();
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
  return policy_.started(job_class);
}

int64_t Scheduler::pending() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto started = std::count_if(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->id; });
  return static_cast<int64_t>(waiting_.size()) + telling_ + started;
}

SchedulerClock::Duration Scheduler::PredictedWait(JobClass job_class) {
  std::lock_guard<std::mutex> lock(mutex_);
  return policy_.PredictedWait({job_class}, clock_.Now());
}

std::vector<RunningJob> Scheduler::running() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Time now = clock_.Now();
  std::vector<RunningJob> jobs;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (!lane->id) continue;
    const bool held = !lane->has_turn && !lane->cancelled;
    jobs.push_back({lane->job_class, now - lane->started, held ? Duration(0) : now - lane->checkpoint, held,
                    static_cast<int>(&lane - lanes_.data()), lane->progress});
  }
  return jobs;
}

void Scheduler::AwaitFrames(Duration most) {
  std::unique_lock<std::mutex> lock(mutex_);
  const Time end = clock_.Now() + most;
  const auto is_quiet = [this] {
    return stopping_ || policy_.computing(JobClass::kFrame) + policy_.waiting(JobClass::kFrame) == 0;
  };
  while (!is_quiet() && clock_.Now() < end) clock_.WaitUntil(frames_changed_, lock, end);
}

void Scheduler::LaneLoop(Lane& lane) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    lane.changed.wait(lock, [&] { return lane.has_turn || stopping_; });
    if (!lane.has_turn) return;
    lock.unlock();
    Run(lane);
    (void)device_.Synchronize(lane.stream);  // an error of the device shows in its health
    lock.lock();
    End(lane, lock);
  }
}

void Scheduler::Run(Lane& lane) {
  absl::StatusOr<Buffer> workspace = device_.Allocate(Arena::Rounded(lane.job.workspace_bytes), lane.stream);
  if (!workspace.ok()) {
    lane.outcome = JobOutcome::kRefused;
    lane.job.run(workspace.status());
    return;
  }
  Arena arena(*std::move(workspace));
  const ExecContext ctx(device_, &lane.stream, arena,
                        [this, &lane](const Progress& progress) { return Checkpoint(lane, progress); });
  std::optional<LoopPause> pause;
  // A GPU's registrations have loops on the host as well, during which a frame must not wait for their turn.
  const bool has_loops = device_.kind() == DeviceKind::kCpu || lane.job_class == JobClass::kInteractive;
  if (has_loops) pause.emplace([this, &lane] { PauseLoop(lane); });
  lane.job.run(&ctx);
}

void Scheduler::PauseLoop(Lane& lane) {
  bool unwinds = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    CheckIn(lane);
    unwinds = lane.cancelled && lane.job_class != JobClass::kFrame;
    if (unwinds && lane.has_turn) {
      Drain(lane, lock);
      GiveUpTurn(lane);
    }
  }
  // It computes without a turn until its next checkpoint: beside frames in a tenth of the time.
  if (unwinds) return AwaitFrames(9 * LoopPause::kSlice);
  (void)GiveWay(lane);
}

void Scheduler::GiveUpTurn(Lane& lane) {
  const Time now = clock_.Now();
  lane.has_turn = false;
  policy_.Yield(*lane.id, now);
  policy_.Abandon(*lane.id, now);
  Dispatch();
}

void Scheduler::CheckIn(Lane& lane) {
  lane.checkpoint = clock_.Now();
  ++lane.progress;
}

void Scheduler::End(Lane& lane, std::unique_lock<std::mutex>& lock) {
  const Time now = clock_.Now();
  if (lane.cancelled) lane.outcome = JobOutcome::kCancelled;
  const bool crowded = policy_.WasCrowded(*lane.id, now);
  JobRecord record = RecordOf(lane.job, lane.outcome, lane.submitted);
  record.queued = lane.started - lane.submitted;
  record.held = lane.held;
  record.busy = now - lane.started - lane.held;
  lock.unlock();
  Learn(lane.job, record, crowded);
  const std::string cost_kind = lane.job.cost_kind;
  lane.job = Job();  // what it holds is released before the job counts as ended
  lock.lock();
  policy_.Finish(*lane.id, clock_.Now());
  if (lane.job_class == JobClass::kFrame) frames_changed_.notify_all();
  lane.id.reset();
  lane.has_turn = false;
  ++telling_;
  if (!cost_kind.empty()) JudgeWaiting(cost_kind, clock_.Now());
  Dispatch();
  lock.unlock();
  Observe(record);
  lock.lock();
  --telling_;
}

void Scheduler::Learn(const Job& job, const JobRecord& record, bool crowded) {
  if (job.cost_kind.empty()) return;
  const bool is_whole = record.outcome == JobOutcome::kDone && (!job.completed || job.completed());
  const bool overran = record.outcome == JobOutcome::kCancelled && record.predicted && record.busy > *record.predicted;
  if (is_whole || overran) costs_.Observe(job.cost_kind, job.cost_size, record.busy, crowded);
}

void Scheduler::ClerkLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    DeliverRefusals(lock);
    if (!refusals_.empty()) continue;
    if (stopping_) return;
    const std::optional<Time> deadline = policy_.NextDeadline();
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
  for (const Refusal& refusal : refusals) {
    if (refusal.job.run) refusal.job.run(refusal.why);
    Observe(refusal.record);
  }
  refusals.clear();
  lock.lock();
  telling_ -= count;
}

Decision Scheduler::Checkpoint(Lane& lane, const Progress& progress) {
  const Decision decision = Ask(lane, progress);
  return decision == Decision::kContinue && GiveWay(lane) ? Ask(lane, progress) : decision;
}

Decision Scheduler::Ask(Lane& lane, const Progress& progress) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    CheckIn(lane);
    if (lane.cancelled) return Decision::kCancel;
  }
  const Decision decision = lane.job.checkpoint ? lane.job.checkpoint(progress) : Decision::kContinue;
  if (decision == Decision::kCancel) lane.outcome = JobOutcome::kCancelled;
  return decision;
}

bool Scheduler::GiveWay(Lane& lane) {
  std::unique_lock<std::mutex> lock(mutex_);
  const bool yields = policy_.ShouldYield(*lane.id, clock_.Now());
  if (!yields && !MustChangeStream(lane)) return false;
  Drain(lane, lock);
  if (yields) Hold(lane, lock);
  if (MustChangeStream(lane)) ChooseStream(lane);
  return yields;
}

void Scheduler::Hold(Lane& lane, std::unique_lock<std::mutex>& lock) {
  if (lane.cancelled) return;
  const Time begin = clock_.Now();
  lane.has_turn = false;
  policy_.Yield(*lane.id, begin);
  Dispatch();
  lane.changed.wait(lock, [&] { return lane.has_turn || lane.cancelled; });
  CheckIn(lane);
  const Duration held = lane.checkpoint - begin;
  lane.held += held;
  lock.unlock();
  if (lane.job.on_held) lane.job.on_held(held);
  lock.lock();
}

void Scheduler::Drain(Lane& lane, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  (void)device_.Synchronize(lane.stream);  // an error shows again in the job's next call
  lock.lock();
}

bool Scheduler::MustChangeStream(const Lane& lane) const {
  return lane.job_class == JobClass::kBatch && lane.streams.whole &&
         policy_.MayUseWhole(lane.job_class) != lane.on_whole;
}

void Scheduler::ChooseStream(Lane& lane) {
  lane.on_whole = lane.streams.whole && policy_.MayUseWhole(lane.job_class);
  lane.stream = lane.on_whole ? lane.streams.whole->view() : lane.streams.own.view();
}

void Scheduler::Dispatch() {
  const Time now = clock_.Now();
  for (SchedulingPolicy::JobId id : policy_.TakeExpired(now)) {
    Refuse(id, WhyExpired(id, now), JobOutcome::kExpired);
  }
  while (const std::optional<SchedulingPolicy::Turn> turn = policy_.Grant(now)) {
    Lane& lane = LaneFor(*turn);
    if (!lane.id) Begin(lane, turn->job);
    lane.has_turn = true;
    lane.changed.notify_one();
  }
}

absl::Status Scheduler::WhyExpired(SchedulingPolicy::JobId id, Time now) {
  const SchedulingPolicy::Request& request = waiting_.at(id).request;
  if (*request.deadline <= now) return absl::DeadlineExceededError("the deadline passed while the job waited");
  const absl::Status late = UnreachableError("too little time was left when the job's turn came");
  const Duration wait = policy_.PredictedWait(request, now);
  return wait > Duration(0) ? WithRetryAfter(late, wait) : late;
}

Scheduler::Lane& Scheduler::LaneFor(const SchedulingPolicy::Turn& turn) {
  const bool starts = waiting_.contains(turn.job);
  const auto found = std::find_if(lanes_.begin(), lanes_.end(), [&](const std::unique_ptr<Lane>& lane) {
    return starts ? !lane->id && lane->job_class == turn.job_class : lane->id == turn.job;
  });
  return **found;
}

void Scheduler::Begin(Lane& lane, SchedulingPolicy::JobId id) {
  Waiting waiting = std::move(waiting_.extract(id).mapped());
  lane.job = std::move(waiting.job);
  lane.id = id;
  lane.owner = lane.job.owner;
  lane.cancelled = false;
  lane.outcome = JobOutcome::kDone;
  lane.submitted = waiting.submitted;
  CheckIn(lane);
  lane.started = lane.checkpoint;
  lane.held = Duration(0);
  ChooseStream(lane);
}

void Scheduler::Refuse(SchedulingPolicy::JobId id, absl::Status why, JobOutcome outcome) {
  Waiting waiting = std::move(waiting_.extract(id).mapped());
  const JobRecord record = RecordOf(waiting.job, outcome, waiting.submitted);
  refusals_.push_back({std::move(waiting.job), std::move(why), record});
  ++telling_;
  clerk_changed_.notify_one();
  frames_changed_.notify_all();
}

void Scheduler::RecordRefused(const Job& job) {
  if (!on_job_) return;
  refusals_.push_back({Job(), absl::OkStatus(), RecordOf(job, JobOutcome::kRefused, clock_.Now())});
  ++telling_;
  clerk_changed_.notify_one();
}

JobRecord Scheduler::RecordOf(const Job& job, JobOutcome outcome, Time submitted) const {
  const Time now = clock_.Now();
  JobRecord record;
  record.job_class = job.job_class;
  record.outcome = outcome;
  record.queued = now - submitted;
  record.predicted = job.predicted;
  if (job.deadline) record.slack = *job.deadline - now;
  return record;
}

void Scheduler::Observe(const JobRecord& record) const {
  if (on_job_) on_job_(record);
}

}  // namespace intrawarp
