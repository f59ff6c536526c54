// SPDX-License-Identifier: Apache-2.0
// A simulation of the scheduling policy on virtual time: seeded runs of jobs of several owners that arrive, pass
// checkpoints, fail, lose their deadlines and are cancelled, of sessions that open and close and of a stop, against a
// model of the rules that shares no code with the policy. The first broken rule ends the run with its seed.
//
//   schedule_simulation [--seeds=N] [--first_seed=N]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/schedule/retry_after.h"
#include "engine/schedule/scheduling_policy.h"

namespace intrawarp {
namespace {

using Time = SchedulingPolicy::Time;
using Duration = SchedulerClock::Duration;
using std::chrono::microseconds;

constexpr Duration kLongestSegment = microseconds(5000);
constexpr Duration kLongestUnwinding = microseconds(1000);
constexpr int kFrameSegments = 4;
constexpr int kMostDomains = 2;
constexpr int kMostOwners = 4;

enum class State { kUnborn, kWaiting, kComputing, kHeld, kUnwinding, kDone, kExpired, kCancelled, kRejected, kStopped };

struct SimulatedJob {
  JobClass job_class = JobClass::kFrame;
  Time arrival;
  std::optional<Time> deadline;
  std::optional<Time> cancel;
  std::optional<Duration> predicted;
  int owner = 0;
  bool is_short = false;
  Time since;                      // when it began to wait or was held
  Duration waited{0};              // before it computed
  std::vector<Duration> segments;  // between checkpoints; none: the job fails where it starts
  State state = State::kUnborn;
  size_t next_segment = 0;
  Duration computed{0};
  bool cancelled = false;
  bool whole = false;     // occupies the whole device
  bool promised = false;  // was admitted by exact predictions, and nothing unpredicted has happened since
  Duration total() const {
    Duration sum{0};
    for (Duration segment : segments) sum += segment;
    return sum;
  }
};

enum class What { kArrival, kCancel, kSegmentEnd, kUnwound, kFramesOpen, kFramesClose, kStop };

struct Event {
  Time time;
  int64_t order;  // among events of one time
  What what;
  int64_t job;
  bool operator>(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
};

// The events of all runs, to see that every rule was put to the test.
struct Tally {
  int64_t jobs = 0, done = 0, rejected = 0, unreachable = 0, spared = 0, expired = 0, stopped = 0,
          cancelled_waiting = 0, cancelled_held = 0, holds = 0, overtaken = 0, share_turns = 0, at_once = 0, kept = 0,
          moved = 0, flow_turns = 0, guarded = 0, guard_ends = 0, passed_over = 0;
  bool Covers() const {
    return std::min({done, rejected, unreachable, spared, expired, stopped, cancelled_waiting, cancelled_held, holds,
                     overtaken, share_turns, at_once, kept, moved, flow_turns, guarded, guard_ends, passed_over}) > 0;
  }
};

class Simulation {
 public:
  Simulation(uint64_t seed, Tally& tally)
      : random_(seed),
        exact_(Chance(40)),
        one_flow_(Chance(50)),
        options_(RandomOptions()),
        policy_(options_),
        tally_(tally) {
    const int64_t jobs = Uniform(1, 60);
    const int64_t span_us = Uniform(1, jobs * 6000);
    const int common_class = static_cast<int>(Uniform(0, kJobClasses - 1));
    std::vector<int64_t> arrivals_us(jobs);
    for (int64_t& arrival_us : arrivals_us) arrival_us = Uniform(0, span_us);
    std::sort(arrivals_us.begin(), arrivals_us.end());
    for (int64_t arrival_us : arrivals_us) AddJob(arrival_us, span_us, common_class);
    for (int i = 0; i < 4 && options_.partitioned; ++i) {
      AddEvent(RandomTime(span_us), i % 2 == 0 ? What::kFramesOpen : What::kFramesClose, 0);
    }
    if (Chance(10)) AddEvent(RandomTime(span_us), What::kStop, 0);
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
  Time RandomTime(int64_t span_us) { return Time(microseconds(Uniform(0, span_us))); }

  SchedulingOptions RandomOptions() {
    SchedulingOptions options;
    for (int& capacity : options.capacity) capacity = static_cast<int>(Uniform(1, 8));
    for (int& lanes : options.lanes) lanes = static_cast<int>(Uniform(1, 3));
    for (int i = 0; i < kJobClasses; ++i) {
      if (Chance(50)) options.at_once[i] = static_cast<int>(Uniform(1, options.lanes[i]));
      if (Chance(30)) options.short_lanes[i] = static_cast<int>(Uniform(0, options.lanes[i] - 1));
      if (Chance(30)) options.owner_capacity[i] = static_cast<int>(Uniform(1, 8));
      if (Chance(30)) options.beside_frames[i] = static_cast<int>(Uniform(1, options.lanes[i]));
    }
    options.owner_turn = microseconds(Uniform(1, 10000));
    options.owner_credit = microseconds(Uniform(0, 30000));
    options.most_guarded = microseconds(Uniform(0, 50000));
    options.slots = static_cast<int>(Uniform(1, 4));
    options.partitioned = Chance(50);
    options.mixed = Chance(50);
    if (!(exact_ && Chance(50))) {
      options.share_permille = {0, static_cast<int>(Uniform(0, 200)), static_cast<int>(Uniform(0, 200))};
    } else {
      options.share_permille = {0, 0, 0};
    }
    options.turn = microseconds(Uniform(1, 20000));
    options.checkpoint_interval = microseconds(Uniform(exact_ ? 50 : 0, kLongestSegment / microseconds(1)));
    return options;
  }

  void AddJob(int64_t arrival_us, int64_t span_us, int common_class) {
    SimulatedJob job;
    job.job_class = static_cast<JobClass>(Chance(40) ? common_class : Uniform(0, kJobClasses - 1));
    job.arrival = Time(microseconds(arrival_us));
    if (!one_flow_) job.owner = static_cast<int>(Uniform(0, kMostOwners - 1));
    if (!one_flow_) job.is_short = Chance(30);
    // Few different deadlines, so that some are equal.
    if (Chance(50)) job.deadline = Time(microseconds(5000 * Uniform(0, span_us / 5000 + 20)));
    if (Chance(exact_ ? 5 : 20)) job.cancel = job.arrival + microseconds(Uniform(0, 50000));
    const int64_t segments =
        !exact_ && Chance(5) ? 0 : Uniform(1, job.job_class == JobClass::kFrame ? kFrameSegments : 12);
    // Frames pass no checkpoint; when predictions are exact, others pass one as often as admission allows for.
    const bool keeps_interval = exact_ && job.job_class != JobClass::kFrame;
    const Duration longest = keeps_interval ? options_.checkpoint_interval : kLongestSegment;
    for (int64_t i = 0; i < segments; ++i) {
      job.segments.push_back(microseconds(Uniform(50, longest / microseconds(1))));
    }
    if (exact_) job.predicted = job.total();
    if (!exact_ && Chance(50)) job.predicted = microseconds(Uniform(0, 60000));
    const auto id = static_cast<int64_t>(jobs_.size());
    AddEvent(job.arrival, What::kArrival, id);
    if (job.cancel) AddEvent(*job.cancel, What::kCancel, id);
    jobs_.push_back(std::move(job));
    ++tally_.jobs;
  }

  void AddEvent(Time time, What what, int64_t job) { events_.push({time, next_order_++, what, job}); }

  bool Check(bool holds, const char* rule) {
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
    CheckBounds();
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
      case What::kFramesOpen:
      case What::kFramesClose:
        frames_open_ = event.what == What::kFramesOpen;
        // Fewer jobs may compute than the promises count on.
        for (SimulatedJob& job : jobs_) job.promised = false;
        return policy_.SetFramesOpen(frames_open_);
      case What::kStop:
        return Stop();
    }
  }

