// SPDX-License-Identifier: Apache-2.0
#include "server/job/job_control.h"

#include <gtest/gtest.h>

#include <vector>

#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

// The steady clock stands still until a test moves it; the wall clock jumps wherever a test likes.
class JobControlTest : public testing::Test {
 protected:
  steady_clock::time_point now_ = steady_clock::time_point(std::chrono::hours(100));
  std::chrono::system_clock::time_point wall_;
  Seams seams_{[] { return 0u; }, [this] { return now_; }, [this] { return wall_; }};
  JobControl control_{seams_, std::nullopt};
};

TEST_F(JobControlTest, GoesOnUntilItIsCancelled) {
  EXPECT_EQ(control_.Check({}), Decision::kContinue);

  control_.Cancel();

  EXPECT_TRUE(control_.cancelled());
  EXPECT_EQ(control_.Check({}), Decision::kCancel);
  EXPECT_EQ(control_.CancelStatus().code(), absl::StatusCode::kCancelled);
}

TEST_F(JobControlTest, ADeadlineCancelsBySteadyTimeAlone) {
  JobControl control(seams_, now_ + milliseconds(100));

  wall_ += std::chrono::hours(1);  // a step of the wall clock
  EXPECT_EQ(control.Check({}), Decision::kContinue);
  now_ += milliseconds(99);
  EXPECT_EQ(control.Check({}), Decision::kContinue);
  wall_ -= std::chrono::hours(2);
  now_ += milliseconds(1);
  EXPECT_EQ(control.Check({}), Decision::kCancel);
  EXPECT_EQ(control.CancelStatus().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(JobControlTest, ABudgetStopsAndCanBeginAnew) {
  control_.StartBudget(milliseconds(10));
  EXPECT_EQ(control_.Check({}), Decision::kContinue);
  now_ += milliseconds(10);
  EXPECT_EQ(control_.Check({}), Decision::kStop);
  EXPECT_FALSE(control_.cancelled());
  control_.StartBudget(milliseconds(10));
  EXPECT_EQ(control_.Check({}), Decision::kContinue);
  control_.StartBudget(std::nullopt);
  now_ += milliseconds(10);
  EXPECT_EQ(control_.Check({}), Decision::kContinue);

  control_.StartBudget(nanoseconds(0));
  control_.Cancel();
  EXPECT_EQ(control_.Check({}), Decision::kCancel);
}

TEST_F(JobControlTest, ABudgetDoesNotRunWhileTheJobIsHeld) {
  control_.Held(milliseconds(10));  // without a budget
  control_.StartBudget(milliseconds(10));
  now_ += milliseconds(15);
  control_.Held(milliseconds(10));
  EXPECT_EQ(control_.Check({}), Decision::kContinue);
  now_ += milliseconds(5);
  EXPECT_EQ(control_.Check({}), Decision::kStop);
}

TEST_F(JobControlTest, WithoutABudgetItEndsAfterTheLongestTimeThatItComputed) {
  JobControl control(seams_, std::nullopt, milliseconds(100));
  now_ += milliseconds(500);  // before it began
  EXPECT_EQ(control.Check({}), Decision::kContinue);
  now_ += milliseconds(150);
  control.Held(milliseconds(60));
  EXPECT_EQ(control.Check({}), Decision::kContinue);
  EXPECT_FALSE(control.cancelled());
  now_ += milliseconds(10);
  EXPECT_EQ(control.Check({}), Decision::kCancel);
  EXPECT_TRUE(control.cancelled());
  const absl::Status why = control.CancelStatus();
  EXPECT_EQ(why.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(why), v1::RUN_TIME_USED_UP);
}

TEST_F(JobControlTest, TheLongestTimeIsADetachedJobsTooButNotThatOfABudget) {
  JobControl detached(seams_, std::nullopt, milliseconds(100)), with_budget(seams_, std::nullopt, milliseconds(100));
  detached.Detach();
  with_budget.StartBudget(std::chrono::seconds(1));
  EXPECT_EQ(detached.Check({}), Decision::kContinue);
  EXPECT_EQ(with_budget.Check({}), Decision::kContinue);
  now_ += milliseconds(100);
  EXPECT_EQ(detached.Check({}), Decision::kCancel);
  EXPECT_EQ(ReasonOf(detached.CancelStatus()), v1::RUN_TIME_USED_UP);
  EXPECT_EQ(with_budget.Check({}), Decision::kContinue);
}

TEST_F(JobControlTest, ACheckpointWithoutLevelsReportsNothing) {
  int reported = 0;
  control_.set_on_progress([&](const Progress&) { ++reported; });
  control_.Check({});
  EXPECT_EQ(reported, 0);
}

TEST_F(JobControlTest, ProgressIsReportedForEachLevelAndOtherwiseEvery50Milliseconds) {
  std::vector<int> reported;
  control_.set_on_progress([&](const Progress& progress) { reported.push_back(progress.iteration); });
  for (int level = 0; level < 2; ++level) {
    for (int i = 0; i < 12; ++i) {
      control_.Check({0, level, 2, i, 1.0});
      now_ += milliseconds(10);
    }
  }

  EXPECT_EQ(reported, (std::vector<int>{0, 5, 10, 0, 5, 10}));
}

}  // namespace
}  // namespace intrawarp::server
