// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/load_client.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <vector>

namespace intrawarp::cli::bench {
namespace {

CallRecord Due(double due, double sent, Fate fate) {
  CallRecord call;
  call.due = due;
  call.sent = sent;
  call.fate = fate;
  return call;
}

TEST(LoadClient, SettlesWhatHasNoAnswer) {
  const double never = std::nan("");
  const std::vector<CallRecord> calls = {Due(0, 0, Fate::kOk), Due(1, 1, Fate::kNotSent), Due(2, never, Fate::kNotSent),
                                         Due(3, never, Fate::kNotSent)};
  std::vector<CallRecord> whole = calls;
  Settle(std::numeric_limits<double>::infinity(), &whole);
  ASSERT_EQ(whole.size(), 4u);
  EXPECT_EQ(whole[0].fate, Fate::kOk);
  EXPECT_EQ(whole[1].fate, Fate::kUnanswered);
  EXPECT_EQ(whole[2].fate, Fate::kNotSent);
  // A client that ended after two seconds and a half: the last call was never due.
  std::vector<CallRecord> cut = calls;
  Settle(2.5, &cut);
  ASSERT_EQ(cut.size(), 3u);
  EXPECT_EQ(cut[2].due, 2);
}

TEST(LoadClient, CallsOfAnOpenLoopAreScheduled) {
  LoadContext context;
  context.load.rate_hz = 4;
  context.seconds = 2;
  const std::vector<CallRecord> calls = ScheduledCalls(context, 0.5);
  ASSERT_EQ(calls.size(), 8u);
  EXPECT_DOUBLE_EQ(calls[1].due, 0.375);
  for (const CallRecord& call : calls) EXPECT_EQ(call.fate, Fate::kNotSent);
}

TEST(LoadClient, FieldsAreCountedAsTheyTravel) {
  Geometry geometry;
  geometry.size = {2, 3, 4};
  const std::pair<v1::FieldEncoding, int64_t> cases[] = {{v1::FIELD_ENCODING_FLOAT32, 4},
                                                         {v1::FIELD_ENCODING_VELOCITY, 4},
                                                         {v1::FIELD_ENCODING_CONTROL_POINTS, 4},
                                                         {v1::FIELD_ENCODING_FLOAT16, 2},
                                                         {v1::FIELD_ENCODING_INT16, 2}};
  for (const auto& [encoding, bytes_a_value] : cases) {
    client::GridData data;
    int64_t bytes = 7;
    const client::GridSink sink = CountingSink(encoding, &data, &bytes);
    ASSERT_TRUE(sink(geometry, 72).ok());
    EXPECT_EQ(bytes, 7 + 72 * bytes_a_value);
    EXPECT_EQ(data.values.size(), 72u);
  }
}

TEST(LoadClient, AWaitEndsAtItsTimeOrWithAnInterruption) {
  client::Cancellation interrupt;
  const LoadClock clock(LoadClock::Clock::now(), &interrupt);
  EXPECT_TRUE(clock.SleepUntil(-1));
  EXPECT_TRUE(clock.SleepUntil(0.02));
  EXPECT_GE(clock.Now(), 0.02);
  interrupt.Cancel();
  EXPECT_FALSE(clock.SleepUntil(1e6));
}

}  // namespace
}  // namespace intrawarp::cli::bench
