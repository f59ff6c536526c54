// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/arrival_schedule.h"

#include <gtest/gtest.h>

#include <random>

namespace intrawarp::cli::bench {
namespace {

TEST(ArrivalSchedule, FramesAreAPeriodApartFromThePhaseOn) {
  const ArrivalSchedule schedule(10, 0.25, 1);
  EXPECT_EQ(schedule.count(), 10);
  EXPECT_DOUBLE_EQ(schedule.Due(0), 0.025);
  EXPECT_DOUBLE_EQ(schedule.Due(9), 0.925);
}

TEST(ArrivalSchedule, TheEndIsNotPartOfTheLoad) {
  EXPECT_EQ(ArrivalSchedule(10, 0, 1).count(), 10);
  EXPECT_EQ(ArrivalSchedule(10, 0, 1.05).count(), 11);
  EXPECT_EQ(ArrivalSchedule(4, 0, 0.75).count(), 3);
}

TEST(ArrivalSchedule, AShortLoadMayHaveNoFrame) {
  EXPECT_EQ(ArrivalSchedule(0.01, 0.5, 0.1).count(), 0);
  EXPECT_EQ(ArrivalSchedule(0.01, 0, 0.1).count(), 1);
}

TEST(ArrivalSchedule, TheCountIsOfThoseThatAreDueBeforeTheEnd) {
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < 2000; ++i) {
    const double rate = std::uniform_real_distribution<double>(0.05, 200)(random);
    const double phase = std::uniform_real_distribution<double>(0, 1)(random);
    // Whole numbers of periods, too, where rounding bites.
    const double seconds = i % 2 == 0 ? std::uniform_real_distribution<double>(0.1, 20)(random) : (i % 97 + 1) / rate;
    const ArrivalSchedule schedule(rate, phase, seconds);
    int64_t expected = 0;
    while ((static_cast<double>(expected) + phase) / rate < seconds) ++expected;
    ASSERT_EQ(schedule.count(), expected) << rate << " Hz, phase " << phase << ", " << seconds << " s";
  }
}

}  // namespace
}  // namespace intrawarp::cli::bench
