// SPDX-License-Identifier: Apache-2.0
// SchedulingPolicy: which jobs of a device compute next. It holds no thread, no device and no clock, so that a
// simulation can drive it on virtual time; Scheduler drives it on real time.
//
// A job waits, then starts; a started job computes, or is held at a checkpoint with its workspace. A class (frame,
// interactive, batch) has a queue of `capacity` jobs that wait and `lanes` for jobs that have started, of which
// `at_once` compute at once; while frames are open (SetFramesOpen), no more than `beside_frames`.
//
// Flows. The jobs of one owner in a class are a flow, and the owner's short jobs in that class (uploads, warps, points)
// are another one. A flow has at most `at_once` jobs started; the last `short_lanes` lanes of a class take short jobs
// only. Therefore an owner's long jobs hold the lane of nobody else.
//
// Domains. Jobs compute in `slots` at once. On a partitioned device batch is a domain of its own, which computes beside
// the others with as many slots as it has lanes. The order of precedence within a domain is:
// 1. a class that is owed a turn (see shares);
// 2. frame before interactive before batch;
// 3. within a class a flow whose turn it is (see turns);
// 4. the earliest deadline, held and waiting jobs alike; a job without a deadline comes after those with one, and the
//    first to come among equals; among flows a job without a deadline does not displace one that computes. A job waits
//    for a lane of its class even if those in the lanes are worse.
// Unless classes are `mixed`, a class computes only while no better one computes in its domain, or while it is owed a
// turn: on one set of multiprocessors a product slows a frame down many times over.
//
// Giving way. A frame runs to its end. At a checkpoint an interactive or batch job gives way to a better job that could
// compute in its place while no slot is free, and to a better class that keeps it from computing.
//
// Turns. Each flow is charged the time that its jobs compute. A flow goes before the flow of the job that would be next
// once it has been charged less by `owner_turn`; the least charged one goes first. So the flows of a class that have
// work compute in turns of twice `owner_turn`, each for an equal part of the time. A flow whose first job comes starts
// `owner_credit` below what all flows with jobs were charged so far, or with its own charge where that is more: whoever
// was idle meanwhile goes first for so long. A flow's turn waits while it would make a job of another flow late that
// was admitted by its prediction and keeps to it, but no longer than `most_guarded`.
//
// Shares. While a class has jobs, it is owed `share_permille` thousandths of all the time that jobs compute in its
// domain, less the time that it computes itself; the debt never falls below zero, and is forgotten when the class has
// no job. A debt that reaches `turn` puts the class before all others until the debt is paid. So frames that leave no
// idle time delay batch, but do not starve it.
//
// Admission. A job may say how long it will compute. The predicted wait of a job is the predicted work before it in its
// domain: that of better classes, which may all be in one slot unless classes are mixed, and that of its own class
// (better or started) divided by the slots that the class can use. To this comes one `checkpoint_interval` until a
// worse job gives way; with several slots one more for each better job, which may displace it. Work without a
// prediction counts nothing, turns by share and by flow are left out. A predicted job whose deadline comes before its
// predicted end is refused, and so is one that could make another predicted job of its class late. So a deadline that
// was admitted is missed only when something unpredicted happens: work beyond its prediction, a job of a better class
// that comes later, frames that are opened where fewer jobs compute beside them, a turn by share, a turn of a flow that
// has waited for `most_guarded`, a cancelled job that unwinds in its lane, and, where a class has more lanes than jobs
// at once, a job of the same flow that holds up its next one.
//
// Jobs that compute at once on the same multiprocessors slow each other down. Where a class has several slots, a job
// counts with its crowded cost while its class has another job, waiting or started. A job alone is admitted by its cost
// alone; then a second one is refused that would make the first late by its crowded cost.
//
// Jobs without hope. A job that waits is taken out at its deadline, or as soon as less time is left than it is expected
// to take: a job that starts too late costs the next ones their deadlines too, until none is met.
//
// Thread safety: none. Calls pass the time, which never goes back.
#ifndef INTRAWARP_ENGINE_SCHEDULE_SCHEDULING_POLICY_H_
#define INTRAWARP_ENGINE_SCHEDULE_SCHEDULING_POLICY_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/schedule/clock.h"
#include "engine/schedule/job_class.h"
#include "engine/schedule/job_record.h"

