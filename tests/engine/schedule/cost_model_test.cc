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
  const std::optional<Duration> predicted = costs.Predict(kind, size);
  return predicted ? std::chrono::duration<double, std::milli>(*predicted).count() : -1;
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
    const std::optional<Duration> predicted = costs.Predict("x", size);
    ASSERT_TRUE(predicted.has_value());
    EXPECT_GE(predicted->count(), 0);
    EXPECT_LE(*predicted, std::chrono::hours(48));
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