  // --- What happens to jobs.

  void Arrive(int64_t id) {
    SimulatedJob& job = jobs_[id];
    if (stopping_) {
      job.state = State::kStopped;
      return;
    }
    const absl::StatusCode expected = ExpectedAnswer(id);
    const SchedulingPolicy::Request request{.job_class = job.job_class,
                                            .deadline = job.deadline,
                                            .predicted = job.predicted,
                                            .owner = std::string(1, static_cast<char>('a' + job.owner)),
                                            .is_short = job.is_short};
    const absl::Status pushed = policy_.Push(id, request, now_);
    if (!Check(pushed.code() == expected, "a job is admitted when there is a place and nobody will be late")) return;
    if (!pushed.ok()) return Reject(job, pushed);
    EnterFlow(id);
    job.since = now_;
    job.promised = exact_ && one_flow_ && job.deadline && !IsDisturbed(job.job_class);
    for (int64_t other : live_) {
      const bool worse = jobs_[other].job_class > job.job_class;
      if (worse && DomainOf(other) == Domain(job.job_class)) jobs_[other].promised = false;
    }
    live_.push_back(id);
    job.state = State::kWaiting;
  }

  void Reject(SimulatedJob& job, const absl::Status& why) {
    job.state = State::kRejected;
    const bool is_full = why.code() == absl::StatusCode::kResourceExhausted;
    ++(is_full ? tally_.rejected : tally_.unreachable);
    const std::optional<Duration> delay = RetryAfterOf(why);
    Check(!delay || delay->count() > 0, "a time to come back lies ahead");
  }

