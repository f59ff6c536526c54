// SPDX-License-Identifier: Apache-2.0
// SchedulingPolicy: which job of a device computes next. It holds no thread, no device and no clock, so that a
// simulation can drive it on virtual time; Scheduler drives it on real time.
//
// A job has a class: frame before interactive before batch. Within a class the earliest deadline comes first, a job
// without a deadline after those with one, and the first to come among equals. One job computes at a time. A class has
// at most one started job; a started job either computes or is held at a checkpoint with its workspace.
//
// Giving way. A frame runs to its end. At a checkpoint an interactive or batch job gives way to a better class that
// wants to compute. A class wants to compute while a job of it waits or has started. Within a class nobody gives way.
//
// Shares. While a class wants to compute, it is owed `share_permille` thousandths of all the time that jobs compute,
// less the time that it computes itself; the debt never falls below zero, and is forgotten when the class wants
// nothing. A debt that reaches `turn` puts the class before all others until the debt is paid. So frames that leave no
// idle time delay batch, but do not starve it, and a frame waits for one turn and one checkpoint of a batch job at
// most.
//
// Thread safety: none. Calls pass the time, which never goes back.
#ifndef INTRAWARP_ENGINE_SCHEDULE_SCHEDULING_POLICY_H_
#define INTRAWARP_ENGINE_SCHEDULE_SCHEDULING_POLICY_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/schedule/clock.h"
#include "engine/schedule/job_class.h"

namespace intrawarp {

struct SchedulingOptions {
  // Jobs of each class that may wait.
  std::array<int, kJobClasses> capacity = {64, 64, 64};
  std::array<int, kJobClasses> share_permille = {0, 100, 50};
  SchedulerClock::Duration turn = std::chrono::milliseconds(10);
};

class SchedulingPolicy {
 public:
  using Time = SchedulerClock::Time;
  using JobId = int64_t;
  struct Turn {
    JobClass job_class;
    JobId job;
    bool operator==(const Turn&) const = default;
  };

  explicit SchedulingPolicy(const SchedulingOptions& options) : options_(options) {}

  // The job waits. RESOURCE_EXHAUSTED when as many of its class wait as may. Ids are unique and grow.
  absl::Status Push(JobId job, JobClass job_class, std::optional<Time> deadline, Time now);
  // False when the job does not wait.
  bool Remove(JobId job, Time now);
  // Removes the jobs whose deadline has passed while they waited.
  std::vector<JobId> TakeExpired(Time now);
  // The time at which TakeExpired will next have something to take.
  std::optional<Time> NextDeadline() const;

  // When nobody computes: starts or resumes a job, which then computes. Nothing when no class wants to compute.
  // After TakeExpired, so that no job starts late.
  std::optional<Turn> Grant(Time now);
  // At a checkpoint of the job that computes: whether it gives way to another one.
  bool ShouldYield(Time now);
  // The job that computes is held.
  void Yield(Time now);
  // The held job of a class was cancelled: it never computes again, but keeps its place until Finish.
  void Abandon(JobClass job_class, Time now);
  // The started job of a class has ended.
  void Finish(JobClass job_class, Time now);

  std::optional<JobClass> computing() const { return computing_; }
  int waiting(JobClass job_class) const { return static_cast<int>(classes_[Index(job_class)].waiting.size()); }
  bool started(JobClass job_class) const { return classes_[Index(job_class)].started.has_value(); }
  int capacity(JobClass job_class) const { return options_.capacity[Index(job_class)]; }

 private:
  // The order within a class; jobs without a deadline have Time::max().
  using Place = std::pair<Time, JobId>;
  struct Class {
    std::set<Place> waiting;
    std::optional<JobId> started;
    bool abandoned = false;  // the started job
    int64_t debt = 0;        // thousandths of nanoseconds
    bool owed = false;       // the debt has reached a turn and is not paid yet
  };

  static int Index(JobClass job_class) { return static_cast<int>(job_class); }
  static bool Wants(const Class& c) { return c.started ? !c.abandoned : !c.waiting.empty(); }
  // Brings the debts up to date; first in every call that changes who waits or computes.
  void Account(Time now);
  void Charge(int index, int64_t elapsed_ns);
  std::optional<JobClass> Best() const;

  const SchedulingOptions options_;
  std::array<Class, kJobClasses> classes_;
  std::map<JobId, std::pair<JobClass, Place>> places_;  // of the jobs that wait
  std::optional<JobClass> computing_;
  Time accounted_until_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_SCHEDULING_POLICY_H_
