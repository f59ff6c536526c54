// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/retry_after.h"

#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace intrawarp {
namespace {

// The payload's bytes are nanoseconds in decimal.
constexpr char kUrl[] = "intrawarp/retry_after";

}  // namespace

absl::Status WithRetryAfter(const absl::Status& status, SchedulerClock::Duration delay) {
  absl::Status with_delay = status;
  with_delay.SetPayload(kUrl, absl::Cord(absl::StrCat(delay.count())));
  return with_delay;
}

std::optional<SchedulerClock::Duration> RetryAfterOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kUrl);
  int64_t ns = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &ns)) return std::nullopt;
  return SchedulerClock::Duration(ns);
}

}  // namespace intrawarp
