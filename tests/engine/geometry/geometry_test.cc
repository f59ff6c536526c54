// SPDX-License-Identifier: Apache-2.0
#include "engine/geometry/geometry.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

std::string ErrorOf(const Geometry& g) { return std::string(ValidateGeometry(g).message()); }

TEST(GeometryTest, IndexAndPhysicalAreInverse) {
  for (bool left_handed : {false, true}) {
    const Geometry g = ObliqueGeometry({7, 11, 5}, left_handed);
    ASSERT_OK(ValidateGeometry(g)) << ErrorOf(g);
    const Vec3d index{1.5, 9.0, 3.25};
    const Vec3d back = PhysicalToIndex(g)(IndexToPhysical(g)(index));
    for (int a = 0; a < 3; ++a) EXPECT_NEAR(back[a], index[a], 1e-12);
    EXPECT_EQ(Determinant(IndexToPhysical(g)) < 0, left_handed);
  }
}

TEST(GeometryTest, VoxelZeroIsAtTheOriginAndAxesFollowColumns) {
  const Geometry g = ObliqueGeometry({7, 11, 5});
  EXPECT_EQ(IndexToPhysical(g)({0, 0, 0}), g.origin);
  const Vec3d step = IndexToPhysical(g)({0, 2, 0}) - g.origin;
  for (int r = 0; r < 3; ++r) EXPECT_NEAR(step[r], 2 * g.spacing.y * g.direction[r][1], 1e-12);
}

TEST(GeometryTest, RefusesAndNamesTheField) {
  const Geometry good = ObliqueGeometry({7, 11, 5});
  for (int size : {0, -3, kMaxAxis + 1}) {
    Geometry g = good;
    g.size.y = size;
    EXPECT_EQ(ErrorOf(g).find("size: y"), 0u) << ErrorOf(g);
  }
  for (double spacing : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    Geometry g = good;
    g.spacing.z = spacing;
    EXPECT_EQ(ErrorOf(g).find("spacing: z"), 0u) << ErrorOf(g);
  }
  Geometry g = good;
  g.origin.x = std::nan("");
  EXPECT_EQ(ErrorOf(g).find("origin: x"), 0u);
  g = good;
  for (auto& row : g.direction) row[2] = row[1];
  EXPECT_EQ(ErrorOf(g), "direction: axes y and z are not orthogonal");
  g = good;
  for (auto& row : g.direction) row[0] *= 2;
  EXPECT_EQ(ErrorOf(g), "direction: axis x is not a unit vector");
  g = good;
  g.direction[1][1] = std::nan("");
  EXPECT_EQ(ErrorOf(g).find("direction: "), 0u);
}

TEST(GeometryTest, SameGridToleratesHeaderNoiseOnly) {
  const Geometry a = ObliqueGeometry({64, 64, 20});
  Geometry b = a;
  b.origin.x += 1e-6;
  EXPECT_TRUE(SameGrid(a, b));
  b.origin.x += 0.1;
  EXPECT_FALSE(SameGrid(a, b));
  b = a;
  b.size.z = 19;
  EXPECT_FALSE(SameGrid(a, b));
}

TEST(GeometryTest, SingularMapsAreThoseWithoutAnInverseWorthHaving) {
  AffineMap map = AffineMap::Identity();
  EXPECT_FALSE(IsSingular(map));
  // The scale does not matter, the directions do.
  for (const double scale : {1e-8, 1e8}) {
    for (int r = 0; r < 3; ++r) map.m[r][r] = scale;
    EXPECT_FALSE(IsSingular(map)) << scale;
  }
  map = AffineMap::Identity();
  map.m[2][2] = 0;
  EXPECT_TRUE(IsSingular(map));
  map.m[1][2] = 1;
  map.m[2][2] = 1e-10;
  EXPECT_TRUE(IsSingular(map));
  map.m[2][2] = 1e-8;
  EXPECT_FALSE(IsSingular(map));
  map.m[2][2] = HUGE_VAL;
  EXPECT_TRUE(IsSingular(map));
  map.m[2][2] = std::nan("");
  EXPECT_TRUE(IsSingular(map));
}

}  // namespace
}  // namespace intrawarp
