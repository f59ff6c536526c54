// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/call_record.h"

#include <gtest/gtest.h>

#include "client/cpp/rpc_status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "intrawarp/v1/error.pb.h"

namespace intrawarp::cli::bench {
namespace {

absl::Status ServerError(absl::StatusCode code, v1::ErrorReason reason) {
  google::rpc::Status status;
  status.set_code(static_cast<int>(code));
  status.set_message("why");
  // A client looks for the reason among all details.
  status.add_details()->PackFrom(google::rpc::RetryInfo());
  google::rpc::ErrorInfo info;
  info.set_reason(v1::ErrorReason_Name(reason));
  status.add_details()->PackFrom(info);
  return client::FromRpcStatus(status);
}

TEST(CallRecord, FatesFollowTheServersReasons) {
  using Code = absl::StatusCode;
  EXPECT_EQ(FateOf(absl::OkStatus()), Fate::kOk);
  EXPECT_EQ(FateOf(ServerError(Code::kAborted, v1::FRAME_SUPERSEDED)), Fate::kSuperseded);
  EXPECT_EQ(FateOf(ServerError(Code::kDeadlineExceeded, v1::DEADLINE_PASSED)), Fate::kMissed);
  EXPECT_EQ(FateOf(ServerError(Code::kDeadlineExceeded, v1::BUDGET_USED_UP)), Fate::kMissed);
  EXPECT_EQ(FateOf(ServerError(Code::kDeadlineExceeded, v1::DEADLINE_UNREACHABLE)), Fate::kRefused);
  EXPECT_EQ(FateOf(ServerError(Code::kResourceExhausted, v1::QUEUE_FULL)), Fate::kRefused);
  EXPECT_EQ(FateOf(absl::ResourceExhaustedError("of gRPC itself")), Fate::kRefused);
  EXPECT_EQ(FateOf(ServerError(Code::kInvalidArgument, v1::INVALID_FIELD)), Fate::kFailed);
  EXPECT_EQ(FateOf(absl::UnavailableError("broken connection")), Fate::kFailed);
  EXPECT_EQ(FateOf(ServerError(Code::kAborted, v1::SESSION_ENDED)), Fate::kFailed);
}

TEST(CallRecord, ErrorsAreNamedByCodeAndReason) {
  EXPECT_EQ(ErrorName(ServerError(absl::StatusCode::kResourceExhausted, v1::QUEUE_FULL)),
            "RESOURCE_EXHAUSTED QUEUE_FULL");
  EXPECT_EQ(ErrorName(absl::CancelledError("names of files and the like")), "CANCELLED");
}

TEST(CallRecord, AnAnswerSetsTimesVerdictAndPhases) {
  v1::Report report;
  report.set_verdict(v1::VERDICT_REVIEW);
  report.add_reasons()->set_cause(v1::VERDICT_CAUSE_FOLDING);
  report.add_reasons()->set_cause(v1::VERDICT_CAUSE_LATE);
  // A cause of a later version.
  report.add_reasons()->set_cause(static_cast<v1::VerdictCause>(77));
  report.mutable_latency()->set_receive_ms(1);
  report.mutable_latency()->set_optimise_ms(6);
  report.mutable_latency()->set_total_ms(11);
  CallRecord call;
  call.due = 2;
  call.sent = 2.5;
  SetAnswer(2.75, absl::OkStatus(), report, &call);
  EXPECT_EQ(call.fate, Fate::kOk);
  EXPECT_TRUE(call.review);
  EXPECT_TRUE(call.late_by_server());
  EXPECT_EQ(call.causes, (1u << v1::VERDICT_CAUSE_FOLDING) | (1u << v1::VERDICT_CAUSE_LATE));
  EXPECT_DOUBLE_EQ(call.LatencyMs(), 750);
  EXPECT_DOUBLE_EQ(call.FromSendMs(), 250);
  EXPECT_EQ(call.phases.front(), 1);
  EXPECT_EQ(call.phases[5], 6);
  EXPECT_EQ(call.phases.back(), 11);
  EXPECT_STREQ(PhaseNames()[5], "optimise");
}

}  // namespace
}  // namespace intrawarp::cli::bench
