// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/scheduling_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "engine/schedule/retry_after.h"
#include "engine/schedule/unreachable.h"

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
    EXPECT_TRUE(policy_.Push(job, {job_class, deadline, std::nullopt}, At(ms)).ok());
  }
  // A job that will compute for so long.
  absl::Status Admit(int64_t job, JobClass job_class, int64_t deadline_ms, int64_t predicted_ms, int64_t ms = 0) {
    return policy_.Push(job, {job_class, At(deadline_ms), milliseconds(predicted_ms)}, At(ms));
  }
  // Runs the next job from its start to its end.
  int64_t RunNext() {
    const std::optional<Turn> turn = policy_.Grant(At(0));
    if (!turn) return -1;
    policy_.Finish(turn->job, At(0));
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
  EXPECT_FALSE(policy_.ShouldYield(1, At(0)));
  Push(4, kFrame);
  EXPECT_TRUE(policy_.ShouldYield(1, At(0)));
  policy_.Yield(1, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 4}));
  EXPECT_EQ(policy_.started(kInteractive), 1);
  policy_.Finish(4, At(0));
  // A class with one lane finishes what it has begun.
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

TEST_F(SchedulingPolicyTest, AJobThatHasLessTimeLeftThanItIsExpectedToTakeLeavesTheQueue) {
  ASSERT_TRUE(
      policy_.Push(1, {.job_class = kInteractive, .deadline = At(100), .expected = milliseconds(30)}, At(0)).ok());
  Push(2, kInteractive, At(90));
  EXPECT_EQ(policy_.NextDeadline(), At(70) + SchedulerClock::Duration(1));
  EXPECT_THAT(policy_.TakeExpired(At(70)), ElementsAre()) << "the time suffices just now";
  EXPECT_THAT(policy_.TakeExpired(At(71)), ElementsAre(1));
  EXPECT_EQ(policy_.NextDeadline(), At(90));
}

TEST_F(SchedulingPolicyTest, AStartedJobIsNotTakenOutForWantOfTime) {
  ASSERT_TRUE(
      policy_.Push(1, {.job_class = kInteractive, .deadline = At(100), .expected = milliseconds(30)}, At(0)).ok());
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 1}));
  EXPECT_EQ(policy_.NextDeadline(), std::nullopt);
  EXPECT_THAT(policy_.TakeExpired(At(200)), ElementsAre());
}

TEST_F(SchedulingPolicyTest, AJobWithoutADeadlineGoesBeforeDeadlinesAfterItsDueTime) {
  ASSERT_TRUE(policy_.Push(1, {.job_class = kInteractive, .due = At(50)}, At(0)).ok());
  Push(2, kInteractive, At(60));
  Push(3, kInteractive, At(40));
  Push(4, kInteractive);
  EXPECT_THAT(policy_.TakeExpired(At(55)), ElementsAre(3)) << "and it never expires";
  for (int64_t job : {1, 2, 4}) EXPECT_EQ(RunNext(), job);
}

TEST_F(SchedulingPolicyTest, AJobWithoutADeadlineStandsBackWhereItWouldMakeAnotherOneLate) {
  ASSERT_TRUE(Admit(1, kInteractive, 60, 50).ok());
  ASSERT_TRUE(policy_.Push(2, {.job_class = kInteractive, .predicted = milliseconds(20), .due = At(50)}, At(0)).ok());
  for (int64_t job : {1, 2}) EXPECT_EQ(RunNext(), job);
}

TEST_F(SchedulingPolicyTest, AnAbandonedJobKeepsItsPlaceAndNeverComputes) {
  Push(1, kBatch);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 1}));
  policy_.Yield(1, At(0));
  policy_.Abandon(1, At(0));
  Push(2, kBatch);
  EXPECT_EQ(policy_.Grant(At(0)), std::nullopt);
  policy_.Finish(1, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 2}));
}

class SmallQueuesTest : public SchedulingPolicyTest {
 protected:
  SmallQueuesTest() : SchedulingPolicyTest({.capacity = {1, 2, 1}}) {}
};

