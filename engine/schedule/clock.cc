// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/clock.h"

namespace intrawarp {
namespace {

class SteadyClock final : public SchedulerClock {
 public:
  Time Now() const override { return std::chrono::steady_clock::now(); }
  void WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Time until) override {
    changed.wait_until(lock, until);
  }
};

}  // namespace

SchedulerClock& SchedulerClock::Steady() {
  static SteadyClock clock;
  return clock;
}

}  // namespace intrawarp