  void Cancel(int64_t id) {
    SimulatedJob& job = jobs_[id];
    const bool waits = job.state == State::kWaiting;
    if (!Check(policy_.Remove(id, now_) == waits, "a job that waits, and no other, can be removed")) return;
    if (waits) {
      Leave(id, State::kCancelled);
      ++tally_.cancelled_waiting;
    } else if (job.state == State::kHeld) {
      policy_.Abandon(id, now_);
      job.state = State::kUnwinding;
      Disturb(DomainOf(id));
      AddEvent(now_ + microseconds(Uniform(0, kLongestUnwinding / microseconds(1))), What::kUnwound, id);
      ++tally_.cancelled_held;
    } else if (job.state == State::kComputing) {
      job.cancelled = true;
    }
  }

  void Stop() {
    stopping_ = true;
    for (int64_t id : std::vector<int64_t>(live_)) {
      if (jobs_[id].state != State::kWaiting) continue;
      Check(policy_.Remove(id, now_), "whoever waits is sent away at a stop");
      Leave(id, State::kStopped);
      ++tally_.stopped;
    }
  }

  // A checkpoint, or the end.
  void EndSegment(int64_t id) {
    SimulatedJob& job = jobs_[id];
    if (job.cancelled) return End(id, State::kCancelled);
    if (++job.next_segment >= job.segments.size()) return End(id, State::kDone);
    const bool must_yield = MustYield(id);
    if (!Check(policy_.ShouldYield(id, now_) == must_yield, "a checkpoint gives way to better jobs alone")) return;
    if (!must_yield) return Compute(id);
    policy_.Yield(id, now_);
    job.state = State::kHeld;
    job.since = now_;
    ++tally_.holds;
  }

  void End(int64_t id, State state) {
    policy_.Finish(id, now_);
    const SimulatedJob& job = jobs_[id];
    if (state == State::kDone && job.promised) {
      Check(now_ <= *job.deadline, "a deadline that was admitted is met when nothing unpredicted happens");
      ++tally_.kept;
    }
    if (state == State::kDone) ++tally_.done;
    Leave(id, state);
  }

  void Leave(int64_t id, State state) {
    jobs_[id].state = state;
    live_.erase(std::find(live_.begin(), live_.end(), id));
  }

  void Compute(int64_t id) {
    SimulatedJob& job = jobs_[id];
    if (job.job_class == JobClass::kBatch || job.state == State::kWaiting) Place(job);
    if (job.state == State::kWaiting) StartFlow(id);
    if (job.state != State::kComputing) job.waited = now_ - job.since;
    job.state = State::kComputing;
    const Duration elapsed = job.segments.empty() ? Duration(0) : job.segments[job.next_segment];
    AddEvent(now_ + elapsed, What::kSegmentEnd, id);
  }

  // A job that starts, and a batch job at each checkpoint, takes the multiprocessors that are its own.
  void Place(SimulatedJob& job) {
    const bool whole = !options_.partitioned || (job.job_class != JobClass::kFrame && !frames_open_);
    Check(policy_.MayUseWhole(job.job_class) == whole, "only while no frames are open, others have the whole device");
    if (job.state == State::kComputing && job.whole != whole) ++tally_.moved;
    job.whole = whole;
  }

  void Dispatch() {
    if (!error_.empty()) return;
    Expire();
    while (error_.empty()) {
      const std::optional<int64_t> expected = ExpectedTurn();
      const std::optional<SchedulingPolicy::Turn> turn = policy_.Grant(now_);
      if (!Check(turn.has_value() == expected.has_value(), "a slot is free only when nobody may compute in it")) return;
      if (!turn) return;
      if (!Check(turn->job == *expected, "the best job computes, by turns owed, class, deadline, arrival")) return;
      if (!Check(turn->job_class == jobs_[turn->job].job_class, "a turn names the class of its job")) return;
      Count(turn->job);
      Compute(turn->job);
    }
  }

