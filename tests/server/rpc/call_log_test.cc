// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/call_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "server/monitor/log_levels.h"
#include "server/rpc/grpc_status.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr char kMethod[] = "intrawarp.v1.BulkService/Upload";
const LoggedCall kCall{kMethod, "", false};

class CallLogTest : public testing::Test {
 protected:
  CallLogTest() { TheLogLevels().Start(Severity::kDebug); }
  ~CallLogTest() override { TheLogLevels().Start(Severity::kInfo); }

  // The lines that are logged meanwhile, without the time at their beginning.
  static std::string Logged(const std::function<void()>& log) {
    testing::internal::CaptureStderr();
    log();
    const std::string text = testing::internal::GetCapturedStderr();
    const size_t level = text.find("level=");
    return level == std::string::npos ? text : text.substr(level);
  }
};

TEST_F(CallLogTest, ACallThatBeginsHasItsMethod) {
  EXPECT_EQ(Logged([] { LogCallBegin(kCall); }),
            "level=debug event=call_begin method=intrawarp.v1.BulkService/Upload\n");
  EXPECT_EQ(Logged([] {
              LogCallBegin({"other", "0af7651916cd43dd8448eb211c80319c", false});
            }),
            "level=debug event=call_begin method=other trace=0af7651916cd43dd8448eb211c80319c\n");
}

TEST_F(CallLogTest, ATraceThatWasMalformedIsNotRepeated) {
  EXPECT_EQ(Logged([] {
              LogCallBegin({"other", "", /*is_trace_malformed=*/true});
            }),
            "level=debug event=call_begin method=other traceparent=malformed\n");
}

TEST_F(CallLogTest, ACallThatEndsHasItsCodeAndItsTime) {
  EXPECT_EQ(Logged([] { LogCallEnd(kCall, grpc::Status::OK, microseconds(1500)); }),
            "level=debug event=call_end method=intrawarp.v1.BulkService/Upload code=OK ms=1.500\n");
}

TEST_F(CallLogTest, ARefusalHasItsReasonAndNotItsMessage) {
  const absl::Status refusal = WithReason(absl::ResourceExhaustedError("volumes/Mueller-Hans"), v1::RESIDENT_MEMORY);
  const std::string line = Logged([&] {
    LogCallEnd({kMethod, "ab", false}, ToGrpcStatus(refusal), std::chrono::seconds(2));
  });
  EXPECT_EQ(line,
            "level=debug event=call_end method=intrawarp.v1.BulkService/Upload trace=ab code=RESOURCE_EXHAUSTED "
            "reason=RESIDENT_MEMORY ms=2000.000\n");
  // A status that is not ours, gRPC's own say, has no reason.
  EXPECT_THAT(Logged([] { LogCallEnd(kCall, grpc::Status(grpc::CANCELLED, "gone"), milliseconds(1)); }),
              EndsWith("code=CANCELLED ms=1.000\n"));
}

TEST_F(CallLogTest, WorkHasThePhasesThatTookTime) {
  LatencyBreakdown latency;
  latency.Add(Phase::kReceive, microseconds(250));
  latency.Add(Phase::kOptimise, milliseconds(12));
  latency.set_total(milliseconds(13));
  EXPECT_EQ(Logged([&] {
              LogWorkEnd({LogRoom::kRegistration, "frame", "ab", 7}, absl::OkStatus(), latency);
            }),
            "level=debug event=frame trace=ab frame=7 code=OK receive_ms=0.250 optimise_ms=12.000 ms=13.000\n");
  EXPECT_EQ(Logged([] {
              LogWorkEnd({LogRoom::kSparse, "product", "", std::nullopt}, absl::OkStatus(), {});
            }),
            "level=debug event=product code=OK ms=0.000\n");
}

TEST_F(CallLogTest, WorkThatFailedHasTheReasonOfItsError) {
  const absl::Status late = WithReason(absl::DeadlineExceededError("late"), v1::DEADLINE_UNREACHABLE);
  EXPECT_EQ(Logged([&] {
              LogWorkEnd({LogRoom::kRegistration, "frame", "", 0}, late, {});
            }),
            "level=debug event=frame frame=0 code=DEADLINE_EXCEEDED reason=DEADLINE_UNREACHABLE ms=0.000\n");
  // An error without a reason of its own has the reason of its code.
  EXPECT_THAT(Logged([] {
                LogWorkEnd({LogRoom::kRegistration, "registration", "", std::nullopt}, InvalidField("fixed", "no"), {});
              }),
              HasSubstr("code=INVALID_ARGUMENT reason=INVALID_FIELD"));
}

TEST_F(CallLogTest, EachRoomHasALevelOfItsOwn) {
  const auto all = [] {
    LogCallBegin(kCall);
    LogCallEnd(kCall, grpc::Status::OK, milliseconds(1));
    LogWorkEnd({LogRoom::kRegistration, "frame", "", 1}, absl::OkStatus(), {});
    LogWorkEnd({LogRoom::kSparse, "product", "", std::nullopt}, absl::OkStatus(), {});
  };
  TheLogLevels().Start(Severity::kInfo);
  EXPECT_EQ(Logged(all), "");
  TheLogLevels().Set(LogRoom::kRpc, Severity::kDebug, std::nullopt);
  std::string text = Logged(all);
  EXPECT_THAT(text, HasSubstr("call_begin"));
  EXPECT_THAT(text, HasSubstr("call_end"));
  EXPECT_THAT(text, Not(HasSubstr("event=frame")));
  TheLogLevels().Start(Severity::kInfo);
  TheLogLevels().Set(LogRoom::kSparse, Severity::kDebug, std::nullopt);
  text = Logged(all);
  EXPECT_THAT(text, HasSubstr("event=product"));
  EXPECT_THAT(text, Not(HasSubstr("call_")));
  EXPECT_THAT(text, Not(HasSubstr("event=frame")));
}

}  // namespace
}  // namespace intrawarp::server
