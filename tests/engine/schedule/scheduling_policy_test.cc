// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduling_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace intrawarp {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using Turn = SchedulingPolicy::Turn;

constexpr JobClass kFrame = JobClass::kFrame, kInteractive = JobClass::kInteractive, kBatch = JobClass::kBatch;

SchedulerClock::Time At(int64_t ms) { return SchedulerClock::Time(milliseconds(ms)); }

// Everything happens at the time 0 unless a test says otherwise.
class SchedulingPolicyTest : public testing::Test {
 protected:
  explicit SchedulingPolicyTest(const SchedulingOptions& options = {}) : policy_(options) {}
  void Push(int64_t job, JobClass job_class, std::optional<SchedulerClock::Time> deadline = std::nullopt,
            int64_t ms = 0) {
    EXPECT_TRUE(policy_.Push(job, job_class, deadline, At(ms)).ok());
  }
  // Runs the next job from its start to its end.
  int64_t RunNext() {
    const std::optional<Turn> turn = policy_.Grant(At(0));
    if (!turn) return -1;
    policy_.Finish(turn->job_class, At(0));
    return turn->job;
  }
  SchedulingPolicy policy_;
};

TEST_F(SchedulingPolicyTest, OrdersByClassThenDeadlineThenArrival) {
  Push(1, kBatch);
  Push(2, kInteractive);
  Push(3, kInteractive, At(200));
  Push(4, kInteractive, At(100));
  Push(5, kInteractive, At(200));
  Push(6, kInteractive);
  Push(7, kFrame);
  for (int64_t job : {7, 4, 3, 5, 2, 6, 1, -1}) EXPECT_EQ(RunNext(), job);
}

TEST_F(SchedulingPolicyTest, GivesWayToABetterClassAlone) {
  Push(1, kInteractive);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 1}));
  Push(2, kInteractive, At(1));
  Push(3, kBatch);
  EXPECT_FALSE(policy_.ShouldYield(At(0)));
  Push(4, kFrame);
  EXPECT_TRUE(policy_.ShouldYield(At(0)));
  policy_.Yield(At(0));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 4}));
  EXPECT_TRUE(policy_.started(kInteractive));
  policy_.Finish(kFrame, At(0));
  // The held job goes on before others of its class.
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 1}));
}

TEST_F(SchedulingPolicyTest, AJobExpiresAtItsDeadlineWhileItWaits) {
  Push(1, kFrame, At(10));
  Push(2, kBatch, At(20));
  Push(3, kInteractive);
  EXPECT_EQ(policy_.NextDeadline(), At(10));
  EXPECT_THAT(policy_.TakeExpired(At(9)), ElementsAre());
  EXPECT_THAT(policy_.TakeExpired(At(10)), ElementsAre(1));
  EXPECT_EQ(policy_.NextDeadline(), At(20));
  EXPECT_EQ(policy_.Grant(At(10)), (Turn{kInteractive, 3}));
  EXPECT_THAT(policy_.TakeExpired(At(30)), ElementsAre(2));
  EXPECT_EQ(policy_.NextDeadline(), std::nullopt);
}

TEST_F(SchedulingPolicyTest, AnAbandonedJobKeepsItsPlaceAndNeverComputes) {
  Push(1, kBatch);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 1}));
  policy_.Yield(At(0));
  policy_.Abandon(kBatch, At(0));
  Push(2, kBatch);
  EXPECT_EQ(policy_.Grant(At(0)), std::nullopt);
  policy_.Finish(kBatch, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 2}));
}

class SmallQueuesTest : public SchedulingPolicyTest {
 protected:
  SmallQueuesTest() : SchedulingPolicyTest({.capacity = {1, 2, 1}}) {}
};

TEST_F(SmallQueuesTest, AClassFillsItsOwnQueueAlone) {
  Push(1, kBatch);
  const absl::Status full = policy_.Push(2, kBatch, std::nullopt, At(0));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "the queue of class batch is full: 1 jobs wait, 1 may");
  Push(3, kInteractive);
  Push(4, kInteractive);
  Push(5, kFrame);
  EXPECT_FALSE(policy_.Push(6, kInteractive, std::nullopt, At(0)).ok());
  EXPECT_TRUE(policy_.Remove(3, At(0)));
  EXPECT_FALSE(policy_.Remove(3, At(0)));
  Push(7, kInteractive);
}

// A frame of 30 ms after another, without a pause, and a batch job with a checkpoint every 2 ms.
TEST_F(SchedulingPolicyTest, FramesWithoutAPauseLeaveBatchItsShare) {
  int64_t now = 0, next = 1, batch_ms = 0;
  Push(0, kBatch);
  Push(next++, kFrame);
  while (now < 30000) {
    const std::optional<Turn> turn = policy_.Grant(At(now));
    ASSERT_TRUE(turn.has_value());
    if (turn->job_class == kFrame) {
      now += 30;
      Push(next++, kFrame, std::nullopt, now);
      policy_.Finish(kFrame, At(now));
      continue;
    }
    const int64_t begin = now;
    do now += 2;
    while (!policy_.ShouldYield(At(now)));
    policy_.Yield(At(now));
    EXPECT_LE(now - begin, 15) << "a turn of 10 ms, the share of the frame that was not interrupted, a checkpoint";
    batch_ms += now - begin;
  }
  const double share = static_cast<double>(batch_ms) / static_cast<double>(now);
  EXPECT_GE(share, 0.05);
  EXPECT_LE(share, 0.06) << "a checkpoint more in each turn";
}

TEST_F(SchedulingPolicyTest, WhoComputesWhileNobodyElseWantsToOwesNothing) {
  Push(1, kBatch);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 1}));
  Push(2, kFrame, std::nullopt, 1000);
  EXPECT_TRUE(policy_.ShouldYield(At(1000)));
  policy_.Yield(At(1000));
  // 200 ms of frames at a share of 1/20 make a turn of 10 ms.
  for (int64_t ms = 1000; ms < 1200; ms += 50) {
    EXPECT_EQ(policy_.Grant(At(ms))->job_class, kFrame);
    Push(ms, kFrame, std::nullopt, ms + 50);
    policy_.Finish(kFrame, At(ms + 50));
  }
  EXPECT_EQ(policy_.Grant(At(1200)), (Turn{kBatch, 1}));
}

}  // namespace
}  // namespace intrawarp