  void Count(int64_t id) {
    const SimulatedJob& job = jobs_[id];
    if (ComputingIn(DomainOf(id)) > 0) ++tally_.at_once;
    for (int64_t other : live_) {
      const SimulatedJob& rival = jobs_[other];
      if (DomainOf(other) != DomainOf(id) || other == id) continue;
      if (Owed(job.job_class) && rival.job_class < job.job_class && MayBegin(other)) ++tally_.share_turns;
      if (rival.job_class == job.job_class && MayBegin(other) && PlaceOf(other) < PlaceOf(id)) ++tally_.flow_turns;
      if (rival.job_class == job.job_class && rival.state == State::kWaiting && !MayBegin(other) &&
          PlaceOf(other) < PlaceOf(id)) {
        ++tally_.passed_over;
      }
      if (rival.job_class == job.job_class && rival.state == State::kHeld && job.state == State::kWaiting) {
        ++tally_.overtaken;
      }
    }
  }

  void Expire() {
    std::vector<int64_t> expired = policy_.TakeExpired(now_), expected;
    for (int64_t id : live_) {
      if (jobs_[id].state == State::kWaiting && jobs_[id].deadline && *jobs_[id].deadline <= now_) {
        expected.push_back(id);
      }
    }
    std::sort(expired.begin(), expired.end());
    std::sort(expected.begin(), expected.end());
    Check(expired == expected, "a job that waits expires with its deadline, and no other does");
    for (int64_t id : expected) {
      Check(!jobs_[id].promised, "a deadline that was admitted does not pass in the queue");
      Leave(id, State::kExpired);
    }
    tally_.expired += static_cast<int64_t>(expected.size());
  }

  // --- The rules of precedence.

  int Domain(JobClass job_class) const { return options_.partitioned && job_class == JobClass::kBatch ? 1 : 0; }
  int DomainOf(int64_t id) const { return Domain(jobs_[id].job_class); }
  int Slots(int domain) const { return domain == 1 ? AtOnce(JobClass::kBatch) : options_.slots; }
  int AtOnce(JobClass job_class) const {
    const int beside_frames = options_.beside_frames[Index(job_class)];
    return frames_open_ && beside_frames > 0 ? std::min(MostAtOnce(job_class), beside_frames) : MostAtOnce(job_class);
  }
  // Jobs that compute when frames are opened compute on.
  int MostSlots(int domain) const { return domain == 1 ? MostAtOnce(JobClass::kBatch) : options_.slots; }
  int MostAtOnce(JobClass job_class) const {
    const int given = options_.at_once[Index(job_class)];
    return given == 0 ? options_.lanes[Index(job_class)] : given;
  }
  static int Index(JobClass job_class) { return static_cast<int>(job_class); }
  bool Owed(JobClass job_class) const { return owed_[Index(job_class)]; }

  std::pair<Time, int64_t> PlaceOf(int64_t id) const { return {jobs_[id].deadline.value_or(Time::max()), id}; }

  // --- Flows and their turns.

  static int FlowOf(const SimulatedJob& job) {
    return (Index(job.job_class) * kMostOwners + job.owner) * 2 + (job.is_short ? 1 : 0);
  }
  bool SameFlow(int64_t a, int64_t b) const { return FlowOf(jobs_[a]) == FlowOf(jobs_[b]); }
  Duration ChargeOf(int64_t id) const { return *charges_[FlowOf(jobs_[id])]; }

  // The charges so far of all flows of a class that have started a job.
  Duration Level(JobClass job_class) {
    std::optional<Duration> least;
    for (int64_t id : live_) {
      if (jobs_[id].job_class != job_class || jobs_[id].state == State::kWaiting) continue;
      least = std::min(least.value_or(ChargeOf(id)), ChargeOf(id));
    }
    Duration& level = levels_[Index(job_class)];
    level = std::max(level, least.value_or(level));
    return level;
  }

  // For a job that is not live yet.
  void EnterFlow(int64_t id) {
    const SimulatedJob& job = jobs_[id];
    const auto is_of_class = [&](int64_t other) { return jobs_[other].job_class == job.job_class; };
    std::optional<Duration>& charge = charges_[FlowOf(job)];
    if (std::none_of(live_.begin(), live_.end(), is_of_class)) {
      const int first = Index(job.job_class) * kMostOwners * 2;
      for (int flow = first; flow < first + kMostOwners * 2; ++flow) charges_[flow].reset();
      levels_[Index(job.job_class)] = Duration(0);
      charge = Duration(0);
      return;
    }
    const Duration credited = std::max(Level(job.job_class) - options_.owner_credit, Duration(0));
    const bool is_live = std::any_of(live_.begin(), live_.end(), [&](int64_t other) { return SameFlow(id, other); });
    if (!is_live) charge = std::max(charge.value_or(credited), credited);
  }

