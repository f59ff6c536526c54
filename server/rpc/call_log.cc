// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_log.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/rpc/grpc_status.h"
#include "server/status/errors.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

std::string Milliseconds(std::chrono::nanoseconds time) {
  return absl::StrFormat("%.3f", std::chrono::duration<double, std::milli>(time).count());
}

void AddTrace(const std::string& trace_id, std::vector<LogField>& fields) {
  if (!trace_id.empty()) fields.emplace_back("trace", trace_id);
}

std::vector<LogField> FieldsOf(const LoggedCall& call) {
  std::vector<LogField> fields = {{"method", std::string(call.method)}};
  AddTrace(call.trace_id, fields);
  if (call.is_trace_malformed) fields.emplace_back("traceparent", "malformed");
  return fields;
}

}  // namespace

void LogCallBegin(const LoggedCall& call) {
  if (!IsLogged(LogRoom::kRpc, Severity::kDebug)) return;
  Log(LogRoom::kRpc, Severity::kDebug, "call_begin", FieldsOf(call));
}

void LogCallEnd(const LoggedCall& call, const grpc::Status& status, std::chrono::nanoseconds elapsed) {
  if (!IsLogged(LogRoom::kRpc, Severity::kDebug)) return;
  std::vector<LogField> fields = FieldsOf(call);
  fields.emplace_back("code", CodeName(status.error_code()));
  const std::string reason = ErrorReasonIn(status);
  if (!reason.empty()) fields.emplace_back("reason", reason);
  fields.emplace_back("ms", Milliseconds(elapsed));
  Log(LogRoom::kRpc, Severity::kDebug, "call_end", fields);
}

void LogWorkEnd(const LoggedWork& work, const absl::Status& status, const LatencyBreakdown& latency) {
  if (!IsLogged(work.room, Severity::kDebug)) return;
  std::vector<LogField> fields;
  AddTrace(work.trace_id, fields);
  if (work.frame_number) fields.emplace_back("frame", absl::StrCat(*work.frame_number));
  fields.emplace_back("code", CodeName(static_cast<int>(status.code())));
  if (!status.ok()) fields.emplace_back("reason", v1::ErrorReason_Name(ReasonOf(status)));
  std::vector<std::string> names;
  names.reserve(kPhases);
  for (int i = 0; i < kPhases; ++i) {
    const std::chrono::nanoseconds time = latency.phase(static_cast<Phase>(i));
    if (time.count() == 0) continue;
    names.push_back(absl::StrCat(kPhaseNames[i], "_ms"));
    fields.emplace_back(names.back(), Milliseconds(time));
  }
  fields.emplace_back("ms", Milliseconds(latency.total()));
  Log(work.room, Severity::kDebug, work.event, fields);
}

}  // namespace intrawarp::server
