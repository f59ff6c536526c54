// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/job_control.h"

#include <gtest/gtest.h>

#include <vector>

namespace intrawarp::server {
namespace {

using std::chrono::hours;
using std::chrono::nanoseconds;
using std::chrono::system_clock;

TEST(JobControlTest, GoesOnUntilItIsCancelled) {
  JobControl control(std::nullopt);
  EXPECT_EQ(control.Check({}), Decision::kContinue);

  control.Cancel();

  EXPECT_TRUE(control.cancelled());
  EXPECT_EQ(control.Check({}), Decision::kCancel);
  EXPECT_EQ(control.CancelStatus().code(), absl::StatusCode::kCancelled);
}

TEST(JobControlTest, ADeadlineCancels) {
  JobControl early(system_clock::now() - hours(1)), late(system_clock::now() + hours(1));

  EXPECT_EQ(early.Check({}), Decision::kCancel);
  EXPECT_EQ(early.CancelStatus().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.Check({}), Decision::kContinue);
}

TEST(JobControlTest, ABudgetStopsAndCanBeginAnew) {
  JobControl control(std::nullopt);
  control.StartBudget(nanoseconds(1));
  EXPECT_EQ(control.Check({}), Decision::kStop);
  EXPECT_FALSE(control.cancelled());
  control.StartBudget(hours(1));
  EXPECT_EQ(control.Check({}), Decision::kContinue);
  control.StartBudget(nanoseconds(1));
  control.StartBudget(std::nullopt);
  EXPECT_EQ(control.Check({}), Decision::kContinue);

  control.StartBudget(nanoseconds(1));
  control.Cancel();
  EXPECT_EQ(control.Check({}), Decision::kCancel);
}

TEST(JobControlTest, ABudgetDoesNotRunWhileTheJobIsHeld) {
  JobControl control(std::nullopt);
  control.Held(hours(1));  // without a budget
  control.StartBudget(nanoseconds(1));
  control.Held(hours(1));
  EXPECT_EQ(control.Check({}), Decision::kContinue);
}

TEST(JobControlTest, ProgressIsReportedForEachLevelAndOtherwiseSparsely) {
  JobControl control(std::nullopt);
  std::vector<Progress> reported;
  control.set_on_progress([&](const Progress& progress) { reported.push_back(progress); });
  constexpr int kIterations = 1000;  // in far less than a thousand intervals
  for (int level = 0; level < 3; ++level) {
    for (int i = 0; i < kIterations; ++i) control.Check({0, level, 3, i, 1.0});
  }

  ASSERT_GE(reported.size(), 3);
  EXPECT_LT(reported.size(), kIterations);
  std::vector<int> first_of_levels;
  for (const Progress& progress : reported) {
    if (progress.iteration == 0) first_of_levels.push_back(progress.level);
  }
  EXPECT_EQ(first_of_levels, (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace intrawarp::server
