// SPDX-License-Identifier: Apache-2.0
// A simulation of the scheduling policy on virtual time: seeded runs of jobs that arrive, pass checkpoints, fail, lose
// their deadlines and are cancelled, against a model of the rules that shares no code with the policy. The first broken
// rule ends the run with its seed.
//
//   schedule_simulation [--seeds=N] [--first_seed=N]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/schedule/scheduling_policy.h"

namespace intrawarp {
namespace {

using Time = SchedulingPolicy::Time;
using Duration = SchedulerClock::Duration;
using std::chrono::microseconds;

constexpr Duration kLongestSegment = microseconds(5000);
constexpr Duration kLongestUnwinding = microseconds(1000);
constexpr int kFrameSegments = 4;

enum class State { kUnborn, kWaiting, kComputing, kHeld, kUnwinding, kDone, kExpired, kCancelled, kRejected };

struct SimulatedJob {
  JobClass job_class = JobClass::kFrame;
  Time arrival;
  std::optional<Time> deadline;
  std::optional<Time> cancel;
  std::vector<Duration> segments;  // between checkpoints; none: the job fails where it starts
  State state = State::kUnborn;
  size_t next_segment = 0;
  bool cancelled = false;
};

enum class What { kArrival, kCancel, kSegmentEnd, kUnwound };

struct Event {
  Time time;
  int64_t order;  // among events of one time
  What what;
  int64_t job;
  bool operator>(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
};

// What happened in all runs, to see that every rule was put to the test.
struct Tally {
  int64_t jobs = 0, done = 0, rejected = 0, expired = 0, cancelled_waiting = 0, cancelled_held = 0, holds = 0,
          share_turns = 0;
  bool Covers() const {
    return std::min({done, rejected, expired, cancelled_waiting, cancelled_held, holds, share_turns}) > 0;
  }
};

class Simulation {
 public:
  Simulation(uint64_t seed, Tally& tally) : random_(seed), options_(RandomOptions()), policy_(options_), tally_(tally) {
    const int64_t jobs = Uniform(1, 60);
    const int64_t span_us = Uniform(1, jobs * 6000);
    const int common_class = static_cast<int>(Uniform(0, kJobClasses - 1));
    std::vector<int64_t> arrivals_us(jobs);
    for (int64_t& arrival_us : arrivals_us) arrival_us = Uniform(0, span_us);
    std::sort(arrivals_us.begin(), arrivals_us.end());
    for (int64_t arrival_us : arrivals_us) AddJob(arrival_us, span_us, common_class);
  }

  // The rule that was broken; empty when none was.
  std::string Run() {
    while (error_.empty() && !(events_.empty() && !policy_.NextDeadline())) Step();
    if (error_.empty()) CheckEnd();
    return error_;
  }

