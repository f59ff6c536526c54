// SPDX-License-Identifier: Apache-2.0
// The largest number of sessions without a late frame, found by trying one more each time. Plain values; thread-safe
// functions.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_CAPACITY_H_
#define INTRAWARP_CLIENT_CLI_BENCH_CAPACITY_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench/bench_options.h"
#include "client/cli/bench/summary.h"

namespace intrawarp::cli::bench {

struct CapacityStep {
  int sessions = 0;
  Summary summary;
  bool passed = false;
};

struct Capacity {
  Task task;
  // In the order of their sessions: 1, 2, and so on. All passed, but for the last, perhaps.
  std::vector<CapacityStep> steps;

  // 0: even one was too many.
  int sessions() const;
  // No step failed: there may be room for more.
  bool is_open() const { return !steps.empty() && steps.back().passed; }
};

// The criterion: every session was opened, there was a frame, and of the frames that were due no more than
// `late_percent` of a hundred were not answered well within the limit (late, superseded, missed, refused, failed,
// unanswered and never sent ones all count).
bool Passes(const Summary& summary, double late_percent);

// `run` loads the server with a number of sessions. Stops after the first number that does not pass. Errors of `run`.
absl::StatusOr<Capacity> FindCapacity(const Task& task, const CapacityOptions& options,
                                      const std::function<absl::StatusOr<Summary>(int sessions)>& run);

// A table in Markdown: a header, and one line for each.
std::string CapacityHeader(const LoadOptions& load);
std::string CapacityRow(const Capacity& capacity, const LoadOptions& load);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_CAPACITY_H_
