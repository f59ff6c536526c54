// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace intrawarp::cli::bench {
namespace {

// By the definition, in whole numbers: the smallest value that at least `thousandths` of a thousand do not exceed.
double PlainPercentile(std::vector<double> values, int64_t thousandths) {
  std::sort(values.begin(), values.end());
  for (const double value : values) {
    const auto below = std::count_if(values.begin(), values.end(), [&](double other) { return other <= value; });
    if (below * 1000 >= thousandths * static_cast<int64_t>(values.size())) return value;
  }
  return values.back();
}

TEST(BenchStatistics, PercentilesAreThoseOfAPlainSort) {
  std::mt19937 random(std::random_device{}());
  for (const int count : {1, 2, 9, 10, 11, 99, 100, 101, 999, 1000, 1001, 1370}) {
    std::vector<double> values(static_cast<size_t>(count));
    // Whole numbers, so that there are equal ones.
    for (double& value : values) value = std::uniform_int_distribution<int>(0, 500)(random);
    const Percentiles found = PercentilesOf(values);
    EXPECT_EQ(found.count, count);
    EXPECT_EQ(found.max, *std::max_element(values.begin(), values.end()));
    const std::pair<std::optional<double>, int> cases[] = {
        {found.p50, 500}, {found.p90, 900}, {found.p99, 990}, {found.p999, 999}};
    for (const auto& [value, thousandths] : cases) {
      // Fewer than one value would stand above it.
      const bool is_defined = count * (1000 - thousandths) >= 1000;
      ASSERT_EQ(value.has_value(), is_defined) << count << " values, " << thousandths;
      if (!is_defined) continue;
      EXPECT_EQ(*value, PlainPercentile(values, thousandths)) << count << " values, " << thousandths;
    }
  }
}

TEST(BenchStatistics, TheMeanIsTheMean) { EXPECT_DOUBLE_EQ(*PercentilesOf({1, 2, 6}).mean, 3); }

TEST(BenchStatistics, NothingHasNoPercentiles) {
  const Percentiles none = PercentilesOf({});
  EXPECT_EQ(none.count, 0);
  EXPECT_FALSE(none.mean || none.p50 || none.p90 || none.p99 || none.p999 || none.max);
}

TEST(BenchStatistics, TalliesAddUp) {
  const Tally tally = {{"a", 3}, {"b", 4}};
  EXPECT_EQ(Total(tally), 7);
  EXPECT_EQ(TallyText(tally), "3 a, 4 b");
  EXPECT_EQ(TallyText({}), "none");
}

TEST(BenchStatistics, OverlapIsThePartOfASpanWithinAnother) {
  EXPECT_DOUBLE_EQ(OverlapPart(0, 4, 1, 3), 0.5);
  EXPECT_DOUBLE_EQ(OverlapPart(2, 3, 0, 10), 1);
  EXPECT_DOUBLE_EQ(OverlapPart(2, 3, 4, 10), 0);
  EXPECT_DOUBLE_EQ(OverlapPart(2, 2, 0, 10), 0);
}

}  // namespace
}  // namespace intrawarp::cli::bench