 private:
  int64_t Uniform(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Chance(int percent) { return Uniform(1, 100) <= percent; }

  SchedulingOptions RandomOptions() {
    SchedulingOptions options;
    for (int& capacity : options.capacity) capacity = static_cast<int>(Uniform(1, 8));
    options.share_permille = {0, static_cast<int>(Uniform(0, 200)), static_cast<int>(Uniform(0, 200))};
    options.turn = microseconds(Uniform(1, 20000));
    return options;
  }

  void AddJob(int64_t arrival_us, int64_t span_us, int common_class) {
    SimulatedJob job;
    job.job_class = static_cast<JobClass>(Chance(40) ? common_class : Uniform(0, kJobClasses - 1));
    job.arrival = Time(microseconds(arrival_us));
    // Few different deadlines, so that some are equal.
    if (Chance(50)) job.deadline = Time(microseconds(5000 * Uniform(0, span_us / 5000 + 20)));
    if (Chance(20)) job.cancel = job.arrival + microseconds(Uniform(0, 50000));
    const int64_t segments = Chance(5) ? 0 : Uniform(1, job.job_class == JobClass::kFrame ? kFrameSegments : 12);
    for (int64_t i = 0; i < segments; ++i) {
      job.segments.push_back(microseconds(Uniform(50, kLongestSegment / microseconds(1))));
    }
    const auto id = static_cast<int64_t>(jobs_.size());
    AddEvent(job.arrival, What::kArrival, id);
    if (job.cancel) AddEvent(*job.cancel, What::kCancel, id);
    jobs_.push_back(std::move(job));
    ++tally_.jobs;
  }

  void AddEvent(Time time, What what, int64_t job) { events_.push({time, next_order_++, what, job}); }

  bool Check(bool holds, const std::string& rule) {
    if (!holds && error_.empty()) {
      error_ = absl::StrCat(rule, " (at ", (now_ - Time()).count() / 1000, " us)");
    }
    return holds;
  }

  // The next event, or the next deadline when that is earlier.
  void Step() {
    const std::optional<Time> deadline = policy_.NextDeadline();
    const bool is_deadline = deadline && (events_.empty() || *deadline < events_.top().time);
    Advance(is_deadline ? std::max(*deadline, now_) : events_.top().time);
    if (!is_deadline) {
      const Event event = events_.top();
      events_.pop();
      Handle(event);
    }
    Dispatch();
  }

  void Handle(const Event& event) {
    switch (event.what) {
      case What::kArrival:
        return Arrive(event.job);
      case What::kCancel:
        return Cancel(event.job);
      case What::kSegmentEnd:
        return EndSegment(event.job);
      case What::kUnwound:
        return End(event.job, State::kCancelled);
    }
  }

  void Arrive(int64_t id) {
    SimulatedJob& job = jobs_[id];
    const bool has_room = Count(job.job_class, State::kWaiting) < options_.capacity[Index(job.job_class)];
    const absl::Status pushed = policy_.Push(id, job.job_class, job.deadline, now_);
    if (!Check(pushed.ok() == has_room, "a queue takes as many as it may, whatever others hold")) return;
    job.state = has_room ? State::kWaiting : State::kRejected;
    if (!has_room) ++tally_.rejected;
  }

  void Cancel(int64_t id) {
    SimulatedJob& job = jobs_[id];
    const bool waits = job.state == State::kWaiting;
    if (!Check(policy_.Remove(id, now_) == waits, "a job that waits, and no other, can be removed")) return;
    if (waits) {
      job.state = State::kCancelled;
      ++tally_.cancelled_waiting;
    } else if (job.state == State::kHeld) {
      policy_.Abandon(job.job_class, now_);
      job.state = State::kUnwinding;
      AddEvent(now_ + microseconds(Uniform(0, kLongestUnwinding / microseconds(1))), What::kUnwound, id);
      ++tally_.cancelled_held;
    } else if (job.state == State::kComputing) {
      job.cancelled = true;
    }
  }

  // A checkpoint, or the end.
  void EndSegment(int64_t id) {
    SimulatedJob& job = jobs_[id];
    if (job.cancelled) return End(id, State::kCancelled);
    if (++job.next_segment >= job.segments.size()) return End(id, State::kDone);
    const bool must_yield = job.job_class != JobClass::kFrame && ExpectedClass() != job.job_class;
    if (!Check(policy_.ShouldYield(now_) == must_yield, "a checkpoint gives way to a better class, and to no other")) {
      return;
    }
    if (!must_yield) return Compute(id);
    policy_.Yield(now_);
    job.state = State::kHeld;
    ++tally_.holds;
  }

  void End(int64_t id, State state) {
    policy_.Finish(jobs_[id].job_class, now_);
    jobs_[id].state = state;
    if (state == State::kDone) ++tally_.done;
  }

  void Compute(int64_t id) {
    SimulatedJob& job = jobs_[id];
    job.state = State::kComputing;
    const Duration elapsed = job.segments.empty() ? Duration(0) : job.segments[job.next_segment];
    AddEvent(now_ + elapsed, What::kSegmentEnd, id);
  }

  void Dispatch() {
    if (!error_.empty()) return;
    Expire();
    if (Computing()) return;
    const std::optional<JobClass> expected = ExpectedClass();
    const std::optional<SchedulingPolicy::Turn> turn = policy_.Grant(now_);
    if (!Check(turn.has_value() == expected.has_value(), "the device is idle only when nobody wants to compute"))
      return;
    if (!turn) return;
    if (!Check(turn->job_class == *expected, "the best class computes, or the one that is owed a turn")) return;
    CheckJob(*turn);
    if (!error_.empty()) return;
    if (Owed(*expected) && *expected != FirstThatWants()) ++tally_.share_turns;
    Compute(turn->job);
  }

  void Expire() {
    std::vector<int64_t> expired = policy_.TakeExpired(now_), expected;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i].state == State::kWaiting && jobs_[i].deadline && *jobs_[i].deadline <= now_) expected.push_back(i);
    }
    std::sort(expired.begin(), expired.end());
    Check(expired == expected, "a job that waits expires with its deadline, and no other does");
    for (int64_t id : expected) jobs_[id].state = State::kExpired;
    tally_.expired += static_cast<int64_t>(expected.size());
  }

