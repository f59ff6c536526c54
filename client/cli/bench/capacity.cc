// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/capacity.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli::bench {
namespace {

std::string Milliseconds(const std::optional<double>& value) {
  return value ? absl::StrFormat("%.1f", *value) : std::string("-");
}

int64_t NotInTime(const Summary& summary) { return summary.due - summary.in_time(); }

// The frames that were not in time at one session more than fit, and why.
std::string Beyond(const Capacity& capacity) {
  if (capacity.is_open()) return "not tried";
  const Summary& summary = capacity.steps.back().summary;
  if (!summary.not_opened.empty()) return TallyText(summary.not_opened);
  return absl::StrCat(NotInTime(summary), " of ", summary.due);
}

}  // namespace

int Capacity::sessions() const {
  int most = 0;
  for (const CapacityStep& step : steps) {
    if (step.passed) most = std::max(most, step.sessions);
  }
  return most;
}

bool Passes(const Summary& summary, double late_percent) {
  if (!summary.not_opened.empty() || summary.due == 0) return false;
  return static_cast<double>(NotInTime(summary)) <= late_percent / 100 * static_cast<double>(summary.due);
}

absl::StatusOr<Capacity> FindCapacity(const Task& task, const CapacityOptions& options,
                                      const std::function<absl::StatusOr<Summary>(int sessions)>& run) {
  Capacity capacity;
  capacity.task = task;
  for (int sessions = 1; sessions <= options.max_sessions; ++sessions) {
    CapacityStep step;
    step.sessions = sessions;
    INTRAWARP_ASSIGN_OR_RETURN(step.summary, run(sessions));
    step.passed = Passes(step.summary, options.late_percent);
    capacity.steps.push_back(std::move(step));
    if (!capacity.steps.back().passed) break;
  }
  return capacity;
}

std::string CapacityHeader(const LoadOptions& load) {
  return absl::StrFormat(
      "| size | method | field | sessions at %g Hz | p50, ms | p99, ms | largest, ms | with one more, not within %g ms "
      "|\n"
      "|---|---|---|---|---|---|---|---|\n",
      load.rate_hz, load.limit_ms);
}

std::string CapacityRow(const Capacity& capacity, const LoadOptions& load) {
  const int sessions = capacity.sessions();
  // The figures of the last number that passed.
  const Percentiles latency =
      sessions == 0 ? Percentiles() : capacity.steps[static_cast<size_t>(sessions) - 1].summary.latency;
  return absl::StrFormat("| %d^3 | %s | %s | %s%d | %s | %s | %s | %s |\n", capacity.task.size, capacity.task.method,
                         load.encoding, capacity.is_open() ? "at least " : "", sessions, Milliseconds(latency.p50),
                         Milliseconds(latency.p99), Milliseconds(latency.max), Beyond(capacity));
}

}  // namespace intrawarp::cli::bench