  // For a job that starts.
  void StartFlow(int64_t id) {
    const Duration credited = Level(jobs_[id].job_class) - options_.owner_credit;
    const bool has_started = std::any_of(live_.begin(), live_.end(), [&](int64_t other) {
      return SameFlow(id, other) && jobs_[other].state != State::kWaiting;
    });
    std::optional<Duration>& charge = charges_[FlowOf(jobs_[id])];
    if (!has_started) charge = std::max(*charge, credited);
  }

  // The first job in order among the candidates, which are all in one class.
  // Only the deadline or the turn of another flow displaces `computing`, which is one of them.
  int64_t First(const std::vector<int64_t>& candidates, std::optional<int64_t> computing = std::nullopt) const {
    int64_t best = computing.value_or(candidates.front());
    for (int64_t id : candidates) {
      if (computing && !jobs_[id].deadline && !SameFlow(id, *computing)) continue;
      if (PlaceOf(id) < PlaceOf(best)) best = id;
    }
    std::optional<int64_t> first;
    for (int64_t id : candidates) {
      if (ChargeOf(id) + options_.owner_turn > ChargeOf(best) || IsGuarded(id)) continue;
      if (!first || std::pair(ChargeOf(id), PlaceOf(id)) < std::pair(ChargeOf(*first), PlaceOf(*first))) first = id;
    }
    return first.value_or(best);
  }

  // Whether it has to wait for its turn, so that a prediction holds.
  bool IsGuarded(int64_t id) const {
    const SimulatedJob& job = jobs_[id];
    const Duration waited = job.state == State::kComputing ? job.waited : now_ - job.since;
    const bool harms = std::any_of(live_.begin(), live_.end(), [&](int64_t other) {
      const SimulatedJob& rival = jobs_[other];
      if (rival.job_class != job.job_class || SameFlow(id, other) || PlaceOf(id) < PlaceOf(other)) return false;
      if (!rival.deadline || Left(rival) == Duration(0) || rival.state == State::kUnwinding) return false;
      const bool whole =
          job.job_class == JobClass::kFrame || (job.state == State::kWaiting && rival.state == State::kWaiting);
      const Duration delay = whole ? job.predicted.value_or(options_.most_guarded) : Duration(0);
      const Wait wait = WaitOf(other);
      const Time earliest = now_ + wait.work + Left(rival);
      const Duration turn = std::max(options_.owner_turn, options_.checkpoint_interval + Duration(1));
      return earliest <= *rival.deadline && earliest + wait.giving_way + delay + turn > *rival.deadline;
    });
    if (harms) ++(waited < options_.most_guarded ? tally_.guarded : tally_.guard_ends);
    return harms && waited < options_.most_guarded;
  }

  // How much longer one flow computed than another one that wanted to all the while: more than turns, what the other
  // was ahead by, what a prediction puts off and what cannot be interrupted would mean that the other one is starved.
  void CheckTurns(Duration elapsed) {
    if (one_flow_) return;
    std::map<int, int> computing;  // jobs of each flow that has one which computes or could
    for (int64_t id : live_) {
      const bool computes = jobs_[id].state == State::kComputing;
      if (computes || MayBegin(id)) computing[FlowOf(jobs_[id])] += computes ? 1 : 0;
    }
    const Duration once =
        2 * options_.owner_turn + options_.owner_credit + options_.most_guarded + 2 * kFrameSegments * kLongestSegment;
    for (int f = 0; f < static_cast<int>(charges_.size()); ++f) {
      const int first = f / (2 * kMostOwners) * 2 * kMostOwners;
      for (int g = first; g < first + 2 * kMostOwners; ++g) {
        Duration& lead = leads_[{f, g}];
        lead = computing.contains(f) && computing.contains(g) ? lead + elapsed * (computing[f] - computing[g])
                                                              : Duration(0);
        Check(lead <= options_.slots * once, "no flow of a class starves another one");
      }
    }
  }

