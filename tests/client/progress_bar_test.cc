// SPDX-License-Identifier: Apache-2.0
#include "client/cli/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace intrawarp::cli {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
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

// All steps of auto, of which a registration runs some.
TEST(RegistrationFractionTest, GrowsWithTheStepsOfAuto) {
  const v1::RegistrationOptions automatic;
  double last = 0;
  for (const int step : {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    for (int level = 0; level < 2; ++level) {
      const double now = RegistrationFraction(automatic, At(step, level, 2, 10));
      EXPECT_TRUE(step < 0 ? now == 0 : now > last) << step << level;
      last = now;
    }
  }
  EXPECT_GT(last, 0.85);
  EXPECT_LT(last, 0.95) << "the assessment follows";
  // Where the registration ends with its first deformation, a good part is done.
  EXPECT_GT(RegistrationFraction(automatic, At(4, 0, 1, 0)), 0.4);
}

TEST(RegistrationStepTest, NamesTheStepsOfAuto) {
  const v1::RegistrationOptions automatic;
  std::vector<std::string> names;
  for (int step = 0; step < 10; ++step) {
    const std::string text = RegistrationStep(automatic, At(step, 1, 3, 14));
    const size_t end = text.find(", level 2 of 3, iteration 14");
    ASSERT_NE(end, std::string::npos) << text;
    names.push_back(text.substr(0, end));
  }
  EXPECT_THAT(names, ElementsAre("affine (ngf)", "affine (nmi)", "affine (ssd)", "ffd (nmi)", "search",
                                 "ffd (mind) after search", "ffd (lncc) after search", "ffd (lncc) after nmi",
                                 "ffd (lncc)", "ffd (nmi, strong bending)"));
}

TEST(RegistrationStepTest, NamesNoStepThatItDoesNotKnow) {
  v1::RegistrationOptions named;
  named.add_stages()->mutable_search();
  named.add_stages()->mutable_ffd();
  EXPECT_EQ(RegistrationStep(named, At(0, 0, 1, 3)), "search, level 1 of 1, iteration 3");
  EXPECT_EQ(RegistrationStep(named, At(1, 0, 2, 3)), "ffd, level 1 of 2, iteration 3");
  EXPECT_EQ(RegistrationStep(named, At(2, 0, 2, 3)), "stage 3, level 1 of 2, iteration 3");
  EXPECT_EQ(RegistrationStep({}, At(10, 0, 2, 3)), "stage 11, level 1 of 2, iteration 3");
  for (const v1::RegistrationOptions& options : {named, v1::RegistrationOptions()}) {
    EXPECT_EQ(RegistrationStep(options, At(-1, 0, 4, 0)), "before the first stage");
  }
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
