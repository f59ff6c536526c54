// SPDX-License-Identifier: Apache-2.0
// The log's lines about calls and their work, at level debug: methods, codes, reasons and times, and the id of the
// trace that the call belongs to. Nothing that a client named.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_RPC_CALL_LOG_H_
#define INTRAWARP_SERVER_RPC_CALL_LOG_H_

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/schedule/latency.h"
#include "server/monitor/log.h"

namespace intrawarp::server {

// What a line says of its call. `method`: one of ours ("intrawarp.v1.BulkService/Upload"), or "other".
struct LoggedCall {
  absl::string_view method;
  // Empty: the call belongs to none.
  std::string trace_id;
  // The call named a trace in a form that W3C Trace Context does not allow.
  bool is_trace_malformed = false;
};

void LogCallBegin(const LoggedCall& call);
// The reason is that of the status' ErrorInfo.
void LogCallEnd(const LoggedCall& call, const grpc::Status& status, std::chrono::nanoseconds elapsed);

// A frame ("frame"), registration or product that ended, with the time of each of its phases that took any.
struct LoggedWork {
  LogRoom room = LogRoom::kRegistration;
  absl::string_view event;
  std::string trace_id;
  std::optional<int64_t> frame_number;
};
void LogWorkEnd(const LoggedWork& work, const absl::Status& status, const LatencyBreakdown& latency);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_CALL_LOG_H_