  int ComputingIn(int domain) const {
    return static_cast<int>(std::count_if(live_.begin(), live_.end(), [&](int64_t id) {
      return jobs_[id].state == State::kComputing && DomainOf(id) == domain;
    }));
  }
  int CountOf(JobClass job_class, State state) const {
    return static_cast<int>(std::count_if(live_.begin(), live_.end(), [&](int64_t id) {
      return jobs_[id].job_class == job_class && jobs_[id].state == state;
    }));
  }
  int Started(JobClass job_class) const {
    return CountOf(job_class, State::kComputing) + CountOf(job_class, State::kHeld) +
           CountOf(job_class, State::kUnwinding);
  }
  // Whether it could compute if it had a slot.
  bool MayBegin(int64_t id) const {
    const SimulatedJob& job = jobs_[id];
    if (job.state == State::kHeld) return true;
    if (job.state != State::kWaiting) return false;
    int started = 0, own = 0, not_short = 0;
    for (int64_t other : live_) {
      const SimulatedJob& rival = jobs_[other];
      if (rival.job_class != job.job_class || rival.state == State::kWaiting) continue;
      ++started;
      if (SameFlow(id, other)) ++own;
      if (!rival.is_short) ++not_short;
    }
    const int lanes = options_.lanes[Index(job.job_class)];
    const bool has_long_lane = not_short < lanes - options_.short_lanes[Index(job.job_class)];
    return started < lanes && own < AtOnce(job.job_class) && (job.is_short || has_long_lane);
  }
  std::vector<int64_t> CandidatesOf(JobClass job_class) const {
    std::vector<int64_t> candidates;
    std::copy_if(live_.begin(), live_.end(), std::back_inserter(candidates),
                 [&](int64_t id) { return jobs_[id].job_class == job_class && MayBegin(id); });
    return candidates;
  }
  // Whether class `a` has precedence over class `b`.
  bool Precedes(JobClass a, JobClass b) const { return std::pair(!Owed(a), Index(a)) < std::pair(!Owed(b), Index(b)); }
  bool IsBarred(JobClass job_class) const {
    if (options_.mixed || Owed(job_class)) return false;
    return std::any_of(live_.begin(), live_.end(), [&](int64_t id) {
      return jobs_[id].state == State::kComputing && jobs_[id].job_class < job_class &&
             DomainOf(id) == Domain(job_class);
    });
  }
  bool MustYield(int64_t id) const {
    const SimulatedJob& job = jobs_[id];
    if (job.job_class == JobClass::kFrame) return false;
    if (IsBarred(job.job_class)) return true;
    const bool no_slot = ComputingIn(DomainOf(id)) >= Slots(DomainOf(id));
    if (no_slot || CountOf(job.job_class, State::kComputing) >= AtOnce(job.job_class)) {
      std::vector<int64_t> candidates = CandidatesOf(job.job_class);
      candidates.push_back(id);
      if (First(candidates, id) != id) return true;
    }
    return no_slot && std::any_of(live_.begin(), live_.end(), [&](int64_t other) {
             const JobClass rival = jobs_[other].job_class;
             return rival != job.job_class && DomainOf(other) == DomainOf(id) && MayBegin(other) &&
                    CountOf(rival, State::kComputing) < AtOnce(rival) && Precedes(rival, job.job_class);
           });
  }
  std::optional<int64_t> ExpectedTurn() const {
    std::optional<JobClass> best;
    for (int i = 0; i < kJobClasses; ++i) {
      const auto job_class = static_cast<JobClass>(i);
      if (IsBarred(job_class) || ComputingIn(Domain(job_class)) >= Slots(Domain(job_class))) continue;
      if (CountOf(job_class, State::kComputing) >= AtOnce(job_class) || CandidatesOf(job_class).empty()) continue;
      if (!best || Precedes(job_class, *best)) best = job_class;
    }
    return best ? std::make_optional(First(CandidatesOf(*best))) : std::nullopt;
  }

  // --- Admission.

  struct Wait {
    Duration work, giving_way;
  };

  Wait WaitOf(int64_t id) const {
    const SimulatedJob& job = jobs_[id];
    const bool has_lane = job.state == State::kComputing || job.state == State::kHeld;
    Duration better{0}, own{0};
    int jobs = 0;
    for (int64_t other : live_) {
      const SimulatedJob& rival = jobs_[other];
      if (other == id || rival.state == State::kUnwinding || DomainOf(other) != DomainOf(id)) continue;
      if (rival.job_class > job.job_class) continue;
      const bool same = rival.job_class == job.job_class;
      const bool in_front = std::make_pair(rival.deadline.value_or(Time::max()), other) <
                            std::make_pair(job.deadline.value_or(Time::max()), id);
      if (same && !in_front && (has_lane || rival.state == State::kWaiting)) continue;
      (same ? own : better) += Left(rival);
      ++jobs;
    }
    if (options_.mixed) better /= Usable(job.job_class);
    const int times = Slots(DomainOf(id)) == 1 ? 1 : jobs + 1;
    return {better + own / Usable(job.job_class), times * options_.checkpoint_interval};
  }