TEST_F(SmallQueuesTest, AClassFillsItsOwnQueueAlone) {
  Push(1, kBatch);
  const absl::Status full = policy_.Push(2, {kBatch}, At(0));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "the queue of class batch is full: 1 jobs wait, 1 may");
  Push(3, kInteractive);
  Push(4, kInteractive);
  Push(5, kFrame);
  EXPECT_FALSE(policy_.Push(6, {kInteractive}, At(0)).ok());
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
      policy_.Finish(turn->job, At(now));
      continue;
    }
    const int64_t begin = now;
    do now += 2;
    while (!policy_.ShouldYield(turn->job, At(now)));
    policy_.Yield(turn->job, At(now));
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
  EXPECT_TRUE(policy_.ShouldYield(1, At(1000)));
  policy_.Yield(1, At(1000));
  // 200 ms of frames at a share of 1/20 make a turn of 10 ms.
  for (int64_t ms = 1000; ms < 1200; ms += 50) {
    const std::optional<Turn> turn = policy_.Grant(At(ms));
    ASSERT_TRUE(turn.has_value());
    EXPECT_EQ(turn->job_class, kFrame);
    Push(ms, kFrame, std::nullopt, ms + 50);
    policy_.Finish(turn->job, At(ms + 50));
  }
  EXPECT_EQ(policy_.Grant(At(1200)), (Turn{kBatch, 1}));
}

TEST_F(SchedulingPolicyTest, RefusesWhatCannotMakeItsDeadlineWithTheTimeToComeBack) {
  EXPECT_TRUE(Admit(1, kFrame, 100, 30).ok());
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 1}));
  EXPECT_TRUE(Admit(2, kFrame, 100, 30).ok());
  // 20 ms of the first and 30 of the second are left.
  const absl::Status late = Admit(3, kFrame, 100, 50, 10);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.message(), "the deadline cannot be met: 90 ms are left, the job takes 50 ms after a wait of 50 ms");
  EXPECT_EQ(RetryAfterOf(late), milliseconds(10));
  EXPECT_TRUE(Admit(4, kFrame, 100, 40, 10).ok());
  // Too long for any wait: there is no time to come back.
  EXPECT_EQ(RetryAfterOf(Admit(5, kInteractive, 100, 91, 10)), std::nullopt);
  // A batch job waits for all of them; nothing is known of one that predicts nothing.
  EXPECT_EQ(RetryAfterOf(Admit(6, kBatch, 180, 81, 10)), milliseconds(1));
  Push(7, kBatch, At(11), 10);
}

TEST_F(SchedulingPolicyTest, AnAdmittedDeadlineIsNotGivenToAnother) {
  EXPECT_TRUE(Admit(1, kInteractive, 100, 60).ok());
  const absl::Status late = Admit(2, kInteractive, 90, 41);
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(RetryAfterOf(late), milliseconds(60));
  EXPECT_TRUE(Admit(3, kInteractive, 90, 39).ok());
  EXPECT_EQ(RunNext(), 3);
  EXPECT_EQ(RunNext(), 1);
}

TEST_F(SmallQueuesTest, AFullQueueSaysWhenToComeBack) {
  EXPECT_TRUE(Admit(1, kBatch, 1000, 70).ok());
  EXPECT_EQ(RetryAfterOf(policy_.Push(2, {kBatch}, At(0))), milliseconds(70));
}

class SeveralSlotsTest : public SchedulingPolicyTest {
 protected:
  SeveralSlotsTest() : SchedulingPolicyTest({.lanes = {3, 2, 2}, .slots = 2}) {}
};

TEST_F(SeveralSlotsTest, JobsOfAClassComputeAtOnce) {
  for (int64_t job : {1, 2, 3}) Push(job, kFrame);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 1}));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 2}));
  EXPECT_EQ(policy_.Grant(At(0)), std::nullopt);
  policy_.Finish(1, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 3}));
}

TEST_F(SeveralSlotsTest, AnEarlierDeadlineOvertakesAHeldJobOfItsClass) {
  Push(1, kInteractive, At(100));
  Push(2, kInteractive, At(200));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 1}));
  Push(3, kFrame);
  Push(4, kFrame);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 3}));
  EXPECT_TRUE(policy_.ShouldYield(1, At(0)));
  policy_.Yield(1, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 4}));
  Push(5, kInteractive, At(50));
  policy_.Finish(3, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), std::nullopt) << "beside a frame";
  policy_.Finish(4, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 5}));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 1}));
  EXPECT_EQ(policy_.Grant(At(0)), std::nullopt);
}

