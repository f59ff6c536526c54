// SPDX-License-Identifier: Apache-2.0
#include "client/cli/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace intrawarp::cli {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

v1::Progress At(int stage, int level, int levels, int iteration) {
  v1::Progress progress;
  progress.set_stage(stage);
  progress.set_level(level);
  progress.set_levels(levels);
  progress.set_iteration(iteration);
  return progress;
}

TEST(RegistrationFractionTest, GrowsWithStagesLevelsAndIterations) {
  v1::RegistrationOptions options;
  options.add_stages()->mutable_affine();
  options.add_stages()->mutable_log_demons();
  double last = -1;
  for (int stage = 0; stage < 2; ++stage) {
    for (int level = 0; level < 3; ++level) {
      for (const int iteration : {0, 1, 10, 100}) {
        const double now = RegistrationFraction(options, At(stage, level, 3, iteration));
        EXPECT_GE(now, last) << stage << level << iteration;
        last = now;
      }
    }
  }
  EXPECT_EQ(RegistrationFraction(options, At(0, 0, 3, 0)), 0);
  EXPECT_GT(last, 0.85);
  EXPECT_LT(last, 1) << "the assessment follows";
  // The second stage has the larger part.
  EXPECT_LT(RegistrationFraction(options, At(1, 0, 3, 0)), 0.3);
}

TEST(RegistrationFractionTest, TakesAnythingThatAServerSends) {
  for (const v1::RegistrationOptions& options : {v1::RegistrationOptions(), [] {
                                                   v1::RegistrationOptions one;
                                                   one.add_stages()->mutable_ffd();
                                                   return one;
                                                 }()}) {
    for (const int number : {-1000, -1, 0, 7, 1 << 30}) {
      const double fraction = RegistrationFraction(options, At(number, number, number, number));
      EXPECT_GE(fraction, 0);
      EXPECT_LE(fraction, 1);
      EXPECT_NE(RegistrationStep(options, At(number, number, number, number)), "");
    }
  }
}

TEST(BarTextTest, TellsTheTimeToGoOnceItIsKnown) {
  EXPECT_EQ(BarText(0.5, seconds(30), "ffd, level 2 of 3"),
            "[############------------]  50 %  0:30, some 0:30 to go  ffd, level 2 of 3");
  EXPECT_THAT(BarText(0.01, seconds(60), "x"), Not(HasSubstr("to go")));
  EXPECT_THAT(BarText(0.5, seconds(1), "x"), Not(HasSubstr("to go")));
  EXPECT_THAT(BarText(0.25, seconds(3600), "x"), HasSubstr("1:00:00, some 3:00:00 to go"));
  EXPECT_THAT(BarText(1, seconds(10), "x"), HasSubstr("[########################] 100 %"));
}

}  // namespace
}  // namespace intrawarp::cli