  int Usable(JobClass job_class) const {
    const int long_lanes = options_.lanes[Index(job_class)] - options_.short_lanes[Index(job_class)];
    return std::min({AtOnce(job_class), long_lanes, Slots(Domain(job_class))});
  }
  static Duration Left(const SimulatedJob& job) {
    return job.predicted ? std::max(*job.predicted - job.computed, Duration(0)) : Duration(0);
  }

  absl::StatusCode ExpectedAnswer(int64_t id) {
    const SimulatedJob& job = jobs_[id];
    if (CountOf(job.job_class, State::kWaiting) >= options_.capacity[Index(job.job_class)]) {
      return absl::StatusCode::kResourceExhausted;
    }
    const auto own = std::count_if(live_.begin(), live_.end(), [&](int64_t other) {
      const SimulatedJob& rival = jobs_[other];
      return rival.job_class == job.job_class && rival.owner == job.owner && rival.state == State::kWaiting;
    });
    const int own_places = options_.owner_capacity[Index(job.job_class)];
    if (own_places > 0 && own >= own_places) return absl::StatusCode::kResourceExhausted;
    if (!job.deadline || !job.predicted) return absl::StatusCode::kOk;
    const Wait wait = WaitOf(id);
    const bool in_time = now_ + wait.work + wait.giving_way + *job.predicted <= *job.deadline;
    if (!in_time) return absl::StatusCode::kDeadlineExceeded;
    const bool harms = std::any_of(live_.begin(), live_.end(), [&](int64_t other) { return Harms(id, other); });
    if (harms) ++tally_.spared;
    return harms ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kOk;
  }

  // Whether a new job could make another one late that could still be in time.
  bool Harms(int64_t id, int64_t other) const {
    const SimulatedJob &job = jobs_[id], &rival = jobs_[other];
    if (rival.job_class != job.job_class || !rival.deadline || !rival.predicted) return false;
    if (rival.state == State::kUnwinding || PlaceOf(other) < PlaceOf(id)) return false;
    if (rival.state == State::kComputing && rival.job_class == JobClass::kFrame) return false;
    const Wait wait = WaitOf(other);
    const Time earliest = now_ + wait.work + Left(rival);
    if (earliest > *rival.deadline) return false;
    const Duration displacement = Slots(DomainOf(id)) == 1 ? Duration(0) : options_.checkpoint_interval;
    const Duration more = *job.predicted / Usable(job.job_class) + Duration(1) + displacement;
    return earliest + wait.giving_way + more > *rival.deadline;
  }

  // Something that no prediction knows of has happened in a domain.
  void Disturb(int domain) {
    for (int64_t id : live_) {
      if (DomainOf(id) == domain) jobs_[id].promised = false;
    }
  }
  // Whether such a thing still goes on.
  bool IsDisturbed(JobClass job_class) const {
    return std::any_of(live_.begin(), live_.end(), [&](int64_t id) {
      const bool goes_on = jobs_[id].state == State::kUnwinding || Owed(jobs_[id].job_class);
      return goes_on && DomainOf(id) == Domain(job_class);
    });
  }

  // --- Time and shares.

  // The debts, by the definition.
  void Advance(Time now) {
    const Duration elapsed = now - now_;
    now_ = now;
    CheckTurns(elapsed);
    for (int64_t id : live_) {
      if (jobs_[id].state != State::kComputing) continue;
      jobs_[id].computed += elapsed;
      *charges_[FlowOf(jobs_[id])] += elapsed;
    }
    const std::array<int, kMostDomains> computing = {ComputingIn(0), ComputingIn(1)};
    for (int i = 0; i < kJobClasses; ++i) {
      const auto job_class = static_cast<JobClass>(i);
      const int64_t all = computing[Domain(job_class)], own = CountOf(job_class, State::kComputing);
      debts_[i] += elapsed.count() * (all * options_.share_permille[i] - own * 1000);
      if (Started(job_class) + CountOf(job_class, State::kWaiting) == 0) debts_[i] = 0;
      debts_[i] = std::max<int64_t>(debts_[i], 0);
      if (debts_[i] >= options_.turn.count() * 1000) owed_[i] = true;
      if (debts_[i] == 0) owed_[i] = false;
      if (owed_[i]) Disturb(Domain(job_class));
      Check(debts_[i] <= MostOwed(i), "no class is owed more than a turn and what cannot be interrupted");
    }
  }

