// SPDX-License-Identifier: Apache-2.0
// JobQueue: where jobs for a device are handed in. Scheduler runs them on real time; a simulation runs them on virtual
// time, on one thread after the other.
//
// Thread safety: that of the implementation.
#ifndef INTRAWARP_ENGINE_SCHEDULE_JOB_QUEUE_H_
#define INTRAWARP_ENGINE_SCHEDULE_JOB_QUEUE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/schedule/clock.h"
#include "engine/schedule/job_class.h"

namespace intrawarp {

class CostModel;
struct Job;  // engine/schedule/scheduler.h

class JobQueue {
 public:
  virtual ~JobQueue() = default;

  // RESOURCE_EXHAUSTED when the queue of the job's class is full, DEADLINE_EXCEEDED (IsUnreachable) when its deadline
  // cannot be met or only by missing that of another job (both with RetryAfterOf where a time is known), UNAVAILABLE
  // after a shutdown; then `run` is not called.
  virtual absl::Status Submit(Job job) = 0;
  // Jobs of the owner that wait get CANCELLED and give up their places. Its started jobs are told to cancel at their
  // next checkpoint; one that is held there goes on at once, without a turn, to unwind. `owner` is not null.
  virtual void Cancel(const void* owner) = 0;

  // Jobs of a class that may wait.
  virtual int capacity(JobClass job_class) const = 0;
  // Jobs that wait, that have started (they compute or are held), and both with those whose `run` or observer is being
  // told of their end.
  virtual int64_t waiting(JobClass job_class) const = 0;
  virtual int64_t started(JobClass job_class) const = 0;
  virtual int64_t pending() const = 0;
  // The predicted time until a job of the class and without a deadline would start if it were submitted now. Work
  // without a prediction counts as nothing.
  virtual SchedulerClock::Duration PredictedWait(JobClass job_class) = 0;
  // The costs learnt from earlier jobs.
  virtual CostModel& costs() = 0;
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_JOB_QUEUE_H_
