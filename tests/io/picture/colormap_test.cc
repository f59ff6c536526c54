// SPDX-License-Identifier: Apache-2.0
#include "io/picture/colormap.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using Rgb = std::array<double, 3>;

Rgb LinearOf(Color color) {
  const auto linear = [](double v) { return v <= 0.04045 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4); };
  return {linear(color.r), linear(color.g), linear(color.b)};
}

// CIE L*, 0 to 100.
double Lightness(Color color) {
  const Rgb rgb = LinearOf(color);
  const double y = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
  return y > 216.0 / 24389 ? 116 * std::cbrt(y) - 16 : y * 24389 / 27;
}

// The colours that an eye without one kind of cone sees, in linear sRGB (Machado, Oliveira and Fernandes 2009, table
// 1).
constexpr double kDichromacies[3][3][3] = {
    {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
    {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
    {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}};

double SeenDistance(const double (&m)[3][3], Color a, Color b) {
  const Rgb p = LinearOf(a), q = LinearOf(b);
  double sum = 0;
  for (const auto& row : m) {
    double d = 0;
    for (int c = 0; c < 3; ++c) d += row[c] * (p[c] - q[c]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

TEST(ColormapTest, LightnessGrowsSteadilyWithALength) {
  constexpr int kSteps = 30;
  double least = 100, most = 0;
  for (int i = 0; i < kSteps; ++i) {
    const double step = Lightness(Sequential((i + 1.f) / kSteps)) - Lightness(Sequential(float(i) / kSteps));
    least = std::min(least, step);
    most = std::max(most, step);
  }
  EXPECT_GT(least, 1);
  EXPECT_LT(most, 3);
}

TEST(ColormapTest, BothArmsOfADifferenceAreEquallyLight) {
  double before = Lightness(Diverging(0));
  EXPECT_LT(before, 5);
  for (float value = 0.1f; value < 1.05f; value += 0.1f) {
    const double orange = Lightness(Diverging(value)), blue = Lightness(Diverging(-value));
    EXPECT_NEAR(orange, blue, 2.5) << value;
    EXPECT_GT(orange, before + 4) << value;
    EXPECT_LT(orange, before + 13) << value;
    before = orange;
  }
}

TEST(ColormapTest, SignsDifferForColourBlindEyes) {
  for (const auto& eye : kDichromacies) {
    EXPECT_GT(SeenDistance(eye, Diverging(1), Diverging(-1)), 0.4);
    EXPECT_GT(SeenDistance(eye, Diverging(0.5f), Diverging(-0.5f)), 0.1);
  }
  // Red and green of the same kind would not do.
  EXPECT_LT(SeenDistance(kDichromacies[1], {0.78f, 0.3f, 0.2f}, {0.42f, 0.52f, 0.1f}), 0.1);
}

TEST(ColormapTest, ValuesAreClamped) {
  const auto equal = [](Color a, Color b) { return a.r == b.r && a.g == b.g && a.b == b.b; };
  EXPECT_TRUE(equal(Diverging(7), Diverging(1)));
  EXPECT_TRUE(equal(Diverging(-7), Diverging(-1)));
  EXPECT_TRUE(equal(Sequential(7), Sequential(1)));
  EXPECT_TRUE(equal(Sequential(-7), Sequential(0)));
}

}  // namespace
}  // namespace intrawarp::io
