// SPDX-License-Identifier: Apache-2.0
// The fates of the calls of a load: one record for each frame or registration, one log for each client. Plain values;
// thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_BENCH_CALL_RECORD_H_
#define INTRAWARP_CLIENT_CLI_BENCH_CALL_RECORD_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/bench/statistics.h"
#include "client/cpp/navigate_stream.h"
#include "intrawarp/v1/registration.pb.h"

namespace intrawarp::cli::bench {

// How a call ended. The first five are the server's answers, counted as SessionStatistics counts frames.
enum class Fate : uint8_t {
  kOk,
  kSuperseded,
  // DEADLINE_PASSED or BUDGET_USED_UP.
  kMissed,
  // RESOURCE_EXHAUSTED or DEADLINE_UNREACHABLE: a refusal up front.
  kRefused,
  kFailed,
  // Sent, and without an answer when the load was over.
  kUnanswered,
  // Due, but never sent, since the ones before it took too long.
  kNotSent,
};
inline constexpr int kFates = 7;
// "ok", "not_sent".
const char* FateName(Fate fate);

// The end that a status stands for: of OK kOk.
Fate FateOf(const absl::Status& status);

// "RESOURCE_EXHAUSTED QUEUE_FULL": the code, and the ErrorReason where the server sent one.
std::string ErrorName(const absl::Status& status);

// The names of the phases of a latency breakdown, "receive" to "send", and "total" as the last.
inline constexpr int kPhases = 11;
const std::array<const char*, kPhases>& PhaseNames();
std::array<float, kPhases> PhasesOf(const v1::LatencyBreakdown& latency);

// Times in seconds after the start of the load; NaN: never.
struct CallRecord {
  double due = 0;
  double sent = std::nan("");
  double answered = std::nan("");
  Fate fate = Fate::kNotSent;
  // The verdict's, of a call that ended well: whether it asks for a review, and the bit 1 << cause for each
  // VerdictCause.
  bool review = false;
  uint32_t causes = 0;
  // ErrorName; empty for kOk and for calls without an answer.
  std::string error;
  // ms, as the server measured them.
  std::array<float, kPhases> phases{};

  double LatencyMs() const { return 1e3 * (answered - due); }
  double FromSendMs() const { return 1e3 * (answered - sent); }
  bool late_by_server() const;
};

// Fills in the answer. `report` counts where the status is OK.
void SetAnswer(double answered, const absl::Status& status, const v1::Report& report, CallRecord* record);

struct ClientLog {
  std::vector<CallRecord> calls;
  // OK, or why the client never began.
  absl::Status opening;
  // The first unexpected failure.
  absl::Status first_failure;
  // The session at its end, with its statistics, where the load had one and it ended well.
  std::optional<v1::Session> session;
  // Payload: voxels of frames, and encoded fields.
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  // With LoadOptions::shared_memory: how they travelled, the opening frame included.
  std::optional<client::Transfers> transfers;
};

}  // namespace intrawarp::cli::bench

#endif  // INTRAWARP_CLIENT_CLI_BENCH_CALL_RECORD_H_
