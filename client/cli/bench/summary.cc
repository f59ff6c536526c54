// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/summary.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace intrawarp::cli::bench {
namespace {

// "expected_error" of VERDICT_CAUSE_EXPECTED_ERROR.
std::string CauseName(int cause) {
  const std::string name = v1::VerdictCause_Name(static_cast<v1::VerdictCause>(cause));
  if (name.empty()) return absl::StrCat("cause ", cause);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "VERDICT_CAUSE_"));
}

void CountGood(const CallRecord& call, double limit_ms, Summary* summary) {
  if (limit_ms > 0 && call.LatencyMs() > limit_ms) ++summary->late;
  if (call.late_by_server()) ++summary->late_by_server;
  ++(call.review ? summary->verdicts_review : summary->verdicts_ok);
  for (int cause = 0; cause < 32; ++cause) {
    if ((call.causes >> cause & 1) != 0) ++summary->causes[CauseName(cause)];
  }
}

void Count(const CallRecord& call, double limit_ms, Summary* summary) {
  ++summary->due;
  ++summary->fates[static_cast<size_t>(call.fate)];
  if (call.fate == Fate::kOk) CountGood(call, limit_ms, summary);
  if (call.fate == Fate::kRefused) ++summary->refused[call.error];
  if (call.fate == Fate::kFailed) ++summary->failed[call.error];
}

// One number of every call that ended well.
template <typename Value>
Percentiles OfGood(const std::vector<ClientLog>& clients, const Value& value) {
  std::vector<double> values;
  for (const ClientLog& client : clients) {
    for (const CallRecord& call : client.calls) {
      if (call.fate == Fate::kOk) values.push_back(value(call));
    }
  }
  return PercentilesOf(std::move(values));
}

void Add(const client::Transfers& transfers, std::optional<client::Transfers>* sum) {
  if (!*sum) sum->emplace();
  (*sum)->frames_shared += transfers.frames_shared;
  (*sum)->frames_in_chunks += transfers.frames_in_chunks;
  (*sum)->fields_shared += transfers.fields_shared;
  (*sum)->fields_in_chunks += transfers.fields_in_chunks;
}

// The calls without an answer, of a client that got none after the end of the load.
int64_t CallsToSilence(const ClientLog& client, double seconds) {
  int64_t unanswered = 0;
  for (const CallRecord& call : client.calls) {
    if (call.answered > seconds) return 0;
    if (call.fate == Fate::kUnanswered) ++unanswered;
  }
  return unanswered;
}

}  // namespace

Summary Summarise(const std::vector<ClientLog>& clients, double limit_ms, double seconds) {
  Summary summary;
  summary.clients = static_cast<int>(clients.size());
  double end = seconds;
  for (const ClientLog& client : clients) {
    if (!client.opening.ok()) ++summary.not_opened[ErrorName(client.opening)];
    summary.bytes_sent += client.bytes_sent;
    summary.bytes_received += client.bytes_received;
    if (client.transfers) Add(*client.transfers, &summary.transfers);
    for (const CallRecord& call : client.calls) {
      Count(call, limit_ms, &summary);
      if (call.fate == Fate::kOk) end = std::max(end, call.answered);
    }
  }
  summary.latency = OfGood(clients, [](const CallRecord& call) { return call.LatencyMs(); });
  summary.from_send = OfGood(clients, [](const CallRecord& call) { return call.FromSendMs(); });
  for (int phase = 0; phase < kPhases; ++phase) {
    summary.phases[phase] = OfGood(clients, [phase](const CallRecord& call) { return double{call.phases[phase]}; });
  }
  summary.per_second = end > 0 ? static_cast<double>(summary.count(Fate::kOk)) / end : 0;
  return summary;
}

absl::Status UnexpectedFailure(const std::vector<ClientLog>& clients, double seconds, bool interrupted) {
  absl::Status first;
  int64_t failed = 0, silent = 0;
  for (const ClientLog& client : clients) {
    const bool opening_failed = FateOf(client.opening) == Fate::kFailed;
    for (const absl::Status& status : {opening_failed ? client.opening : absl::OkStatus(), client.first_failure}) {
      if (first.ok()) first = status;
    }
    if (opening_failed) ++failed;
    for (const CallRecord& call : client.calls) failed += call.fate == Fate::kFailed;
    silent += CallsToSilence(client, seconds);
  }
  if (!first.ok()) {
    return absl::Status(first.code(), absl::StrCat("the load (", failed, " failed calls): ", first.message()));
  }
  if (silent == 0 || interrupted) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("the load: ", silent, " calls of clients that no answer came to any more"));
}

}  // namespace intrawarp::cli::bench
