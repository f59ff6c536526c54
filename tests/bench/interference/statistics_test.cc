// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/interference/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace intrawarp::bench {
namespace {

std::vector<double> UpTo(int n) {
  std::vector<double> values;
  for (int i = n; i >= 1; --i) values.push_back(i);
  return values;
}

TEST(Percentile, IsTheNearestRankWhereThereAreEnough) {
  EXPECT_EQ(Percentile(UpTo(100), 0.5), 50);
  EXPECT_EQ(Percentile(UpTo(100), 0.99), 99);
  EXPECT_EQ(Percentile(UpTo(1000), 0.999), 999);
  EXPECT_TRUE(std::isnan(Percentile(UpTo(99), 0.99)));
  EXPECT_TRUE(std::isnan(Percentile(UpTo(1), 0.5)));
  EXPECT_TRUE(std::isnan(Percentile({}, 0.5)));
}

TEST(Overlap, IsAPartOfTheOperation) {
  EXPECT_EQ(Overlap(0, 4, 1, 2), 0.25);
  EXPECT_EQ(Overlap(0, 4, 2, 9), 0.5);
  EXPECT_EQ(Overlap(5, 6, 0, 4), 0);
  EXPECT_EQ(Overlap(5, 5, 0, 9), 0);
}

// A series that wanders back to its mean, so that neighbours are alike: most of its slopes must be taken for none.
std::vector<double> Wander(uint32_t seed, int n, double drift) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> step(0, 1);
  std::vector<double> y;
  double at = 0;
  for (int i = 0; i < n; ++i) {
    at = 0.8 * at + step(engine);
    y.push_back(at + drift * i);
  }
  return y;
}

TEST(FitSlope, TakesAWanderingSeriesForNoSlope) {
  std::vector<double> x;
  for (int i = 0; i < 600; ++i) x.push_back(i);
  int rises = 0, found = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    rises += FitSlope(x, Wander(seed, 600, 0)).rises() ? 1 : 0;
    found += FitSlope(x, Wander(seed, 600, 0.01)).rises() ? 1 : 0;
  }
  EXPECT_LT(rises, 20) << "2.5 % of 400 are 10";
  EXPECT_GT(found, 390);
}

TEST(FitSlope, SaysNothingOfFewSamples) {
  EXPECT_FALSE(FitSlope({0, 1, 2}, {0, 1, 2}).rises());
  EXPECT_FALSE(FitSlope(std::vector<double>(9, 1.0), UpTo(9)).rises());
}

}  // namespace
}  // namespace intrawarp::bench
