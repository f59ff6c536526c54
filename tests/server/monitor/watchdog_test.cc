// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/watchdog.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/schedule/scheduler.h"

namespace intrawarp::server {
namespace {

using std::chrono::seconds;
using Time = Watchdog::Time;

// A device and its jobs, as a test says they are, at a time that the test moves.
class WatchdogTest : public testing::Test {
 protected:
  Watchdog::Finding Check() { return watchdog_.Check(now_, signs_); }
  void Advance(seconds by) { now_ += by; }

  Time now_{seconds(1000)};
  std::vector<WatchedJob> jobs_;
  DeviceSigns signs_;
  Watchdog watchdog_{{.timeout = seconds(30), .exit_after = seconds(60)}, [this] { return jobs_; }};
};

TEST_F(WatchdogTest, AJobThatChecksInIsWellHoweverLongItRuns) {
  jobs_ = {{JobClass::kBatch, std::chrono::hours(2), seconds(30)}};
  const Watchdog::Finding finding = Check();
  EXPECT_EQ(finding.state, WatchdogState::kWell);
  EXPECT_FALSE(finding.changed);
  EXPECT_EQ(finding.hung, "");
}

TEST_F(WatchdogTest, AJobThatDoesNotCheckInIsHungAndNamedByItsClass) {
  jobs_ = {{JobClass::kBatch, seconds(90), seconds(3)}, {JobClass::kInteractive, seconds(90), seconds(31)}};
  EXPECT_EQ(Check().state, WatchdogState::kWell);
  Watchdog::Finding finding = Check();
  EXPECT_EQ(finding.state, WatchdogState::kHung);
  EXPECT_TRUE(finding.changed);
  EXPECT_EQ(finding.hung, "interactive");
  EXPECT_EQ(watchdog_.state(), WatchdogState::kHung);
  finding = Check();
  EXPECT_EQ(finding.state, WatchdogState::kHung);
  EXPECT_FALSE(finding.changed);
}

TEST_F(WatchdogTest, AHangPasses) {
  jobs_ = {{JobClass::kFrame, seconds(31), seconds(31)}};
  Check();
  EXPECT_EQ(Check().state, WatchdogState::kHung);
  jobs_.clear();
  const Watchdog::Finding finding = Check();
  EXPECT_EQ(finding.state, WatchdogState::kWell);
  EXPECT_TRUE(finding.changed);
}

TEST_F(WatchdogTest, WhoIsLateOnceIsNotHung) {
  for (int i = 0; i < 3; ++i) {
    jobs_ = {{JobClass::kFrame, std::chrono::hours(8), std::chrono::hours(8)}};
    EXPECT_EQ(Check().state, WatchdogState::kWell);
    jobs_ = {{JobClass::kFrame, std::chrono::hours(8), seconds(0)}};
    EXPECT_EQ(Check().state, WatchdogState::kWell);
  }
}

TEST_F(WatchdogTest, AProbeThatDoesNotComeBackIsHung) {
  signs_.probing_since = now_;
  Advance(seconds(30));
  EXPECT_EQ(Check().state, WatchdogState::kWell);
  Advance(seconds(1));
  Check();
  const Watchdog::Finding finding = Check();
  EXPECT_EQ(finding.state, WatchdogState::kHung);
  EXPECT_EQ(finding.hung, "probe");
}

TEST_F(WatchdogTest, ALostDeviceStaysLost) {
  signs_.lost = true;
  EXPECT_EQ(Check().state, WatchdogState::kLost);
  signs_.lost = false;
  const Watchdog::Finding finding = Check();
  EXPECT_EQ(finding.state, WatchdogState::kLost);
  EXPECT_FALSE(finding.changed);
}

TEST_F(WatchdogTest, GivesUpOnceAfterTheSecondTime) {
  signs_.lost = true;
  EXPECT_FALSE(Check().give_up);
  Advance(seconds(59));
  EXPECT_FALSE(Check().give_up);
  Advance(seconds(1));
  EXPECT_TRUE(Check().give_up);
  Advance(seconds(100));
  EXPECT_FALSE(Check().give_up);
}

TEST_F(WatchdogTest, AHangThatPassedDoesNotCountTowardsTheNext) {
  jobs_ = {{JobClass::kFrame, seconds(31), seconds(31)}};
  Check();
  Check();
  Advance(seconds(59));
  jobs_.clear();
  Check();
  jobs_ = {{JobClass::kFrame, seconds(31), seconds(31)}};
  Advance(seconds(10));
  Check();
  EXPECT_FALSE(Check().give_up);
  Advance(seconds(60));
  EXPECT_TRUE(Check().give_up);
}

TEST(Watchdog, SleepsWithoutTimes) {
  Watchdog watchdog({.timeout = seconds(0), .exit_after = seconds(0)}, [] {
    return std::vector<WatchedJob>{{JobClass::kBatch, std::chrono::hours(9), std::chrono::hours(9)}};
  });
  const Time now{std::chrono::hours(10)};
  EXPECT_EQ(watchdog.Check(now, {Time(), false}).state, WatchdogState::kWell);
  EXPECT_EQ(watchdog.Check(now, {Time(), false}).state, WatchdogState::kWell);
  EXPECT_EQ(watchdog.Check(now, {Time(), true}).state, WatchdogState::kLost);
  EXPECT_FALSE(watchdog.Check(now + std::chrono::hours(10), {Time(), true}).give_up);
}

}  // namespace
}  // namespace intrawarp::server