  // That the job is the one of its class that has started, or the first one that waits.
  void CheckJob(const SchedulingPolicy::Turn& turn) {
    const SimulatedJob& job = jobs_[turn.job];
    if (!Check(job.job_class == turn.job_class, "a turn names a job of its class")) return;
    if (job.state == State::kHeld) return;
    Check(job.state == State::kWaiting, "a job starts once, from the queue");
    Check(Count(job.job_class, State::kHeld) + Count(job.job_class, State::kUnwinding) == 0,
          "a class has one started job at most");
    for (size_t other = 0; other < jobs_.size(); ++other) {
      const bool rivals = jobs_[other].job_class == job.job_class && jobs_[other].state == State::kWaiting;
      if (rivals) Check(Key(turn.job) <= Key(other), "earliest deadline first, then first come first served");
    }
  }

  std::pair<Time, int64_t> Key(int64_t id) const { return {jobs_[id].deadline.value_or(Time::max()), id}; }

  // The debts, by the definition.
  void Advance(Time now) {
    const int64_t elapsed = (now - now_).count();
    now_ = now;
    for (int i = 0; i < kJobClasses; ++i) {
      const auto job_class = static_cast<JobClass>(i);
      const int64_t share = options_.share_permille[i];
      if (Computing()) debts_[i] += elapsed * (Computing() == job_class ? share - 1000 : share);
      if (!Present(job_class)) debts_[i] = 0;
      debts_[i] = std::max<int64_t>(debts_[i], 0);
      if (debts_[i] >= options_.turn.count() * 1000) owed_[i] = true;
      if (debts_[i] == 0) owed_[i] = false;
      Check(debts_[i] <= MostOwed(i), "no class is owed more than a turn and what cannot be interrupted");
    }
  }

  // Thousandths of nanoseconds: a turn, and its share of what may go on from there: a frame, a job that unwinds, and
  // for batch a turn of the interactive class, which comes first.
  int64_t MostOwed(int index) const {
    const double turn = static_cast<double>(options_.turn.count());
    const double stretch = static_cast<double>((kFrameSegments * kLongestSegment + kLongestUnwinding).count());
    const double share = options_.share_permille[index] / 1000.0;
    const double other = options_.share_permille[static_cast<int>(JobClass::kInteractive)] / 1000.0;
    const double pays = (turn + other * 2 * stretch) / (1 - other) + static_cast<double>(kLongestSegment.count());
    return static_cast<int64_t>(1000 * (turn + share * (2 * stretch + pays)));
  }

  static int Index(JobClass job_class) { return static_cast<int>(job_class); }
  bool Owed(JobClass job_class) const { return owed_[Index(job_class)]; }

