// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/total_variation.h"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr double kEdge = kTotalVariationEdge;

Geometry ControlGrid(Int3 size) {
  Geometry g = ObliqueGeometry(size, /*left_handed=*/true);
  g.spacing = {6.5, 5.25, 4};
  return g;
}

// The definition in float64.
double Variation(const Geometry& g, const std::vector<double>& c) {
  const Int3 n = g.size;
  const int64_t stride[3] = {1, n.x, int64_t{n.x} * n.y};
  double sum = 0;
  for (int64_t node = 0; node < g.voxels(); ++node) {
    const int64_t at[3] = {node % n.x, node / n.x % n.y, node / stride[2]};
    double squares = kEdge * kEdge;
    for (int axis = 0; axis < 3; ++axis) {
      if (at[axis] == n[axis] - 1) continue;
      for (int i = 0; i < 3; ++i) {
        const double d = (c[3 * (node + stride[axis]) + i] - c[3 * node + i]) / g.spacing[axis];
        squares += d * d;
      }
    }
    sum += std::sqrt(squares) - kEdge;
  }
  return sum / static_cast<double>(g.voxels());
}

class TotalVariationTest : public DeviceTest {
 protected:
  struct Output {
    double value = 0;
    std::vector<float> gradient;
  };
  Output Run(double weight, const Geometry& g, const std::vector<float>& points, double value_before,
             const std::vector<float>& gradient_before, const int* skip = nullptr) {
    std::vector<double> before = {value_before};
    double* value = Upload(before);
    float* gradient = Upload(gradient_before);
    EXPECT_OK(AddTotalVariation(ctx(), weight, {Upload(points), g}, skip, gradient, value));
    return {Download(value, 1)[0], Download(gradient, gradient_before.size())};
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(TotalVariationTest);

TEST_P(TotalVariationTest, ValueAndGradientAreThoseOfTheDefinition) {
  uint32_t seed = 3;
  for (Int3 size : {Int3{4, 4, 4}, {7, 5, 6}, {17, 9, 5}, {33, 4, 4}, {15, 19, 1}, {1, 6, 5}, {1, 1, 9}, {1, 1, 1}}) {
    const Geometry g = ControlGrid(size);
    SCOPED_TRACE(SizeString(g));
    const std::vector<float> points = RandomFloats(3 * g.voxels(), ++seed, -4, 4);
    const std::vector<float> before = RandomFloats(points.size(), ++seed, -1, 1);
    const auto weight = static_cast<double>(g.voxels());
    std::vector<double> c(points.begin(), points.end());
    const Output got = Run(weight, g, points, 7, before);
    EXPECT_NEAR(got.value, 7 + weight * Variation(g, c), 1e-5 * (7 + weight * Variation(g, c)));
    for (size_t i = 0; i < points.size(); i += 1 + points.size() / 90) {
      constexpr double kStep = 1e-4;
      c[i] = points[i] + kStep;
      const double above = Variation(g, c);
      c[i] = points[i] - kStep;
      const double below = Variation(g, c);
      c[i] = points[i];
      EXPECT_NEAR(got.gradient[i] - before[i], weight * (above - below) / (2 * kStep), 2e-5) << i;
    }
  }
}

TEST_P(TotalVariationTest, AJumpCostsAsMuchAsASlope) {
  const Geometry g = ControlGrid({21, 4, 4});
  std::vector<float> jump(3 * g.voxels()), slope(3 * g.voxels());
  for (int64_t node = 0; node < g.voxels(); ++node) {
    const auto x = static_cast<double>(node % g.size.x);
    jump[3 * node + 2] = x < 10 ? 0 : 40;
    slope[3 * node + 2] = static_cast<float>(2 * x);
  }
  const std::vector<float> zero(jump.size());
  const double of_jump = Run(1, g, jump, 0, zero).value, of_slope = Run(1, g, slope, 0, zero).value;
  EXPECT_NEAR(of_jump, of_slope, 0.1 * of_slope);
}

TEST_P(TotalVariationTest, ASkippedEvaluationAndNoWeightChangeNothing) {
  const Geometry g = ControlGrid({5, 6, 7});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 5, -4, 4);
  const std::vector<float> before = RandomFloats(points.size(), 6, -1, 1);
  for (const Output& got : {Run(1, g, points, 3, before, Upload(std::vector<int>{1})), Run(0, g, points, 3, before)}) {
    EXPECT_EQ(got.value, 3);
    EXPECT_EQ(got.gradient, before);
  }
  EXPECT_NE(Run(1, g, points, 3, before, Upload(std::vector<int>{0})).gradient, before);
}

TEST_P(TotalVariationTest, AConstantDisplacementIsFreeAndItsGradientZero) {
  const Geometry g = ControlGrid({9, 8, 7});
  const std::vector<float> points(3 * g.voxels(), 12.5f), zero(3 * g.voxels());
  const Output got = Run(1e3, g, points, 0, zero);
  EXPECT_NEAR(got.value, 0, 1e-6);
  EXPECT_EQ(got.gradient, zero);
}

TEST_P(TotalVariationTest, RunsGiveTheSameBits) {
  const Geometry g = ControlGrid({23, 31, 17});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 9, -4, 4), zero(points.size());
  const Output first = Run(2, g, points, 0, zero), second = Run(2, g, points, 0, zero);
  EXPECT_EQ(first.value, second.value);
  EXPECT_EQ(first.gradient, second.gradient);
}

TEST_P(TotalVariationTest, WrongWeightsAreRefused) {
  const Geometry g = ControlGrid({4, 4, 4});
  const std::vector<float> points(3 * g.voxels());
  for (const double weight : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THAT(
        AddTotalVariation(ctx(), weight, {Upload(points), g}, nullptr, Upload(points), Poisoned<double>(1)).message(),
        testing::HasSubstr("total_variation_weight"));
  }
}

}  // namespace
}  // namespace intrawarp