namespace intrawarp {

struct SchedulingOptions {
  // Jobs of each class that may wait.
  std::array<int, kJobClasses> capacity = {64, 64, 64};
  // How many of these one owner may have; 0: as many.
  std::array<int, kJobClasses> owner_capacity = {};
  // Jobs of each class that may have started.
  std::array<int, kJobClasses> lanes = {1, 1, 1};
  // Jobs of each class that compute at once, and that a flow may have started; 0: as many as lanes.
  std::array<int, kJobClasses> at_once = {};
  // The same while frames are open, where that is less; 0: no other number. Short jobs count, too. Jobs beyond it that
  // compute when frames are opened compute on until a better job waits; then each gives way at its next checkpoint.
  std::array<int, kJobClasses> beside_frames = {};
  // The lanes of each class that only short jobs take.
  std::array<int, kJobClasses> short_lanes = {};
  // Jobs of all classes that compute at once; on a partitioned device those of batch come on top.
  int slots = 1;
  bool partitioned = false;
  // Whether jobs of several classes compute at once in a domain.
  bool mixed = false;
  std::array<int, kJobClasses> share_permille = {0, 100, 50};
  SchedulerClock::Duration turn = std::chrono::milliseconds(10);
  SchedulerClock::Duration owner_turn = std::chrono::milliseconds(50);
  SchedulerClock::Duration owner_credit = std::chrono::seconds(5);
  SchedulerClock::Duration most_guarded = std::chrono::seconds(2);
  // The time between two checkpoints that admission allows for.
  SchedulerClock::Duration checkpoint_interval{0};
  // Told of every job; may be empty.
  JobObserver on_job = nullptr;
};

class SchedulingPolicy {
 public:
  using Time = SchedulerClock::Time;
  using Duration = SchedulerClock::Duration;
  using JobId = int64_t;
  struct Request {
    JobClass job_class = JobClass::kInteractive;
    std::optional<Time> deadline = std::nullopt;
    // How long the job will compute at most; unset: unknown.
    std::optional<Duration> predicted = std::nullopt;
    // The same beside other jobs of its class; unset: as `predicted`.
    std::optional<Duration> crowded = std::nullopt;
    // With less time than this before its deadline the job does not start; unset: 0.
    std::optional<Duration> expected = std::nullopt;
    // The place in the order of a job without a deadline, where no predicted deadline is missed for it; unset: after
    // those with a deadline.
    std::optional<Time> due = std::nullopt;
    // The owner of the job; empty: nobody, who counts as one more owner.
    std::string owner = {};
    // Short work.
    bool is_short = false;
  };
  struct Turn {
    JobClass job_class;
    JobId job;
    bool operator==(const Turn&) const = default;
  };

  explicit SchedulingPolicy(const SchedulingOptions& options) : options_(options) {}

  // The job waits. RESOURCE_EXHAUSTED when as many of its class, or of its owner's in that class, wait as may;
  // DEADLINE_EXCEEDED when the predictions say that it or another job would be late (IsUnreachable). Both carry the
  // predicted time until a place or the deadline could be had, where there is one (RetryAfterOf). Ids are unique; among
  // equals the smaller one goes first.
  absl::Status Push(JobId job, const Request& request, Time now);
  // False when the job does not wait.
  bool Remove(JobId job, Time now);
  // Removes the jobs whose deadline has passed while they waited, or that are without hope.
  std::vector<JobId> TakeExpired(Time now);
  // The time at which TakeExpired will next have something to take.
  std::optional<Time> NextDeadline() const;

  // Starts or resumes the best job that can compute in a free slot. Nothing when there is none; so it is called until
  // then. After TakeExpired, so that no job starts late.
  std::optional<Turn> Grant(Time now);
  // At a checkpoint of a job that computes: whether it gives way to another one.
  bool ShouldYield(JobId job, Time now);
  // A job that computes is held.
  void Yield(JobId job, Time now);
  // A held job was cancelled: it never computes again, but keeps its lane until Finish.
  void Abandon(JobId job, Time now);
  // A started job has ended.
  void Finish(JobId job, Time now);

  // While frames are open, frames and batch keep to their partitions, and `beside_frames` counts. At first they are not
  // open.
  void SetFramesOpen(bool open) { frames_open_ = open; }
  // Whether a job of the class may now occupy the whole device. A batch job looks at each checkpoint, others when they
  // start: a registration keeps graphs that were recorded for one partition.
  bool MayUseWhole(JobClass job_class) const;

  // The predicted time until a job that were pushed now would start.
  Duration PredictedWait(const Request& request, Time now);
  // Whether a started job computed beside others for more than half of its time.
  bool WasCrowded(JobId job, Time now);

  int waiting(JobClass job_class) const { return static_cast<int>(Of(job_class).waiting.size()); }
  int started(JobClass job_class) const { return Of(job_class).started; }
  int computing(JobClass job_class) const { return Of(job_class).computing; }
  int capacity(JobClass job_class) const { return options_.capacity[Index(job_class)]; }