  int64_t Count(JobClass job_class, State state) const {
    return std::count_if(jobs_.begin(), jobs_.end(),
                         [&](const SimulatedJob& job) { return job.job_class == job_class && job.state == state; });
  }
  std::optional<JobClass> Computing() const {
    for (const SimulatedJob& job : jobs_) {
      if (job.state == State::kComputing) return job.job_class;
    }
    return std::nullopt;
  }
  bool Present(JobClass c) const { return Count(c, State::kUnwinding) > 0 || Wants(c); }
  bool Wants(JobClass c) const {
    if (Count(c, State::kUnwinding) > 0) return false;
    return Count(c, State::kWaiting) + Count(c, State::kHeld) + Count(c, State::kComputing) > 0;
  }
  std::optional<JobClass> FirstThatWants() const {
    for (int i = 0; i < kJobClasses; ++i) {
      if (Wants(static_cast<JobClass>(i))) return static_cast<JobClass>(i);
    }
    return std::nullopt;
  }
  std::optional<JobClass> ExpectedClass() const {
    for (int i = 0; i < kJobClasses; ++i) {
      if (owed_[i] && Wants(static_cast<JobClass>(i))) return static_cast<JobClass>(i);
    }
    return FirstThatWants();
  }

  void CheckEnd() {
    for (const SimulatedJob& job : jobs_) {
      Check(job.state >= State::kDone, "every job ends");
    }
    for (int i = 0; i < kJobClasses; ++i) {
      const auto job_class = static_cast<JobClass>(i);
      Check(policy_.waiting(job_class) == 0 && !policy_.started(job_class), "every place is given back");
      for (int j = 0; j <= options_.capacity[i]; ++j) {
        const bool pushed = policy_.Push(1000 * (i + 1) + j, job_class, std::nullopt, now_).ok();
        Check(pushed == (j < options_.capacity[i]), "every place can be taken again");
      }
    }
  }

  std::mt19937_64 random_;
  const SchedulingOptions options_;
  SchedulingPolicy policy_;
  Tally& tally_;
  std::vector<SimulatedJob> jobs_;  // by their arrival
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t next_order_ = 0;
  Time now_;
  std::array<int64_t, kJobClasses> debts_{};
  std::array<bool, kJobClasses> owed_{};
  std::string error_;
};

int64_t Argument(int argc, char** argv, const std::string& name, int64_t otherwise) {
  const std::string prefix = absl::StrCat("--", name, "=");
  for (int i = 1; i < argc; ++i) {
    if (absl::StartsWith(argv[i], prefix)) return std::atoll(argv[i] + prefix.size());
  }
  return otherwise;
}

int Main(int argc, char** argv) {
  const int64_t first = Argument(argc, argv, "first_seed", 1), seeds = Argument(argc, argv, "seeds", 10000);
  const auto begin = std::chrono::steady_clock::now();
  Tally tally;
  for (int64_t seed = first; seed < first + seeds; ++seed) {
    const std::string error = Simulation(seed, tally).Run();
    if (error.empty()) continue;
    std::printf("seed %lld, the %lldth: broken: %s\n", static_cast<long long>(seed),
                static_cast<long long>(seed - first + 1), error.c_str());
    return 1;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  std::printf(
      "%lld seeds in %.1f s: %lld jobs, %lld done, %lld rejected, %lld expired, cancelled %lld waiting and "
      "%lld held, %lld holds, %lld turns by share\n",
      static_cast<long long>(seeds), elapsed.count(), static_cast<long long>(tally.jobs),
      static_cast<long long>(tally.done), static_cast<long long>(tally.rejected), static_cast<long long>(tally.expired),
      static_cast<long long>(tally.cancelled_waiting), static_cast<long long>(tally.cancelled_held),
      static_cast<long long>(tally.holds), static_cast<long long>(tally.share_turns));
  if (seeds < 1000 || tally.Covers()) return 0;
  std::printf("not everything happened\n");
  return 1;
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) { return intrawarp::Main(argc, argv); }
