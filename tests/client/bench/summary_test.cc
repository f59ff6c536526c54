// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace intrawarp::cli::bench {
namespace {

using ::testing::HasSubstr;

CallRecord Answered(double due, double answered, Fate fate = Fate::kOk) {
  CallRecord call;
  call.due = due;
  call.sent = due + 0.01;
  call.answered = answered;
  call.fate = fate;
  return call;
}

TEST(Summary, EveryCallHasOneFate) {
  ClientLog first, second;
  first.calls = {Answered(0, 0.05), Answered(0.1, 0.25), CallRecord(), Answered(0.3, 0.4, Fate::kRefused)};
  first.calls[3].error = "RESOURCE_EXHAUSTED QUEUE_FULL";
  second.calls = {Answered(0, 0.1, Fate::kSuperseded), Answered(1.9, 2.5)};
  second.calls[1].review = true;
  second.calls[1].causes = 1u << v1::VERDICT_CAUSE_LATE;
  first.bytes_sent = 10;
  second.bytes_sent = 5;
  const Summary summary = Summarise({first, second}, 100, 2);
  EXPECT_EQ(summary.due, 6);
  EXPECT_EQ(std::accumulate(summary.fates.begin(), summary.fates.end(), int64_t{0}), 6);
  EXPECT_EQ(summary.count(Fate::kOk), 3);
  EXPECT_EQ(summary.count(Fate::kNotSent), 1);
  EXPECT_EQ(summary.late, 2);
  EXPECT_EQ(summary.in_time(), 1);
  EXPECT_EQ(summary.late_by_server, 1);
  EXPECT_EQ(summary.verdicts_ok, 2);
  EXPECT_EQ(summary.verdicts_review, 1);
  EXPECT_EQ(summary.causes, (Tally{{"late", 1}}));
  EXPECT_EQ(summary.refused, (Tally{{"RESOURCE_EXHAUSTED QUEUE_FULL", 1}}));
  EXPECT_EQ(summary.bytes_sent, 15);
  // Until the last answer, which came after the end of the load.
  EXPECT_DOUBLE_EQ(summary.per_second, 3 / 2.5);
  EXPECT_EQ(summary.latency.count, 3);
  EXPECT_NEAR(*summary.latency.max, 600, 1e-9);
  EXPECT_NEAR(*summary.from_send.max, 590, 1e-9);
}

TEST(Summary, WithoutALimitNothingIsLate) {
  ClientLog client;
  client.calls = {Answered(0, 1000)};
  EXPECT_EQ(Summarise({client}, 0, 1).late, 0);
}

TEST(Summary, RefusedSessionsAreCountedByTheirError) {
  ClientLog refused;
  refused.opening = absl::ResourceExhaustedError("full");
  const Summary summary = Summarise({refused, ClientLog()}, 0, 1);
  EXPECT_EQ(summary.clients, 2);
  EXPECT_EQ(summary.not_opened, (Tally{{"RESOURCE_EXHAUSTED", 1}}));
}

TEST(UnexpectedFailure, RefusalsAndLatenessAreExpected) {
  ClientLog client;
  client.calls = {Answered(0, 99), Answered(0, 1, Fate::kRefused), Answered(0, 1, Fate::kMissed),
                  Answered(0, 1, Fate::kSuperseded), CallRecord()};
  ClientLog refused;
  refused.opening = absl::ResourceExhaustedError("full");
  EXPECT_TRUE(UnexpectedFailure({client, refused}, 100, false).ok());
}

TEST(UnexpectedFailure, FailuresKeepTheirCodeAndAreCounted) {
  ClientLog client;
  client.calls = {Answered(0, 1, Fate::kFailed), Answered(0, 1, Fate::kFailed)};
  client.first_failure = absl::DataLossError("checksum");
  const absl::Status status = UnexpectedFailure({ClientLog(), client}, 100, false);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("(2 failed calls)"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("checksum"));
}

TEST(UnexpectedFailure, ASilentServerIsOneUnlessInterrupted) {
  CallRecord unanswered;
  unanswered.sent = 1;
  unanswered.fate = Fate::kUnanswered;
  ClientLog client;
  client.calls = {Answered(0, 9), unanswered};
  EXPECT_TRUE(absl::IsDeadlineExceeded(UnexpectedFailure({client}, 10, false)));
  EXPECT_TRUE(UnexpectedFailure({client}, 10, true).ok());
  // Overload: answers still came after the end, too slowly.
  client.calls[0].answered = 11;
  EXPECT_TRUE(UnexpectedFailure({client}, 10, false).ok());
}

}  // namespace
}  // namespace intrawarp::cli::bench
