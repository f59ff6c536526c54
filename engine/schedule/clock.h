// SPDX-License-Identifier: Apache-2.0
// SchedulerClock: the time that a scheduler goes by, so that a test can put its own in its place.
#ifndef INTRAWARP_ENGINE_SCHEDULE_CLOCK_H_
#define INTRAWARP_ENGINE_SCHEDULE_CLOCK_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace intrawarp {

// Thread safety: safe for concurrent use.
class SchedulerClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::nanoseconds;

  virtual ~SchedulerClock() = default;
  virtual Time Now() const = 0;
  // Waits for a notification of `changed`, or until the clock shows `until`. May return earlier than both.
  virtual void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time until) = 0;

  // The clock of the machine; lives for ever.
  static SchedulerClock& Steady();
};

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_CLOCK_H_