TEST_F(SeveralSlotsTest, BatchGivesWayToAFrameThatFoundAFreeSlot) {
  Push(1, kBatch);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 1}));
  Push(2, kFrame);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 2}));
  EXPECT_TRUE(policy_.ShouldYield(1, At(0)));
  policy_.Yield(1, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), std::nullopt);
  policy_.Finish(2, At(0));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 1}));
}

// A job of 20 ms alone and of 40 ms beside another one.
class CrowdedTest : public SeveralSlotsTest {
 protected:
  absl::Status AdmitPair(int64_t job, int64_t deadline_ms) {
    return policy_.Push(job,
                        {.job_class = kInteractive,
                         .deadline = At(deadline_ms),
                         .predicted = milliseconds(20),
                         .crowded = milliseconds(40)},
                        At(0));
  }
};

TEST_F(CrowdedTest, AJobAloneIsAdmittedByItsCostAlone) {
  EXPECT_TRUE(IsUnreachable(AdmitPair(1, 19)));
  EXPECT_TRUE(AdmitPair(2, 20).ok());
}

TEST_F(CrowdedTest, ASecondJobIsAdmittedByItsCrowdedCost) {
  ASSERT_TRUE(AdmitPair(1, 1000).ok());
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 1}));
  const absl::Status refused = AdmitPair(2, 59);
  EXPECT_TRUE(IsUnreachable(refused));
  EXPECT_TRUE(RetryAfterOf(refused).has_value()) << "alone the job could be in time";
  EXPECT_TRUE(AdmitPair(3, 60).ok()) << "half of the first one's crowded cost, and its own";
}

TEST_F(CrowdedTest, ASecondJobDoesNotMakeTheFirstLate) {
  ASSERT_TRUE(AdmitPair(1, 30).ok());
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 1}));
  EXPECT_TRUE(IsUnreachable(AdmitPair(2, 1000)));
  policy_.Finish(1, At(20));
  EXPECT_TRUE(AdmitPair(3, 1000).ok());
}

TEST_F(CrowdedTest, KnowsWhoComputedBesideOthers) {
  Push(1, kInteractive);
  Push(2, kInteractive);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kInteractive, 1}));
  EXPECT_EQ(policy_.Grant(At(10)), (Turn{kInteractive, 2}));
  EXPECT_FALSE(policy_.WasCrowded(1, At(20))) << "for half of the time";
  EXPECT_TRUE(policy_.WasCrowded(1, At(21)));
  EXPECT_TRUE(policy_.WasCrowded(2, At(21)));
}

class MixedTest : public SchedulingPolicyTest {
 protected:
  MixedTest() : SchedulingPolicyTest({.lanes = {3, 2, 2}, .slots = 2, .mixed = true}) {}
};

TEST_F(MixedTest, BatchGivesWayOnlyWhereNoSlotIsFree) {
  Push(1, kBatch);
  Push(2, kFrame);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 2}));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 1}));
  EXPECT_FALSE(policy_.ShouldYield(1, At(0)));
  Push(3, kFrame);
  EXPECT_TRUE(policy_.ShouldYield(1, At(0)));
}

class PartitionedTest : public SchedulingPolicyTest {
 protected:
  PartitionedTest() : SchedulingPolicyTest({.partitioned = true}) {}
};

TEST_F(PartitionedTest, BatchComputesBesideTheOthers) {
  Push(1, kBatch);
  Push(2, kInteractive);
  Push(3, kFrame);
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kFrame, 3}));
  EXPECT_EQ(policy_.Grant(At(0)), (Turn{kBatch, 1}));
  EXPECT_EQ(policy_.Grant(At(0)), std::nullopt);
  EXPECT_FALSE(policy_.ShouldYield(1, At(0)));
}

TEST_F(PartitionedTest, OthersHaveTheWholeDeviceWhileNoFramesAreOpen) {
  for (bool open : {false, true, false}) {
    policy_.SetFramesOpen(open);
    EXPECT_FALSE(policy_.MayUseWhole(kFrame));
    EXPECT_EQ(policy_.MayUseWhole(kInteractive), !open);
    EXPECT_EQ(policy_.MayUseWhole(kBatch), !open);
  }
}

