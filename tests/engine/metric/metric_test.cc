// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/metric.h"

#include <gtest/gtest.h>

namespace intrawarp {
namespace {

TEST(MetricTest, TableIsInTheOrderOfTheKinds) {
  int place = 0;
  for (const MetricTraits& traits : kMetricTable) {
    EXPECT_EQ(static_cast<int>(traits.kind), place++);
    EXPECT_EQ(&TraitsOf(traits.kind), &traits);
    EXPECT_EQ(MetricNamed(traits.name), traits.kind);
  }
  EXPECT_EQ(place, static_cast<int>(MetricKind::kMind) + 1);
}

TEST(MetricTest, NamesAreThoseOfTheCommandLine) {
  EXPECT_STREQ(MetricName(MetricKind::kSsd), "ssd");
  EXPECT_STREQ(MetricName(MetricKind::kNgf), "ngf");
  EXPECT_STREQ(MetricName(MetricKind::kNmi), "nmi");
  EXPECT_STREQ(MetricName(MetricKind::kLncc), "lncc");
  EXPECT_STREQ(MetricName(MetricKind::kMind), "mind");
  EXPECT_EQ(MetricNamed("mi"), std::nullopt);
  EXPECT_EQ(MetricNamed(""), std::nullopt);
}

}  // namespace
}  // namespace intrawarp
