// SPDX-License-Identifier: Apache-2.0
// The time after which a refused job could be admitted, as a payload of its status. Pure functions.
#ifndef INTRAWARP_ENGINE_SCHEDULE_RETRY_AFTER_H_
#define INTRAWARP_ENGINE_SCHEDULE_RETRY_AFTER_H_

#include <optional>

#include "absl/status/status.h"
#include "engine/schedule/clock.h"

namespace intrawarp {

// The same error with the time in place of one that it had. OK stays OK.
absl::Status WithRetryAfter(const absl::Status& status, SchedulerClock::Duration delay);
// nullopt where nothing predicts that waiting helps.
std::optional<SchedulerClock::Duration> RetryAfterOf(const absl::Status& status);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_RETRY_AFTER_H_