 private:
  enum class State { kWaiting, kComputing, kHeld, kAbandoned };
  // The order within a class; jobs without a deadline or a due time have Time::max().
  using Place = std::pair<Time, JobId>;
  // The order of precedence; the least is the best.
  using Rank = std::tuple<bool, JobClass, Place>;
  using FlowName = std::pair<std::string, bool>;  // the owner, and whether its jobs are short
  struct Flow {
    Duration charged{0};
    int jobs = 0;  // that wait or have started
    int started = 0;
  };
  struct Entry {
    Request request;
    Flow* flow = nullptr;
    Time since = {};  // when it began to wait or was held
    State state = State::kWaiting;
    Duration waited{0};  // before it computed; while it computes
    Duration computed{0};
    Duration beside_others{0};  // part of `computed`
  };
  struct Class {
    std::map<FlowName, Flow> flows;  // with jobs, and lately
    Duration level{0};               // the most that all flows with jobs were ever charged
    int started_long = 0;            // not short
    std::set<Place> waiting;
    std::set<Place> held;
    int started = 0;
    int computing = 0;
    int64_t debt = 0;   // thousandths of nanoseconds
    bool owed = false;  // the debt has reached a turn and is not paid yet
  };

  struct WaitTime {
    Duration work;        // of others
    Duration giving_way;  // allowed for others who come to their checkpoints
    Duration all() const { return work + giving_way; }
  };

  static int Index(JobClass job_class) { return static_cast<int>(job_class); }
  static Place PlaceOf(JobId job, const Request& request) {
    return {request.deadline.value_or(request.due.value_or(Time::max())), job};
  }
  // When a job that waits is taken out; only for one with a deadline.
  static Place LapseOf(JobId job, const Request& request);
  Class& Of(JobClass job_class) { return classes_[Index(job_class)]; }
  const Class& Of(JobClass job_class) const { return classes_[Index(job_class)]; }
  // Whether two classes compute in one domain.
  bool Share(JobClass a, JobClass b) const;
  int SlotsOf(JobClass job_class) const;
  int AtOnce(JobClass job_class) const;
  // Jobs that compute in the domain of a class.
  int Computing(JobClass job_class) const;
  // Whether a better class keeps a class from computing.
  bool IsBarred(JobClass job_class) const;
  bool HasSlot(JobClass job_class) const;

  // Brings debts and computed times up to date; first in every call that changes who waits or computes.
  void Account(Time now);
  void Charge(JobClass job_class, int64_t elapsed_ns, int64_t in_domain);
  // The flow of a job that arrives.
  Flow* Enter(const Request& request);
  void Leave(const Entry& entry);
  static Duration LeastCharged(const Class& c);
  bool CanStart(const Entry& entry) const;
  // The next job of a class, which waits or is held, or `also`, which computes.
  std::optional<Place> Next(JobClass job_class, std::optional<JobId> also = std::nullopt) const;
  // The best of a job that computes and of others in its class. One of another flow without a deadline is better by its
  // turn only, so that flows do not change with each checkpoint.
  Place NextTo(JobId job, std::vector<Place> places) const;
  // Among jobs that can compute, the one whose flow has its turn; `best` where it is nobody's.
  Place ByTurn(const std::vector<Place>& places, const Place& best) const;
  // The time that a turn may take before the next look at it.
  Duration Margin() const;
  // Whether a job that computes out of order would make a job of another flow late that keeps to its prediction.
  bool IsGuarded(JobId job) const;
  Rank RankOf(JobClass job_class, const Place& place) const { return {!Of(job_class).owed, job_class, place}; }
  void Start(JobId job);

  bool IsBefore(JobId job, const Entry& entry, JobClass job_class, const Place& place, bool started) const;
  // Whether jobs of the class compute beside each other once `more` have come.
  bool IsCrowded(JobClass job_class, int more) const;
  // 0 without a prediction.
  static Duration Cost(const Request& request, bool crowded);
  // The predicted work that a job still has.
  static Duration Remaining(const Entry& entry, bool crowded);
  // With `more` jobs of the class to come.
  WaitTime Wait(JobClass job_class, const Place& place, bool started, int more) const;
  // A job's effect on the wait of a worse one of its class.
  Duration Delay(const Request& request) const;
  int UsableSlots(JobClass job_class) const;
  // Whether a new job makes the crowded cost of one that is there count.
  bool IsCrowdedBy(const Entry& entry, JobClass job_class) const;
  // Whether a started or waiting job stands behind a new one at `place`.
  bool IsDelayed(JobId job, const Entry& entry, JobClass job_class, const Place& place) const;
  // The time until the end of a job that `delay` would make late; 0 when it would not.
  Duration LateEnd(JobId job, const Entry& entry, Duration delay, Time now) const;
  // Jobs of an owner that wait.
  int WaitingOf(JobClass job_class, const std::string& owner) const;
  absl::Status CheckQueue(const Request& request, const Place& place) const;
  absl::Status CheckDeadline(const Request& request, const Place& place, Time now) const;
  absl::Status CheckOthers(const Request& request, const Place& place, Time now) const;

  const SchedulingOptions options_;
  std::array<Class, kJobClasses> classes_;
  std::map<JobId, Entry> jobs_;
  std::set<Place> lapses_;  // of jobs that wait
  bool frames_open_ = false;
  Time accounted_until_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_SCHEDULING_POLICY_H_
