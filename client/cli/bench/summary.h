// SPDX-License-Identifier: Apache-2.0
// Summary: what the clients of one load saw, in numbers. Plain values; thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_SUMMARY_H_
#define INTRAWARP_CLIENT_CLI_BENCH_SUMMARY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/bench/call_record.h"
#include "client/cli/bench/statistics.h"

namespace intrawarp::cli::bench {

struct Summary {
  int clients = 0;
  // Clients whose session the server refused, or that could not begin, by error.
  Tally not_opened;
  // Every call that was due has one fate, so they add up to `due`.
  int64_t due = 0;
  std::array<int64_t, kFates> fates{};
  // Calls that ended well, but were answered after the limit, as the client saw it and, for deadlines and budgets, as
  // the server did.
  int64_t late = 0;
  int64_t late_by_server = 0;
  // Verdicts, and the causes of those that ask for a review.
  int64_t verdicts_ok = 0;
  int64_t verdicts_review = 0;
  Tally causes;
  // Errors by fate.
  Tally refused;
  Tally failed;
  // ms, of the calls that ended well: from when they were due, from when they were sent, and the server's phases.
  Percentiles latency;
  Percentiles from_send;
  std::array<Percentiles, kPhases> phases;
  // Well answered calls a second, up to the last answer.
  double per_second = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // The sum over all clients; nullopt: none shared memory.
  std::optional<client::Transfers> transfers;

  int64_t count(Fate fate) const { return fates[static_cast<size_t>(fate)]; }
  // Answered well within the limit.
  int64_t in_time() const { return count(Fate::kOk) - late; }
};

// `limit_ms` 0: no answer is late. `seconds` is the length of the load.
Summary Summarise(const std::vector<ClientLog>& clients, double limit_ms, double seconds);

// The first unexpected failure of a load, with how many calls failed; OK where there is none. Refusals, missed
// deadlines, superseded and late frames are what a load test looks for. Calls that were never sent are its overload,
// and so are calls without an answer to a client that was still answered after the load's end, at `seconds`; one that
// was not, and waits for answers, has met a server that went silent.
absl::Status UnexpectedFailure(const std::vector<ClientLog>& clients, double seconds, bool interrupted);

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_SUMMARY_H_
