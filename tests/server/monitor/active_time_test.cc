// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/active_time.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "server/monitor/watchdog.h"

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Duration = ActiveTime::Duration;

// A process as a test says it is, looked at once a second.
class ActiveTimeTest : public testing::Test {
 protected:
  Duration Step(Duration wall, Duration cpu, bool wants_cpu) {
    now_ += wall;
    signs_.cpu += cpu;
    signs_.wants_cpu = wants_cpu;
    return time_.Advance(now_);
  }
  // A job that never checks in, seen by a watchdog of 30 s for so many seconds.
  WatchdogState After(int looks, Duration wall, Duration cpu, bool wants_cpu) {
    Standstill lane;
    Duration since{0}, step{0};
    Watchdog watchdog({.timeout = seconds(30)}, [&] {
      return std::vector<WatchedJob>{{JobClass::kInteractive, since, since, lane.Look(7, since, step)}};
    });
    WatchdogState state = WatchdogState::kWell;
    for (int i = 0; i < looks; ++i) {
      since += wall;
      step = Step(wall, cpu, wants_cpu);
      state = watchdog.Check(now_, {}).state;
    }
    return state;
  }

  ActiveTime::Time now_{seconds(1000)};
  ProcessSigns signs_;
  ActiveTime time_{[this] { return signs_; }};
};

TEST_F(ActiveTimeTest, GoesByTheWallWhileEverybodyWaits) {
  Step(seconds(0), seconds(0), false);
  EXPECT_EQ(Step(seconds(1), milliseconds(3), false), seconds(1));
}

TEST_F(ActiveTimeTest, GoesByTheProcessorTimeWhileSomebodyWantsIt) {
  Step(seconds(0), seconds(0), false);
  EXPECT_EQ(Step(seconds(1), milliseconds(30), true), milliseconds(30)) << "starved";
  EXPECT_EQ(Step(seconds(1), seconds(16), true), seconds(1)) << "on all cores";
}

TEST_F(ActiveTimeTest, AStoppedProcessWasNotActive) {
  Step(seconds(0), seconds(0), false);
  EXPECT_EQ(Step(std::chrono::hours(8), milliseconds(1), false), ActiveTime::kMostStep);
}

TEST_F(ActiveTimeTest, AStandstillBeginsAnewWithProgress) {
  Standstill standstill;
  EXPECT_EQ(standstill.Look(1, seconds(5), seconds(1)), seconds(1)) << "seen for the first time";
  EXPECT_EQ(standstill.Look(1, seconds(6), seconds(1)), seconds(2));
  EXPECT_EQ(standstill.Look(2, milliseconds(200), seconds(1)), milliseconds(200));
}

TEST_F(ActiveTimeTest, AStarvedJobIsNotHung) {
  EXPECT_EQ(After(600, seconds(1), milliseconds(40), true), WatchdogState::kWell);
}

TEST_F(ActiveTimeTest, AJobThatWaitsForEverIsHung) {
  EXPECT_EQ(After(40, seconds(1), milliseconds(5), false), WatchdogState::kHung);
}

TEST_F(ActiveTimeTest, ALoopThatNeverEndsIsHung) {
  EXPECT_EQ(After(40, seconds(1), milliseconds(990), true), WatchdogState::kHung);
}

TEST_F(ActiveTimeTest, AProcessThatIsStoppedAgainAndAgainIsNotHung) {
  EXPECT_EQ(After(10, seconds(60), milliseconds(100), true), WatchdogState::kWell);
}

TEST(ProcessSigns, SeesThisProcessCompute) {
  const Duration before = ReadProcessSigns().cpu;
  std::atomic<bool> end = false;
  std::thread busy([&] {
    while (!end) {
    }
  });
  bool wants_cpu = false;
  Duration cpu = before;
  while (!wants_cpu || cpu == before) {
    const ProcessSigns signs = ReadProcessSigns();
    wants_cpu = wants_cpu || signs.wants_cpu;
    cpu = signs.cpu;
  }
  end = true;
  busy.join();
  EXPECT_GT(cpu, before);
}

}  // namespace
}  // namespace intrawarp::server