class BesideFramesTest : public SchedulingPolicyTest {
 protected:
  BesideFramesTest()
      : SchedulingPolicyTest(
            {.lanes = {4, 6, 1}, .at_once = {4, 4, 1}, .beside_frames = {0, 2, 0}, .slots = 4, .partitioned = true}) {}
  // Starts what may compute; how many jobs did.
  int GrantAll(int64_t ms) {
    int count = 0;
    while (policy_.Grant(At(ms))) ++count;
    return count;
  }
};

TEST_F(BesideFramesTest, FewerJobsOfAClassComputeWhileFramesAreOpen) {
  for (int64_t job = 1; job <= 6; ++job) Push(job, kInteractive);
  policy_.SetFramesOpen(true);
  EXPECT_EQ(GrantAll(0), 2);
  policy_.SetFramesOpen(false);
  EXPECT_EQ(GrantAll(0), 2) << "four in all";
  policy_.SetFramesOpen(true);
  policy_.Finish(1, At(1));
  EXPECT_EQ(GrantAll(1), 0) << "three are left";
  policy_.Finish(2, At(1));
  policy_.Finish(3, At(1));
  EXPECT_EQ(GrantAll(1), 1);
}

TEST_F(BesideFramesTest, FramesAndBatchAreNotLimited) {
  for (int64_t job = 1; job <= 4; ++job) Push(job, kFrame);
  Push(5, kBatch);
  policy_.SetFramesOpen(true);
  EXPECT_EQ(GrantAll(0), 5);
}

// Owners "a", "b" and so on; on one slot, with more lanes than jobs at once.
class TurnsTest : public SchedulingPolicyTest {
 protected:
  explicit TurnsTest(SchedulingOptions options = Options()) : SchedulingPolicyTest(options) {}
  static SchedulingOptions Options() {
    return {.lanes = {2, 4, 2},
            .at_once = {1, 1, 1},
            .short_lanes = {0, 1, 0},
            .owner_turn = milliseconds(50),
            .owner_credit = milliseconds(200),
            .most_guarded = milliseconds(1000)};
  }
  void PushOf(const std::string& owner, int64_t job, int64_t ms, bool is_short = false) {
    EXPECT_TRUE(policy_.Push(job, {.job_class = kInteractive, .owner = owner, .is_short = is_short}, At(ms)).ok());
  }
  // Lets jobs compute with a checkpoint every 5 ms; which one computed last, and for how long each.
  std::map<int64_t, int64_t> ComputeUntil(int64_t ms) {
    std::map<int64_t, int64_t> computed;
    while (now_ < ms) {
      if (!computing_) computing_ = policy_.Grant(At(now_))->job;
      now_ += 5;
      computed[*computing_] += 5;
      if (!policy_.ShouldYield(*computing_, At(now_))) continue;
      policy_.Yield(*computing_, At(now_));
      computing_.reset();
    }
    return computed;
  }
  void End(int64_t job) {
    policy_.Finish(job, At(now_));
    computing_.reset();
  }

  int64_t now_ = 0;
  std::optional<int64_t> computing_;
};

TEST_F(TurnsTest, OwnersOfAClassComputeInTurnsForEqualTimes) {
  PushOf("a", 1, 0);
  PushOf("b", 2, 0);
  PushOf("c", 3, 0);
  const std::map<int64_t, int64_t> computed = ComputeUntil(3000);
  for (const auto& [job, ms] : computed) EXPECT_NEAR(static_cast<double>(ms), 1000, 200) << job;
  EXPECT_EQ(computed.size(), 3);
}

TEST_F(TurnsTest, WhoeverComesGoesFirstForAsLongAsItsCredit) {
  PushOf("a", 1, 0);
  ComputeUntil(1000);
  PushOf("b", 2, 1000);
  EXPECT_THAT(ComputeUntil(1005), ElementsAre(std::pair<int64_t, int64_t>(1, 5))) << "until the next checkpoint";
  EXPECT_THAT(ComputeUntil(1205), ElementsAre(std::pair<int64_t, int64_t>(2, 200)));
  const std::map<int64_t, int64_t> later = ComputeUntil(3205);
  EXPECT_NEAR(static_cast<double>(later.at(1)), 1000, 110);
}

