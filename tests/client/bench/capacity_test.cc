// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace intrawarp::cli::bench {
namespace {

using ::testing::HasSubstr;

Summary FramesInTime(int64_t due, int64_t in_time) {
  Summary summary;
  summary.due = due;
  summary.fates[static_cast<size_t>(Fate::kOk)] = due;
  summary.late = due - in_time;
  summary.latency.p50 = 12;
  summary.latency.max = 34.56;
  return summary;
}

LoadOptions TenHertz() {
  LoadOptions load;
  load.encoding = "none";
  load.rate_hz = 10;
  load.limit_ms = 100;
  return load;
}

// A server that keeps up with `fit` sessions.
Capacity Find(int fit, const CapacityOptions& options, std::vector<int>* tried) {
  const auto found = FindCapacity({.size = 64, .method = "affine", .options = {}}, options, [&](int sessions) {
    tried->push_back(sessions);
    return FramesInTime(100, sessions <= fit ? 100 : 97);
  });
  EXPECT_TRUE(found.ok());
  return *found;
}

TEST(Capacity, StopsAtTheFirstLateFrame) {
  std::vector<int> tried;
  const Capacity capacity = Find(3, {.max_sessions = 16, .late_percent = 0}, &tried);
  EXPECT_EQ(tried, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(capacity.sessions(), 3);
  EXPECT_FALSE(capacity.is_open());
  EXPECT_EQ(CapacityRow(capacity, TenHertz()), "| 64^3 | affine | none | 3 | 12.0 | - | 34.6 | 3 of 100 |\n");
}

TEST(Capacity, SaysWhenItIsNotTheEnd) {
  std::vector<int> tried;
  const Capacity capacity = Find(99, {.max_sessions = 2, .late_percent = 0}, &tried);
  EXPECT_EQ(capacity.sessions(), 2);
  EXPECT_TRUE(capacity.is_open());
  EXPECT_THAT(CapacityRow(capacity, TenHertz()), HasSubstr("| at least 2 |"));
  EXPECT_THAT(CapacityRow(capacity, TenHertz()), HasSubstr("not tried"));
}

TEST(Capacity, MayBeNoSessionAtAll) {
  std::vector<int> tried;
  const Capacity capacity = Find(0, {.max_sessions = 16, .late_percent = 0}, &tried);
  EXPECT_EQ(tried, (std::vector<int>{1}));
  EXPECT_EQ(capacity.sessions(), 0);
  EXPECT_EQ(CapacityRow(capacity, TenHertz()), "| 64^3 | affine | none | 0 | - | - | - | 3 of 100 |\n");
}

TEST(Capacity, TheCriterionCountsEveryFrameThatWasDue) {
  EXPECT_TRUE(Passes(FramesInTime(100, 100), 0));
  EXPECT_FALSE(Passes(FramesInTime(100, 99), 0));
  EXPECT_TRUE(Passes(FramesInTime(100, 99), 1));
  EXPECT_FALSE(Passes(FramesInTime(100, 98), 1));
  EXPECT_FALSE(Passes(FramesInTime(0, 0), 50));
  Summary not_sent = FramesInTime(10, 10);
  ++not_sent.due;
  ++not_sent.fates[static_cast<size_t>(Fate::kNotSent)];
  EXPECT_FALSE(Passes(not_sent, 0));
  Summary refused = FramesInTime(10, 10);
  refused.not_opened["RESOURCE_EXHAUSTED TOO_MANY_SESSIONS"] = 1;
  EXPECT_FALSE(Passes(refused, 50));
}

TEST(Capacity, AnErrorOfTheLoadIsTheAnswer) {
  const auto found =
      FindCapacity({}, {.max_sessions = 4}, [](int) -> absl::StatusOr<Summary> { return absl::AbortedError("gone"); });
  EXPECT_EQ(found.status(), absl::AbortedError("gone"));
}

TEST(Capacity, TheHeaderNamesRateAndLimit) {
  const std::string header = CapacityHeader(TenHertz());
  EXPECT_THAT(header, HasSubstr("sessions at 10 Hz"));
  EXPECT_THAT(header, HasSubstr("not within 100 ms"));
  EXPECT_EQ(std::count(header.begin(), header.end(), '\n'), 2);
}

}  // namespace
}  // namespace intrawarp::cli::bench
