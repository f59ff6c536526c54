// SPDX-License-Identifier: Apache-2.0
// ActiveTime: a clock that goes on only while this process could have made progress, so that work is not called hung
// because the machine was suspended, the process stopped, or the processors taken by others.
//
// Whoever watches advances it about once a second. Where no thread of the process wants a processor, everybody waits
// for something (a lock, a device), and the clock goes as the wall clock does. Where a thread wants one, the clock goes
// by the processor time that the process got, and at most as the wall clock does: a loop that never ends uses as much
// as there is, a starved pass next to none. No step is longer than kMostStep, since a process that was stopped did not
// look either.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_SERVER_MONITOR_ACTIVE_TIME_H_
#define INTRAWARP_SERVER_MONITOR_ACTIVE_TIME_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace intrawarp::server {

// What the kernel says of this process.
struct ProcessSigns {
  // Processor time of all threads.
  std::chrono::nanoseconds cpu{0};
  // A thread other than the one that asks computes, or waits for a processor.
  bool wants_cpu = false;
};

// Reads /proc. Without it no thread wants a processor.
ProcessSigns ReadProcessSigns();

class ActiveTime {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::nanoseconds;
  static constexpr Duration kMostStep = std::chrono::seconds(2);

  explicit ActiveTime(std::function<ProcessSigns()> look = ReadProcessSigns) : look_(std::move(look)) {}

  // By how much the clock went since the call before; `now` is the wall clock's steady time.
  Duration Advance(Time now);

 private:
  const std::function<ProcessSigns()> look_;
  std::optional<Time> last_;
  Duration last_cpu_{0};
};

// For how long, by an ActiveTime, something has stood still that shows its progress as a number.
class Standstill {
 public:
  // After each step of the clock. `wall`: how long it has stood still by the wall clock.
  ActiveTime::Duration Look(int64_t progress, ActiveTime::Duration wall, ActiveTime::Duration step);

 private:
  std::optional<int64_t> progress_;
  ActiveTime::Duration still_{0};
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_ACTIVE_TIME_H_
