// SPDX-License-Identifier: Apache-2.0
#include "tests/server/simulation/simulated_scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace intrawarp::server {
namespace {

// How far a class may fall behind its share beyond a turn: frames run to their end, and another class may be owed a
// turn first.
constexpr std::chrono::milliseconds kMostBehind{400};

// How far a job may compute beyond its turn until its next checkpoint.
constexpr std::chrono::milliseconds kLongestPause{20};

int Index(JobClass job_class) { return static_cast<int>(job_class); }

}  // namespace

SimulatedScheduler::SimulatedScheduler(Device& device, const SchedulingOptions& options, VirtualTime& time,
                                       Rules& rules, std::function<Duration()> pause)
    : device_(device), time_(time), rules_(rules), options_(options), pause_(std::move(pause)), policy_(options) {
  for (int i = 0; i < kJobClasses; ++i) {
    for (int lane = 0; lane < options.lanes[i]; ++lane) {
      lanes_.push_back(std::make_unique<Lane>(static_cast<JobClass>(i), *device.CreateStream(Partition::kWhole)));
    }
  }
}

absl::Status SimulatedScheduler::Submit(Job job) {
  Account();
  SchedulingPolicy::Request request{job.job_class, job.deadline, job.predicted};
  request.owner = job.party;
  request.is_short = job.is_short;
  if (!job.predicted && !job.cost_kind.empty()) {
    if (const auto costs = costs_.Predict(job.cost_kind, job.cost_size); costs && costs->sure) {
      request.predicted = costs->alone;
      request.crowded = costs->crowded;
    }
  }
  const absl::Status pushed = policy_.Push(next_id_, request, time_.now());
  if (!pushed.ok()) return pushed;
  if (job.deadline) time_.At(std::max(*job.deadline, time_.now()), [this] { Dispatch(); });
  waiting_.emplace(next_id_++, std::move(job));
  Dispatch();
  return absl::OkStatus();
}

void SimulatedScheduler::Cancel(const void* owner) {
  std::vector<JobId> ids;
  for (const auto& [id, job] : waiting_) {
    if (job.owner == owner) ids.push_back(id);
  }
  for (JobId id : ids) {
    policy_.Remove(id, time_.now());
    Refuse(id, absl::CancelledError("the job was cancelled while it waited"));
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (!lane->id || lane->job.owner != owner || std::exchange(lane->cancelled, true)) continue;
    if (lane->has_turn) continue;
    policy_.Abandon(*lane->id, time_.now());
    GoOn(*lane);
  }
}

int64_t SimulatedScheduler::pending() const {
  const auto started = std::count_if(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->id; });
  return static_cast<int64_t>(waiting_.size()) + telling_ + started;
}

void SimulatedScheduler::Compute(Duration duration) {
  if (time_.Pass(duration)) return;
  Coroutine* const self = Coroutine::Current();
  time_.After(duration, [self] { self->Resume(); });
  self->Suspend();
}

void SimulatedScheduler::Run(Lane& lane) {
  Compute(pause_());
  absl::StatusOr<Buffer> workspace = device_.Allocate(Arena::Rounded(lane.job.workspace_bytes), lane.stream.view());
  if (workspace.ok()) {
    Arena arena(*std::move(workspace));
    const ExecContext ctx(device_, lane.stream.view(), arena,
                          [this, &lane](const Progress& progress) { return Checkpoint(lane, progress); });
    lane.job.run(&ctx);
  } else {
    lane.outcome = JobOutcome::kRefused;
    lane.job.run(workspace.status());
  }
  End(lane);
}

void SimulatedScheduler::End(Lane& lane) {
  Account();
  if (lane.cancelled) lane.outcome = JobOutcome::kCancelled;
  const bool learns = !lane.job.cost_kind.empty() && lane.outcome == JobOutcome::kDone;
  if (learns && (!lane.job.completed || lane.job.completed())) {
    costs_.Observe(lane.job.cost_kind, lane.job.cost_size, time_.now() - lane.started - lane.held_for);
  }
  lane.job = Job();
  policy_.Finish(*lane.id, time_.now());
  lane.id.reset();
  lane.has_turn = false;
  Dispatch();
}

Decision SimulatedScheduler::Checkpoint(Lane& lane, const Progress& progress) {
  Compute(pause_());
  Decision decision = Ask(lane, progress);
  if (decision != Decision::kContinue || !policy_.ShouldYield(*lane.id, time_.now())) return decision;
  rules_.Check(lane.job_class != JobClass::kFrame, "a frame runs to its end");
  Hold(lane);
  return Ask(lane, progress);
}

Decision SimulatedScheduler::Ask(Lane& lane, const Progress& progress) {
  if (lane.cancelled) return Decision::kCancel;
  const Decision decision = lane.job.checkpoint ? lane.job.checkpoint(progress) : Decision::kContinue;
  if (decision == Decision::kCancel) lane.outcome = JobOutcome::kCancelled;
  return decision;
}

void SimulatedScheduler::Hold(Lane& lane) {
  const Time begin = time_.now();
  Account();
  lane.has_turn = false;
  lane.held = true;
  policy_.Yield(*lane.id, begin);
  Dispatch();
  lane.coroutine.Suspend();
  lane.held_for += time_.now() - begin;
  if (lane.job.on_held) lane.job.on_held(time_.now() - begin);
}

