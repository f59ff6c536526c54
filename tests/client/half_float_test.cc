// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/half_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace intrawarp::client {
namespace {

// Sign, exponent and mantissa by the definition of the format.
double ByDefinition(uint16_t half) {
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(FloatOfHalfTest, EveryNumberIsExact) {
  for (int i = 0; i < 65536; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float number = FloatOfHalf(half);
    const double expected = ByDefinition(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(number)) << i;
    } else {
      EXPECT_EQ(number, expected) << i;
    }
    EXPECT_EQ(std::signbit(number), (half & 0x8000) != 0) << i;
  }
}

}  // namespace
}  // namespace intrawarp::client
