// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/arrival_schedule.h"

#include <algorithm>
#include <cmath>

namespace intrawarp::cli::bench {

ArrivalSchedule::ArrivalSchedule(double rate_hz, double phase, double seconds)
    : rate_hz_(rate_hz), phase_(phase), count_(std::max<int64_t>(0, std::llround(seconds * rate_hz - phase))) {
  // The rounded count is off by one at most.
  while (count_ > 0 && Due(count_ - 1) >= seconds) --count_;
  while (Due(count_) < seconds) ++count_;
}

}  // namespace intrawarp::cli::bench
