// SPDX-License-Identifier: Apache-2.0
#include "server/device/copy_rate.h"

#include <gtest/gtest.h>

namespace intrawarp::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int64_t kMB = 1000000;

double MillisecondsOf(nanoseconds time) { return static_cast<double>(time.count()) / 1e6; }

TEST(CopyRateTest, BeforeTheFirstCopyARateIsAssumed) {
  const CopyRate rate;
  EXPECT_EQ(rate.Predict(0).count(), 0);
  EXPECT_NEAR(MillisecondsOf(rate.Predict(100 * kMB)), 1 + 10, 1e-3);
}

TEST(CopyRateTest, CopiesTellTheRate) {
  CopyRate rate;
  for (int i = 0; i < 30; ++i) rate.Add(100 * kMB, milliseconds(1 + 50));  // 2 GB/s
  EXPECT_NEAR(MillisecondsOf(rate.Predict(100 * kMB)), 51, 0.1);
  EXPECT_NEAR(MillisecondsOf(rate.Predict(20 * kMB)), 11, 0.1);
}

TEST(CopyRateTest, OneSlowCopyCountsInPart) {
  CopyRate rate;
  rate.Add(100 * kMB, milliseconds(1 + 410));
  EXPECT_NEAR(MillisecondsOf(rate.Predict(100 * kMB)), 1 + 0.75 * 10 + 0.25 * 410, 0.1);
}

TEST(CopyRateTest, SmallCopiesAndInstantOnesAreNoRate) {
  CopyRate rate;
  rate.Add(1000, milliseconds(900));
  rate.Add(-1, milliseconds(900));
  EXPECT_NEAR(MillisecondsOf(rate.Predict(100 * kMB)), 11, 1e-3);
  rate.Add(100 * kMB, nanoseconds(0));
  const double after = MillisecondsOf(rate.Predict(100 * kMB));
  EXPECT_GT(after, 1);
  EXPECT_LT(after, 11);
}

}  // namespace
}  // namespace intrawarp::server
