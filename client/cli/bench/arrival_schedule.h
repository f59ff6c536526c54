// SPDX-License-Identifier: Apache-2.0
// ArrivalSchedule: when the frames of an open loop are due. Frames come on a clock that does not wait for answers, and
// latencies count from these times, so that a frame that could not be sent in time counts in full (no coordinated
// omission). Immutable, so thread-safe.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_ARRIVAL_SCHEDULE_H_
#define INTRAWARP_CLIENT_CLI_BENCH_ARRIVAL_SCHEDULE_H_

#include <cstdint>

namespace intrawarp::cli::bench {

class ArrivalSchedule {
 public:
  // `rate_hz` and `seconds` are above 0; `phase`, in [0, 1), is the part of a period before the first frame.
  ArrivalSchedule(double rate_hz, double phase, double seconds);

  // The frames that are due in [0, seconds); 0 where the first one is due later.
  int64_t count() const { return count_; }
  // Seconds after the start of the load.
  double Due(int64_t frame) const { return (static_cast<double>(frame) + phase_) / rate_hz_; }

 private:
  double rate_hz_;
  double phase_;
  int64_t count_;
};

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_ARRIVAL_SCHEDULE_H_
