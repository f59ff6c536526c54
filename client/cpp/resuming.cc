// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/resuming.h"

#include <algorithm>
#include <chrono>

#include "engine/base/status_macros.h"

namespace intrawarp::client {
namespace {

constexpr std::chrono::milliseconds kFirstBackoff(100);

using Clock = std::chrono::steady_clock;

// The time between the beginnings of two attempts, the first of which was the `failures`-th in a row.
std::chrono::milliseconds Backoff(int failures) {
  return failures == 1 ? std::chrono::milliseconds(0) : kFirstBackoff * (1 << std::min(failures - 1, 4));
}

absl::Status SleepUntil(Clock::time_point time, const CallOptions& options) {
  Cancellation never;
  const Cancellation& cancellation = options.cancellation == nullptr ? never : *options.cancellation;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now());
  if (cancellation.WaitFor(std::max(left, std::chrono::milliseconds(0)))) return absl::CancelledError("cancelled");
  return absl::OkStatus();
}

}  // namespace

absl::Status Resume(int attempts, const CallOptions& options, TransferState& state,
                    const std::function<absl::Status()>& attempt) {
  int failures = 0;
  while (true) {
    const int64_t before = state.arrived;
    const Clock::time_point begin = Clock::now();
    const absl::Status status = attempt();
    if (!absl::IsUnavailable(status) || !state.reached) return status;
    failures = state.arrived > before ? 1 : failures + 1;
    if (failures >= attempts) return status;
    INTRAWARP_RETURN_IF_ERROR(SleepUntil(begin + Backoff(failures), options));
  }
}

}  // namespace intrawarp::client