void SimulatedScheduler::Dispatch() {
  Account();
  for (JobId id : policy_.TakeExpired(time_.now())) {
    Refuse(id, absl::DeadlineExceededError("the deadline passed while the job waited"));
  }
  while (const std::optional<SchedulingPolicy::Turn> turn = policy_.Grant(time_.now())) {
    Lane& lane = LaneFor(*turn);
    lane.has_turn = true;
    if (lane.id) {
      GoOn(lane);
    } else {
      CheckStart(turn->job);
      Begin(lane, turn->job);
    }
  }
}

SimulatedScheduler::Lane& SimulatedScheduler::LaneFor(const SchedulingPolicy::Turn& turn) {
  const bool starts = waiting_.contains(turn.job);
  return **std::find_if(lanes_.begin(), lanes_.end(), [&](const std::unique_ptr<Lane>& lane) {
    return starts ? !lane->id && lane->job_class == turn.job_class : lane->id == turn.job;
  });
}

void SimulatedScheduler::Begin(Lane& lane, JobId id) {
  lane.job = std::move(waiting_.extract(id).mapped());
  lane.id = id;
  lane.cancelled = false;
  lane.outcome = JobOutcome::kDone;
  lane.started = time_.now();
  lane.held_for = Duration(0);
  time_.After(Duration(0), [this, &lane] { lane.coroutine.Start([this, &lane] { Run(lane); }); });
}

void SimulatedScheduler::GoOn(Lane& lane) {
  if (!std::exchange(lane.held, false)) return;
  time_.After(Duration(0), [&lane] { lane.coroutine.Resume(); });
}

void SimulatedScheduler::Refuse(JobId id, absl::Status why) {
  ++telling_;
  auto job = std::make_shared<Job>(std::move(waiting_.extract(id).mapped()));
  time_.After(std::chrono::microseconds(20), [this, job, why = std::move(why)] {
    job->run(why);
    *job = Job();
    --telling_;
  });
}

// A class that has jobs while others compute gets its share, or is owed it.
void SimulatedScheduler::Account() {
  const Duration elapsed = time_.now() - std::exchange(accounted_until_, time_.now());
  CheckOwners(elapsed);
  int computing = 0;
  for (int i = 0; i < kJobClasses; ++i) computing += policy_.computing(static_cast<JobClass>(i));
  for (int i = 0; i < kJobClasses; ++i) {
    const auto job_class = static_cast<JobClass>(i);
    const bool has_jobs = policy_.waiting(job_class) + policy_.started(job_class) > 0;
    const Duration share = elapsed * computing * options_.share_permille[i] / 1000;
    behind_[i] =
        has_jobs ? std::max(behind_[i] + share - elapsed * policy_.computing(job_class), Duration(0)) : Duration(0);
    if (!rules_.Check(behind_[i] <= options_.turn + kMostBehind, "no class falls behind its share")) return;
  }
}

void SimulatedScheduler::CheckStart(JobId id) const {
  const Job& job = waiting_.at(id);
  rules_.Note("starts ", kJobClassNames[Index(job.job_class)], " job ", id);
  rules_.Check(!job.deadline || time_.now() < *job.deadline, "no job starts at its deadline or later");
  for (const auto& [other_id, other] : waiting_) {
    if (other.job_class != job.job_class || other_id == id) continue;
    if (other.party != job.party || other.is_short != job.is_short) continue;
    const auto key = [](JobId id, const Job& job) { return std::pair(job.deadline.value_or(Time::max()), id); };
    rules_.Check(key(id, job) < key(other_id, other), "the earliest deadline of an owner starts first");
  }
  CheckOrder(job);
}

// Two owners' jobs that could compute take turns.
void SimulatedScheduler::CheckOwners(Duration elapsed) {
  std::map<Flow, int> computing;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (!lane->id || lane->cancelled) continue;
    computing[{lane->job_class, lane->job.party, lane->job.is_short}] += lane->has_turn ? 1 : 0;
  }
  for (const auto& [id, job] : waiting_) {
    const int lanes = options_.lanes[Index(job.job_class)] - options_.short_lanes[Index(job.job_class)];
    if (policy_.started(job.job_class) < lanes) computing.try_emplace({job.job_class, job.party, job.is_short}, 0);
  }
  const Duration turns = 2 * options_.owner_turn + options_.owner_credit + options_.most_guarded;
  std::map<std::pair<Flow, Flow>, Duration> leads;
  for (const auto& [f, f_jobs] : computing) {
    for (const auto& [g, g_jobs] : computing) {
      if (std::get<JobClass>(f) != std::get<JobClass>(g) || f == g) continue;
      const auto before = leads_.find({f, g});
      const Duration lead = (before == leads_.end() ? Duration(0) : before->second) + elapsed * (f_jobs - g_jobs);
      leads[{f, g}] = lead;
      const bool is_frame = std::get<JobClass>(f) == JobClass::kFrame;
      const Duration most = options_.slots * (turns + (is_frame ? kMostBehind : kLongestPause));
      rules_.Check(lead <= most, "no owner starves another one in a class");
    }
  }
  leads_ = std::move(leads);
}

// A better class that has a job and a lane for it comes first, unless this one's share is behind.
void SimulatedScheduler::CheckOrder(const Job& job) const {
  if (behind_[Index(job.job_class)] > Duration(0)) return;
  for (int better = 0; better < Index(job.job_class); ++better) {
    const auto other = static_cast<JobClass>(better);
    const int once = options_.at_once[better];
    const bool has_lane = policy_.started(other) < (once > 0 ? once : options_.lanes[better]);
    rules_.Check(policy_.waiting(other) == 0 || !has_lane, "a better class starts first");
  }
}

}  // namespace intrawarp::server
