// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/field_map.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "client/igtl/error_grid.h"
#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

constexpr double kPi = 3.14159265358979;

AffineMap Turn(double angle, const Vec3d& shift) {
  AffineMap map = AffineMap::Identity();
  map.m[0][0] = map.m[1][1] = std::cos(angle);
  map.m[0][1] = -std::sin(angle);
  map.m[1][0] = std::sin(angle);
  for (int row = 0; row < 3; ++row) map.m[row][3] = shift[row];
  return map;
}

Geometry Domain() {
  Geometry domain;
  domain.size = {62, 61, 60};
  domain.spacing = {1, 1.5, 2};
  domain.origin = {-30, -40, -50};
  domain.direction[0][0] = domain.direction[1][1] = 0;
  domain.direction[0][1] = 1;
  domain.direction[1][0] = -1;
  return domain;
}

Geometry Strided(Geometry grid, int stride) {
  for (int axis = 0; axis < 3; ++axis) {
    grid.size[axis] = (grid.size[axis] + stride - 1) / stride;
    grid.spacing[axis] *= stride;
  }
  return grid;
}

// A smooth deformation of some millimetres.
Vec3d U(const Vec3d& x) { return {3 * std::sin(x.y / 30), 2 * std::cos(x.z / 40), 2 * std::sin((x.x + x.y) / 50)}; }

double Distance(const Vec3d& a, const Vec3d& b) { return std::sqrt(Dot(a - b, a - b)); }

std::shared_ptr<const FieldMap> MakeMap(const AffineMap& affine, int stride) {
  const Geometry grid = Strided(Domain(), stride);
  const AffineMap to_physical = IndexToPhysical(grid);
  std::vector<float> d;
  for (int k = 0; k < grid.size.z; ++k) {
    for (int j = 0; j < grid.size.y; ++j) {
      for (int i = 0; i < grid.size.x; ++i) {
        const Vec3d x = to_physical(Vec3d{double(i), double(j), double(k)});
        const Vec3d moved = affine(x + U(x)) - x;
        for (int axis = 0; axis < 3; ++axis) d.push_back(static_cast<float>(moved[axis]));
      }
    }
  }
  return FieldMap::Make(grid, Domain(), affine, d).value();
}

Vec3d RandomPoint(std::mt19937& random, double low, double high) {
  std::uniform_real_distribution<double> part(low, high);
  const Geometry domain = Domain();
  return IndexToPhysical(domain)(Vec3d{part(random) * (domain.size.x - 1), part(random) * (domain.size.y - 1),
                                       part(random) * (domain.size.z - 1)});
}

TEST(FieldMap, AThousandPointsFollowTheFieldForthAndBack) {
  const AffineMap affine = Turn(2.5, {100, -20, 5});
  const auto map = MakeMap(affine, 4);
  std::mt19937 random(3);
  double worst = 0;
  for (int i = 0; i < 1000; ++i) {
    const Vec3d x = RandomPoint(random, 0, 0.93);
    const Vec3d y = map->Map(x);
    worst = std::max(worst, Distance(y, affine(x + U(x))));
    const auto back = map->MapInverse(y);
    ASSERT_TRUE(back.has_value()) << i;
    EXPECT_LT(Distance(*back, x), 2e-3) << i;
  }
  // Trilinear between nodes 8 mm apart: |u''| h^2 / 8 for each axis.
  EXPECT_LT(worst, 0.1);
  EXPECT_GT(worst, 0);
}

TEST(FieldMap, OutsideTheDomainOnlyTheAffinePartIsLeft) {
  const AffineMap affine = Turn(0.3, {1, 2, 3});
  const auto map = MakeMap(affine, 4);
  std::mt19937 random(4);
  for (int i = 0; i < 100; ++i) {
    const Vec3d x = RandomPoint(random, 1.1, 1.5);
    EXPECT_LT(Distance(map->Map(x), affine(x)), 1e-12);
  }
  // Beyond the last node, within the domain: the border's value.
  const Vec3d last = IndexToPhysical(Domain())(Vec3d{61, 60, 59});
  EXPECT_GT(Distance(map->Map(last), affine(last)), 1);
}

TEST(FieldMap, PosesTurnWithTheField) {
  const auto rigid = MakeMap(Turn(0, {}), 4);
  const auto turned = MakeMap(Turn(kPi / 2, {}), 4);
  std::mt19937 random(5);
  AffineMap pose = Turn(0.4, RandomPoint(random, 0.2, 0.8));
  const AffineMap a = rigid->MapPose(pose), b = turned->MapPose(pose);
  EXPECT_NEAR(Determinant(a), 1, 1e-9);
  const AffineMap expected = Compose(Turn(kPi / 2, {}), a);
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 4; ++column) EXPECT_NEAR(b.m[row][column], expected.m[row][column], 1e-3);
  }
  const auto back = turned->MapPoseInverse(b);
  ASSERT_TRUE(back.has_value());
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 4; ++column) EXPECT_NEAR(back->m[row][column], pose.m[row][column], 1e-2);
  }
}

TEST(FieldMap, AFoldHasNoInverse) {
  Geometry grid;
  grid.size = {9, 1, 1};
  std::vector<float> d(27, 0);
  for (int i = 0; i < 9; ++i) d[3 * i] = i % 2 == 0 ? 3.f : -3.f;
  const auto map = FieldMap::Make(grid, grid, AffineMap::Identity(), d).value();
  int without = 0;
  for (double x = 0; x < 8; x += 0.1) without += map->MapInverse({x, 0, 0}).has_value() ? 0 : 1;
  EXPECT_GT(without, 0);
}

TEST(FieldMap, RefusesWhatIsNoField) {
  const Geometry grid = Strided(Domain(), 8);
  std::vector<float> d(3 * grid.voxels(), 0);
  EXPECT_EQ(FieldOf(FieldMap::Make(grid, Domain(), AffineMap{}, d).status()), "affine");
  d[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(FieldOf(FieldMap::Make(grid, Domain(), AffineMap::Identity(), d).status()), "field");
  d.pop_back();
  EXPECT_EQ(FieldOf(FieldMap::Make(grid, Domain(), AffineMap::Identity(), d).status()), "field");
}

TEST(ErrorGrid, GivesTheNearestBlockWithAnEstimate) {
  Geometry blocks;
  blocks.size = {5, 1, 1};
  blocks.spacing = {10, 10, 10};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto grid = ErrorGrid::Make(blocks, {nan, nan, 2, 3, nan}, {nan, nan, 4, 6, nan});
  ASSERT_TRUE(grid.ok());
  EXPECT_EQ(grid->At({31, 0, 0})->expected_mm, 3);
  EXPECT_EQ(grid->At({31, 0, 0})->bound_mm, 6);
  EXPECT_EQ(grid->At({14, 0, 0})->expected_mm, 2);
  EXPECT_FALSE(grid->At({-8, 0, 0}).has_value());
  EXPECT_FALSE(grid->At({500, 0, 0}).has_value());
  EXPECT_FALSE(grid->At({nan, 0, 0}).has_value());
  EXPECT_FALSE(ErrorGrid::Make(blocks, {1}, {1}).ok());
}

}  // namespace
}  // namespace intrawarp::igtl
