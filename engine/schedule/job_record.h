// SPDX-License-Identifier: Apache-2.0
// JobRecord: the life of one job in a scheduler, told once when the job has ended or was refused.
#ifndef INTRAWARP_ENGINE_SCHEDULE_JOB_RECORD_H_
#define INTRAWARP_ENGINE_SCHEDULE_JOB_RECORD_H_

#include <functional>
#include <optional>

#include "engine/schedule/clock.h"
#include "engine/schedule/job_class.h"

namespace intrawarp {

enum class JobOutcome { kDone, kCancelled, kExpired, kRefused };

struct JobRecord {
  JobClass job_class = JobClass::kInteractive;
  JobOutcome outcome = JobOutcome::kDone;
  // From the submission to the start, or to the end of a job that never started.
  SchedulerClock::Duration queued{0};
  // While the job computed, without the time it was held.
  SchedulerClock::Duration busy{0};
  SchedulerClock::Duration held{0};
  // The prediction that admission went by; unset: none.
  std::optional<SchedulerClock::Duration> predicted;
  // Deadline minus end; negative: late. Unset: no deadline.
  std::optional<SchedulerClock::Duration> slack;
};

// Called by the scheduler's threads without a lock held, once a job.
using JobObserver = std::function<void(const JobRecord&)>;

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_JOB_RECORD_H_
