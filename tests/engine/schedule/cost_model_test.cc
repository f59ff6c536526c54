// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace intrawarp {
namespace {

using Duration = CostModel::Duration;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// In milliseconds; -1 for none.
double Predicted(CostModel& costs, const std::string& kind, int64_t size) {
  const std::optional<CostModel::Prediction> predicted = costs.Predict(kind, size);
  return predicted ? std::chrono::duration<double, std::milli>(predicted->alone).count() : -1;
}

void Observe(CostModel& costs, const std::string& kind, int64_t size, double ms, int times = 1) {
  for (int i = 0; i < times; ++i) costs.Observe(kind, size, Duration(static_cast<int64_t>(1e6 * ms)));
}

TEST(CostModelTest, PredictsNothingFromTooFewJobs) {
  CostModel costs;
  EXPECT_EQ(Predicted(costs, "ffd", 1000), -1);
  Observe(costs, "ffd", 1000, 5, CostModel::kMinSamples - 1);
  EXPECT_EQ(Predicted(costs, "ffd", 1000), -1);
  Observe(costs, "ffd", 1000, 5);
  EXPECT_GT(Predicted(costs, "ffd", 1000), 5);
  EXPECT_EQ(Predicted(costs, "affine", 1000), -1) << "another kind";
}

TEST(CostModelTest, ConvergesToCostsThatDoNotVary) {
  CostModel costs;
  Observe(costs, "ffd", 1 << 20, 30, 40);
  EXPECT_NEAR(Predicted(costs, "ffd", 1 << 20), 30, 0.01);
}

TEST(CostModelTest, PredictsMoreThanNearlyAllJobsTake) {
  CostModel costs;
  std::mt19937 random(1);
  std::normal_distribution<double> cost(20, 2);
  int within = 0, most = 0;
  for (int i = 0; i < 2000; ++i) {
    const double ms = cost(random), predicted = Predicted(costs, "affine", 4096);
    if (predicted >= 0) {
      within += ms <= predicted ? 1 : 0;
      most += predicted < 2 * 20 ? 1 : 0;
    }
    Observe(costs, "affine", 4096, ms);
  }
  EXPECT_GE(within, 1950);
  EXPECT_GE(most, 1950) << "and not wildly more";
}

TEST(CostModelTest, FollowsAStepInEitherDirection) {
  CostModel costs;
  Observe(costs, "ffd", 1 << 20, 10, 40);
  Observe(costs, "ffd", 1 << 20, 40, 3);
  EXPECT_GT(Predicted(costs, "ffd", 1 << 20), 40) << "up: at once";
  Observe(costs, "ffd", 1 << 20, 40, 60);
  EXPECT_NEAR(Predicted(costs, "ffd", 1 << 20), 40, 0.5);
  Observe(costs, "ffd", 1 << 20, 10, 60);
  EXPECT_NEAR(Predicted(costs, "ffd", 1 << 20), 10, 0.5);
}

TEST(CostModelTest, AFirstJobThatLoadsKernelsIsForgotten) {
  CostModel costs;
  Observe(costs, "ffd", 1 << 20, 500);
  Observe(costs, "ffd", 1 << 20, 20, CostModel::kMinSamples - 1);
  EXPECT_LT(Predicted(costs, "ffd", 1 << 20), 70);
}

TEST(CostModelTest, OneVerySlowJobDoesNotRaiseThePredictionAsHigh) {
  CostModel costs;
  Observe(costs, "ffd", 1 << 20, 20, 40);
  Observe(costs, "ffd", 1 << 20, 200);
  EXPECT_LT(Predicted(costs, "ffd", 1 << 20), 100);
  Observe(costs, "ffd", 1 << 20, 200, 4);
  EXPECT_GT(Predicted(costs, "ffd", 1 << 20), 200) << "several in a row do";
}

TEST(CostModelTest, ThreeQuickJobsInARowMakeItStartAnew) {
  CostModel costs;
  Observe(costs, "ffd", 1 << 20, 500, 40);
  Observe(costs, "ffd", 1 << 20, 20, 2);
  EXPECT_GT(Predicted(costs, "ffd", 1 << 20), 300);
  Observe(costs, "ffd", 1 << 20, 500);
  Observe(costs, "ffd", 1 << 20, 20, 2);
  EXPECT_GT(Predicted(costs, "ffd", 1 << 20), 300) << "not in a row";
  Observe(costs, "ffd", 1 << 20, 20);
  EXPECT_LT(Predicted(costs, "ffd", 1 << 20), 100);
}

TEST(CostModelTest, KeepsCostsAloneAndBesideOthersApart) {
  CostModel costs;
  for (int i = 0; i < 40; ++i) costs.Observe("ffd", 1000, milliseconds(20), /*crowded=*/false);
  CostModel::Prediction predicted = *costs.Predict("ffd", 1000);
  EXPECT_EQ(predicted.crowded, predicted.alone) << "for want of better knowledge";
  for (int i = 0; i < 40; ++i) costs.Observe("ffd", 1000, milliseconds(35), /*crowded=*/true);
  predicted = *costs.Predict("ffd", 1000);
  EXPECT_NEAR(static_cast<double>(predicted.alone.count()), 20e6, 1e4);
  EXPECT_NEAR(static_cast<double>(predicted.crowded.count()), 35e6, 1e4);
  EXPECT_NEAR(static_cast<double>(predicted.expected.count()), 20e6, 1e4);
}

TEST(CostModelTest, ExpectsTheMeanOfCostsThatVary) {
  CostModel costs;
  for (int i = 0; i < 200; ++i) Observe(costs, "ffd", 1000, i % 2 == 0 ? 10 : 30);
  const CostModel::Prediction predicted = *costs.Predict("ffd", 1000);
  EXPECT_NEAR(static_cast<double>(predicted.expected.count()), 20e6, 3e6);
  EXPECT_GT(predicted.alone, milliseconds(50));
}

TEST(CostModelTest, MayBeProbedOnceInAnIntervalAfterTheFirstQuestion) {
  using Time = SchedulerClock::Time;
  const auto may = [](CostModel& costs, int64_t at_ms) {
    return costs.MayProbe("ffd", 1000, Time(milliseconds(at_ms)), milliseconds(100));
  };
  CostModel costs;
  EXPECT_FALSE(may(costs, 0)) << "there is no prediction to probe";
  Observe(costs, "ffd", 1000, 500, 40);
  EXPECT_FALSE(may(costs, 0));
  EXPECT_FALSE(may(costs, 99));
  EXPECT_TRUE(may(costs, 100));
  EXPECT_FALSE(may(costs, 101)) << "the probe is under way";
  EXPECT_TRUE(may(costs, 200));
  Observe(costs, "ffd", 1000, 400);
  EXPECT_FALSE(may(costs, 300)) << "a job has confirmed the prediction";
  Observe(costs, "ffd", 1000, 20);
  EXPECT_TRUE(may(costs, 301)) << "a job contradicts it";
}

TEST(CostModelTest, ScalesToSizesThatItHasNotSeen) {
  CostModel costs;
  Observe(costs, "log-demons", 1 << 20, 10, 60);
  EXPECT_NEAR(Predicted(costs, "log-demons", 1 << 22), 40, 0.1);
  EXPECT_NEAR(Predicted(costs, "log-demons", 1 << 18), 2.5, 0.1);
  // A cost of 5 ms and 5 ms for every 2^20.
  Observe(costs, "log-demons", 1 << 22, 25, 60);
  EXPECT_NEAR(Predicted(costs, "log-demons", 1 << 21), 15, 0.1);
  EXPECT_NEAR(Predicted(costs, "log-demons", 1 << 24), 100, 0.5);
}

TEST(CostModelTest, IsSureOnlyNearSizesThatItHasSeen) {
  CostModel costs;
  Observe(costs, "multiply", 1, 11, 5);
  EXPECT_TRUE(costs.Predict("multiply", 4)->sure);
  EXPECT_FALSE(costs.Predict("multiply", 5)->sure);
  EXPECT_FALSE(costs.Predict("multiply", 700000)->sure);
  Observe(costs, "multiply", 1 << 20, 100, 5);
  EXPECT_TRUE(costs.Predict("multiply", 700000)->sure);
  EXPECT_TRUE(costs.Predict("multiply", 1 << 18)->sure);
  EXPECT_FALSE(costs.Predict("multiply", 1 << 10)->sure) << "between two sizes that are far apart";
  EXPECT_FALSE(costs.Predict("multiply", 1 << 23)->sure);
}

TEST(CostModelTest, SizesOfACellShareTheirCostsInProportion) {
  CostModel costs;
  Observe(costs, "ffd", 1000000, 10, 60);
  EXPECT_EQ(costs.cells(), 1);
  EXPECT_NEAR(Predicted(costs, "ffd", 1050000), 10.5, 0.1);
  Observe(costs, "ffd", 1050000, 10.5, 10);
  EXPECT_EQ(costs.cells(), 1);
}

TEST(CostModelTest, TakesAnySizeAndTime) {
  CostModel costs;
  for (int64_t size : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{1}, INT64_MAX}) {
    for (Duration busy : {Duration::min(), Duration(0), Duration::max()}) {
      for (int i = 0; i < CostModel::kMinSamples; ++i) costs.Observe("x", size, busy);
    }
  }
  for (int64_t size : {INT64_MIN, int64_t{0}, int64_t{1} << 31, INT64_MAX}) {
    const std::optional<CostModel::Prediction> predicted = costs.Predict("x", size);
    ASSERT_TRUE(predicted.has_value());
    EXPECT_GE(predicted->alone.count(), 0);
    EXPECT_LE(predicted->alone, std::chrono::hours(48));
  }
}

TEST(CostModelTest, HoldsABoundedNumberOfCellsAndForgetsTheLeastUsed) {
  CostModel costs(8);
  Observe(costs, "kept", 1000, 5, CostModel::kMinSamples);
  for (int i = 0; i < 100; ++i) {
    Observe(costs, "kind " + std::to_string(i), 1000, 5, CostModel::kMinSamples);
    EXPECT_LE(costs.cells(), 8);
    EXPECT_GT(Predicted(costs, "kept", 1000), 0);
  }
  EXPECT_EQ(Predicted(costs, "kind 0", 1000), -1);
  EXPECT_GT(Predicted(costs, "kind 99", 1000), 0);
}

TEST(CostModelTest, ServesSeveralThreads) {
  CostModel costs(16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&costs, t] {
      for (int i = 0; i < 2000; ++i) {
        costs.Observe(std::to_string(i % 7), 1 << (i % 10 + t), microseconds(i));
        costs.Predict(std::to_string(i % 5), 1 << (i % 12));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(costs.cells(), 16);
}

}  // namespace
}  // namespace intrawarp
