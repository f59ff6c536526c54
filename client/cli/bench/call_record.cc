// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/call_record.h"

#include "absl/strings/str_cat.h"
#include "client/cpp/rpc_status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "intrawarp/v1/error.pb.h"

namespace intrawarp::cli::bench {
namespace {

// The server's ErrorReason; empty where it sent none.
std::string ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(client::kRpcStatusPayload);
  google::rpc::Status proto;
  if (!payload || !proto.ParseFromString(std::string(*payload))) return "";
  google::rpc::ErrorInfo info;
  for (const auto& detail : proto.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

}  // namespace

const char* FateName(Fate fate) {
  static constexpr const char* kNames[kFates] = {"ok",     "superseded", "missed",  "refused",
                                                 "failed", "unanswered", "not_sent"};
  return kNames[static_cast<int>(fate)];
}

Fate FateOf(const absl::Status& status) {
  if (status.ok()) return Fate::kOk;
  const std::string reason = ReasonOf(status);
  const auto is = [&](v1::ErrorReason value) { return reason == v1::ErrorReason_Name(value); };
  if (is(v1::FRAME_SUPERSEDED)) return Fate::kSuperseded;
  if (is(v1::DEADLINE_PASSED) || is(v1::BUDGET_USED_UP)) return Fate::kMissed;
  if (absl::IsResourceExhausted(status) || is(v1::DEADLINE_UNREACHABLE)) return Fate::kRefused;
  return Fate::kFailed;
}

std::string ErrorName(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return absl::StrCat(absl::StatusCodeToString(status.code()), reason.empty() ? "" : " ", reason);
}

const std::array<const char*, kPhases>& PhaseNames() {
  static constexpr std::array<const char*, kPhases> kNames = {
      "receive", "admit", "queue", "upload", "prepare", "optimise", "assess", "encode", "download", "send", "total"};
  return kNames;
}

std::array<float, kPhases> PhasesOf(const v1::LatencyBreakdown& ms) {
  const double values[kPhases] = {ms.receive_ms(),  ms.admit_ms(),    ms.queue_ms(),  ms.upload_ms(),
                                  ms.prepare_ms(),  ms.optimise_ms(), ms.assess_ms(), ms.encode_ms(),
                                  ms.download_ms(), ms.send_ms(),     ms.total_ms()};
  std::array<float, kPhases> phases{};
  for (int i = 0; i < kPhases; ++i) phases[i] = static_cast<float>(values[i]);
  return phases;
}

bool CallRecord::late_by_server() const { return (causes >> v1::VERDICT_CAUSE_LATE & 1) != 0; }

void SetAnswer(double answered, const absl::Status& status, const v1::Report& report, CallRecord* record) {
  record->answered = answered;
  record->fate = FateOf(status);
  if (!status.ok()) {
    record->error = ErrorName(status);
    return;
  }
  record->review = report.verdict() != v1::VERDICT_OK;
  for (const v1::VerdictReason& reason : report.reasons()) {
    // A cause of a later version may have any number.
    if (reason.cause() >= 0 && reason.cause() < 32) record->causes |= uint32_t{1} << reason.cause();
  }
  record->phases = PhasesOf(report.latency());
}

}  // namespace intrawarp::cli::bench
