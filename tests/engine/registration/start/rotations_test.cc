// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/start/rotations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace intrawarp {
namespace {

// The largest distance, in degrees, of random rotations from the nearest of `rotations`.
double CoveringRadius(const std::vector<Quaternion>& rotations) {
  std::mt19937 engine(1);
  std::normal_distribution<double> normal;
  double least = 1;
  for (int i = 0; i < 20000; ++i) {
    Quaternion q{normal(engine), normal(engine), normal(engine), normal(engine)};
    const double length = std::sqrt(Dot(q, q));
    double nearest = 0;
    for (const Quaternion& r : rotations) nearest = std::max(nearest, std::abs(Dot(q, r)) / length);
    least = std::min(least, nearest);
  }
  return 2 * std::acos(least) * 180 / M_PI;
}

TEST(RotationsTest, EveryRotationIsNearOneOfTheSets) {
  ASSERT_EQ(CoarseRotations().size(), 72u);
  ASSERT_EQ(FineRotations().size(), 288u);
  const double coarse = CoveringRadius(CoarseRotations());
  EXPECT_GT(coarse, 40);
  EXPECT_LT(coarse, 45);
  std::vector<Quaternion> all = CoarseRotations();
  all.insert(all.end(), FineRotations().begin(), FineRotations().end());
  EXPECT_LT(CoveringRadius(all), 27.79);
}

TEST(RotationsTest, SetsHoldUnitQuaternionsOnce) {
  std::vector<Quaternion> all = CoarseRotations();
  all.insert(all.end(), FineRotations().begin(), FineRotations().end());
  EXPECT_EQ(RotationAngle(all[0]), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_NEAR(Dot(all[i], all[i]), 1, 1e-12);
    for (size_t j = 0; j < i; ++j) EXPECT_LT(std::abs(Dot(all[i], all[j])), 0.999);
  }
}

TEST(RotationsTest, MapsTurnByTheirAngleAboutTheirAxis) {
  const double half = 0.35;
  const Quaternion q{std::cos(half), 0, 0, std::sin(half)};
  const Vec3d turned = RotationMap(q)({1, 0, 2});
  EXPECT_NEAR(turned.x, std::cos(0.7), 1e-12);
  EXPECT_NEAR(turned.y, std::sin(0.7), 1e-12);
  EXPECT_NEAR(turned.z, 2, 1e-12);
  EXPECT_NEAR(RotationAngle(q), 0.7 * 180 / M_PI, 1e-9);
  for (const Quaternion& each : CoarseRotations()) EXPECT_NEAR(Determinant(RotationMap(each)), 1, 1e-12);
}

TEST(RotationsTest, ThePlaneIsTurnedInItself) {
  const Vec3d normal{0, 3, 4};
  const std::vector<Quaternion> turns = PlaneRotations(normal);
  ASSERT_EQ(turns.size(), 24u);
  for (size_t i = 0; i < turns.size(); ++i) {
    const Vec3d image = RotationMap(turns[i])(normal);
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(image[a], normal[a], 1e-12);
    EXPECT_NEAR(RotationAngle(turns[i]), i <= 12 ? 15.0 * i : 360 - 15.0 * i, 1e-6);
  }
}

}  // namespace
}  // namespace intrawarp
