// SPDX-License-Identifier: Apache-2.0
// SimulatedScheduler: Scheduler on virtual time. SchedulingPolicy and CostModel are the real ones, jobs run for real on
// coroutines, and time passes where a job starts and at its checkpoints. What it grants is checked: no job starts at
// its deadline or later, the earliest deadline of an owner's jobs in a class starts first, classes keep their order but
// for turns of their share, no class falls behind its share, and no owner's jobs starve another owner's in their class.
//
// Thread safety: as VirtualTime.
#ifndef INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_SCHEDULER_H_
#define INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_SCHEDULER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/schedule/cost_model.h"
#include "engine/schedule/job_queue.h"
#include "engine/schedule/scheduler.h"
#include "engine/schedule/scheduling_policy.h"
#include "tests/server/simulation/rules.h"
#include "tests/server/simulation/virtual_time.h"

namespace intrawarp::server {

class SimulatedScheduler final : public JobQueue {
 public:
  using Time = VirtualTime::Time;
  using Duration = VirtualTime::Duration;

  // `pause` gives how long a job computes until its next checkpoint.
  SimulatedScheduler(Device& device, const SchedulingOptions& options, VirtualTime& time, Rules& rules,
                     std::function<Duration()> pause);

  absl::Status Submit(Job job) override;
  void Cancel(const void* owner) override;
  int capacity(JobClass job_class) const override { return policy_.capacity(job_class); }
  int64_t waiting(JobClass job_class) const override { return policy_.waiting(job_class); }
  int64_t started(JobClass job_class) const override { return policy_.started(job_class); }
  int64_t pending() const override;
  Duration PredictedWait(JobClass job_class) override { return policy_.PredictedWait({job_class}, time_.now()); }
  CostModel& costs() override { return costs_; }
  void SetFramesOpen(bool open) { policy_.SetFramesOpen(open); }

  // A coroutine's: lets time pass while it computes.
  void Compute(Duration duration);

 private:
  using JobId = SchedulingPolicy::JobId;
  struct Lane {
    Lane(JobClass job_class, Stream stream) : job_class(job_class), stream(std::move(stream)) {}
    const JobClass job_class;
    const Stream stream;
    Job job;
    std::optional<JobId> id;
    bool has_turn = false;
    bool cancelled = false;
    bool held = false;
    JobOutcome outcome = JobOutcome::kDone;
    Time started;
    Duration held_for{0};
    Coroutine coroutine;
  };

  void Run(Lane& lane);
  void End(Lane& lane);
  Decision Checkpoint(Lane& lane, const Progress& progress);
  Decision Ask(Lane& lane, const Progress& progress);
  void Hold(Lane& lane);
  void Dispatch();
  void Begin(Lane& lane, JobId id);
  void GoOn(Lane& lane);
  void Refuse(JobId id, absl::Status why);
  Lane& LaneFor(const SchedulingPolicy::Turn& turn);

  // The rules.
  void Account();
  void CheckStart(JobId id) const;
  void CheckOrder(const Job& job) const;
  void CheckOwners(Duration elapsed);

  Device& device_;
  VirtualTime& time_;
  Rules& rules_;
  const SchedulingOptions options_;
  const std::function<Duration()> pause_;
  SchedulingPolicy policy_;
  CostModel costs_;
  std::map<JobId, Job> waiting_;
  JobId next_id_ = 0;
  int64_t telling_ = 0;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Time accounted_until_;
  std::array<Duration, kJobClasses> behind_{};  // what a class lacks of its share
  using Flow = std::tuple<JobClass, std::string, bool>;
  // How much longer the first computed than the second, which wanted to all the while.
  std::map<std::pair<Flow, Flow>, Duration> leads_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_SCHEDULER_H_