  // Thousandths of nanoseconds: a turn, and its share of what may go on in all slots from there: a frame, a job that
  // unwinds, and for batch a turn of the interactive class, which comes first.
  int64_t MostOwed(int index) const {
    const double turn = static_cast<double>(options_.turn.count());
    const double stretch = static_cast<double>((kFrameSegments * kLongestSegment + kLongestUnwinding).count());
    const double share = options_.slots * options_.share_permille[index] / 1000.0;
    const double other = options_.slots * options_.share_permille[Index(JobClass::kInteractive)] / 1000.0;
    const double pays = (turn + other * 2 * stretch) / (1 - other) + static_cast<double>(kLongestSegment.count());
    return static_cast<int64_t>(1000 * (turn + share * (2 * stretch + pays)));
  }

  void CheckBounds() {
    for (int i = 0; i < kJobClasses; ++i) {
      const auto job_class = static_cast<JobClass>(i);
      const int waiting = CountOf(job_class, State::kWaiting), started = Started(job_class);
      Check(waiting <= options_.capacity[i] && started <= options_.lanes[i], "no more jobs than places");
      Check(policy_.waiting(job_class) == waiting && policy_.started(job_class) == started, "no job is lost");
    }
    for (int domain = 0; domain < kMostDomains; ++domain) {
      Check(ComputingIn(domain) <= MostSlots(domain), "no more jobs compute at once than there are slots");
    }
  }

  void CheckEnd() {
    for (const SimulatedJob& job : jobs_) {
      Check(job.state >= State::kDone, "every job ends");
    }
    for (int i = 0; i < kJobClasses; ++i) {
      const auto job_class = static_cast<JobClass>(i);
      Check(policy_.waiting(job_class) == 0 && policy_.started(job_class) == 0, "every place is given back");
      const int own = options_.owner_capacity[i];
      const int places = own > 0 ? std::min(own, options_.capacity[i]) : options_.capacity[i];
      for (int j = 0; j <= places; ++j) {
        const bool pushed = policy_.Push(1000 * (i + 1) + j, {job_class, std::nullopt, std::nullopt}, now_).ok();
        Check(pushed == (j < places), "every place can be taken again");
      }
    }
  }

  std::mt19937_64 random_;
  const bool exact_;     // every job says truly how long it computes
  const bool one_flow_;  // all jobs of a class are one owner's, and none is short
  const SchedulingOptions options_;
  SchedulingPolicy policy_;
  Tally& tally_;
  std::vector<SimulatedJob> jobs_;  // by their arrival
  std::vector<int64_t> live_;       // those that wait or have started
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t next_order_ = 0;
  Time now_;
  bool frames_open_ = false;
  bool stopping_ = false;
  std::array<int64_t, kJobClasses> debts_{};
  std::array<bool, kJobClasses> owed_{};
  std::array<std::optional<Duration>, kJobClasses * kMostOwners * 2> charges_{};
  std::array<Duration, kJobClasses> levels_{};
  std::map<std::pair<int, int>, Duration> leads_;
  std::string error_;
};

int64_t Argument(int argc, char** argv, const std::string& name, int64_t otherwise) {
  const std::string prefix = absl::StrCat("--", name, "=");
  for (int i = 1; i < argc; ++i) {
    if (absl::StartsWith(argv[i], prefix)) return std::atoll(argv[i] + prefix.size());
  }
  return otherwise;
}

std::string Describe(const Tally& t) {
  return absl::StrCat(t.jobs, " jobs, ", t.done, " done, ", t.rejected, " without a place, ", t.unreachable,
                      " with a deadline out of reach (", t.spared, " of them for others' sake), ", t.expired,
                      " expired, ", t.stopped, " stopped, cancelled ", t.cancelled_waiting, " waiting and ",
                      t.cancelled_held, " held, ", t.holds, " holds, ", t.overtaken, " held jobs overtaken, ",
                      t.share_turns, " turns by share, ", t.at_once, " starts beside others, ", t.kept,
                      " promises kept, ", t.moved, " moves between partitions, ", t.flow_turns, " turns of flows, ",
                      t.guarded, " put off for a prediction and ", t.guard_ends, " not any more, ", t.passed_over,
                      " starts past a flow that has its lanes");
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
  std::printf("%lld seeds in %.1f s: %s\n", static_cast<long long>(seeds), elapsed.count(), Describe(tally).c_str());
  if (seeds < 1000 || tally.Covers()) return 0;
  std::printf("not everything happened\n");
  return 1;
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) { return intrawarp::Main(argc, argv); }