// The last job of "b" ends just after the first one of "a" came, and "b" comes back.
TEST_F(TurnsTest, AJobThatJustEndsGivesNobodyCredit) {
  PushOf("b", 1, 0);
  ComputeUntil(20);
  PushOf("a", 2, 20);
  End(1);
  ComputeUntil(120);
  PushOf("b", 3, 120);
  EXPECT_TRUE(policy_.ShouldYield(2, At(120)));
}

TEST_F(TurnsTest, CreditIsNotHadTwice) {
  PushOf("a", 1, 0);
  ComputeUntil(1000);
  int64_t b = 0;
  for (int64_t job = 2; job < 42; ++job) {
    PushOf("b", job, now_);
    int64_t own = 0;
    while (own < 50 || computing_ != job) own += ComputeUntil(now_ + 5)[job];
    b += own;
    End(job);
  }
  EXPECT_LE(b, (now_ - 1000) / 2 + 200 + 100) << "half of the time, its credit and a turn";
}

TEST_F(TurnsTest, AnOwnerHoldsNoMoreLanesThanItsJobsComputeAtOnce) {
  for (int64_t job = 1; job <= 6; ++job) PushOf("a", job, 0);
  PushOf("b", 7, 0);
  ComputeUntil(500);
  EXPECT_EQ(policy_.started(kInteractive), 2) << "one of each";
}

TEST_F(TurnsTest, ShortWorkOfTheSameOwnerNeedNotWaitForItsLongWork) {
  PushOf("a", 1, 0);
  ComputeUntil(1000);
  PushOf("a", 2, 1000, /*is_short=*/true);
  EXPECT_TRUE(policy_.ShouldYield(1, At(1000)));
}

TEST_F(TurnsTest, TheLastLaneIsForShortWork) {
  for (int64_t owner = 0; owner < 5; ++owner) PushOf(std::string(1, static_cast<char>('a' + owner)), owner, 0);
  ComputeUntil(2000);
  EXPECT_EQ(policy_.started(kInteractive), 3);
  PushOf("f", 10, 2000, /*is_short=*/true);
  ComputeUntil(2100);
  EXPECT_EQ(policy_.started(kInteractive), 4);
}

TEST_F(TurnsTest, ATurnWaitsForAPredictionThatItWouldBreakButNotForEver) {
  ASSERT_TRUE(
      policy_
          .Push(1, {.job_class = kInteractive, .deadline = At(5000), .predicted = milliseconds(4990), .owner = "a"},
                At(0))
          .ok());
  ComputeUntil(100);
  PushOf("b", 2, 100);
  EXPECT_FALSE(policy_.ShouldYield(1, At(1000)));
  EXPECT_TRUE(policy_.ShouldYield(1, At(1100)));
}

TEST_F(TurnsTest, ATurnUsesTheTimeThatADeadlineHasToSpare) {
  ASSERT_TRUE(
      policy_
          .Push(1, {.job_class = kInteractive, .deadline = At(9000), .predicted = milliseconds(1000), .owner = "a"},
                At(0))
          .ok());
  ComputeUntil(100);
  PushOf("b", 2, 100);
  EXPECT_TRUE(policy_.ShouldYield(1, At(100)));
}

class OwnerQueueTest : public SchedulingPolicyTest {
 protected:
  OwnerQueueTest() : SchedulingPolicyTest({.capacity = {4, 4, 4}, .owner_capacity = {2, 2, 2}}) {}
};

TEST_F(OwnerQueueTest, AnOwnerFillsItsOwnPartOfAQueueOnly) {
  const auto push = [this](const std::string& owner, int64_t job, bool is_short) {
    return policy_.Push(job, {.job_class = kBatch, .owner = owner, .is_short = is_short}, At(0));
  };
  EXPECT_TRUE(push("a", 1, false).ok());
  EXPECT_TRUE(push("a", 2, true).ok());
  const absl::Status full = push("a", 3, false);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "the caller's part of the queue of class batch is full: 2 jobs wait, 2 may");
  EXPECT_TRUE(push("b", 4, false).ok());
}

}  // namespace
}  // namespace intrawarp
