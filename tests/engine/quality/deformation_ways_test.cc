// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/deformation_ways.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr double kRadian = 180 / M_PI;

std::vector<Vec3d> RandomPlaces(int count, uint32_t seed) {
  const std::vector<float> values = RandomFloats(3 * count, seed, -80, 80);
  std::vector<Vec3d> places;
  for (int i = 0; i < count; ++i) {
    places.push_back({values[3 * i] + 40, values[3 * i + 1], 0.5 * values[3 * i + 2]});
  }
  return places;
}

// About an axis, degrees.
AffineMap Turn(int axis, double degrees) {
  AffineMap map = AffineMap::Identity();
  const int a = (axis + 1) % 3, b = (axis + 2) % 3;
  map.m[a][a] = map.m[b][b] = std::cos(degrees / kRadian);
  map.m[b][a] = std::sin(degrees / kRadian);
  map.m[a][b] = -map.m[b][a];
  return map;
}

std::vector<Vec3d> WaysOf(const std::vector<Vec3d>& places, const AffineMap& map) {
  std::vector<Vec3d> ways;
  for (const Vec3d& p : places) ways.push_back(map(p) - p);
  return ways;
}

TEST(TurnDegreesTest, IsTheAngleOfARotationWhereverItsCentreIs) {
  for (int axis = 0; axis < 3; ++axis) {
    for (const double degrees : {0.0, 0.01, 5.0, 20.0, -75.0, 179.0}) {
      AffineMap map = Turn(axis, degrees);
      for (int a = 0; a < 3; ++a) map.m[a][3] = 10 * a - 30;
      const std::vector<Vec3d> places = RandomPlaces(200, 3);
      EXPECT_NEAR(TurnDegrees(places, WaysOf(places, map)), std::abs(degrees), 1e-5) << axis;
    }
  }
}

// Stretching and shearing a body without a rotation doesn't turn it, and a small deformation is in the mean.
TEST(TurnDegreesTest, ADeformationThatTurnsNothingIsNearZero) {
  AffineMap stretch = AffineMap::Identity();
  stretch.m[0][0] = 1.3;
  stretch.m[1][1] = 0.8;
  std::vector<Vec3d> places;
  for (const Vec3d& p : RandomPlaces(300, 5)) {
    // Each place with its mirror images, whose covariance is diagonal.
    for (int k = 0; k < 8; ++k) places.push_back({k & 1 ? p.x : -p.x, k & 2 ? p.y : -p.y, k & 4 ? p.z : -p.z});
  }
  EXPECT_NEAR(TurnDegrees(places, WaysOf(places, stretch)), 0, 1e-6);
  std::vector<Vec3d> ways;
  for (const Vec3d& p : places)
    ways.push_back({5 * std::sin(0.3 * p.y), 5 * std::sin(0.3 * p.z), 4 * std::sin(0.2 * p.x)});
  EXPECT_LT(TurnDegrees(places, ways), 2);
}

// In any plane, also where the mean of equal coordinates is not one of them.
TEST(TurnDegreesTest, WorksInAPlane) {
  for (const double z : {7.0, 7.3, 0.1, -12.7}) {
    std::vector<Vec3d> places = RandomPlaces(60, 9);
    for (Vec3d& p : places) p.z = z;
    EXPECT_NEAR(TurnDegrees(places, WaysOf(places, Turn(2, 12))), 12, 1e-6) << z;
    const AffineMap oblique = Compose(Turn(0, 33), Turn(1, 21));
    std::vector<Vec3d> turned = places;
    for (Vec3d& p : turned) p = oblique(p);
    EXPECT_NEAR(TurnDegrees(turned, WaysOf(turned, Compose(oblique, Compose(Turn(2, 12), Inverse(oblique))))), 12,
                1e-6);
  }
}

TEST(TurnDegreesTest, IsZeroWhereThereIsNoRotation) {
  const std::vector<Vec3d> three = RandomPlaces(3, 1), many = RandomPlaces(40, 2);
  EXPECT_EQ(TurnDegrees(three, WaysOf(three, Turn(0, 30))), 0);
  EXPECT_EQ(TurnDegrees({}, {}), 0);
  AffineMap mirror = AffineMap::Identity();
  mirror.m[0][0] = -1;
  EXPECT_EQ(TurnDegrees(many, WaysOf(many, mirror)), 0);
  std::vector<Vec3d> line;
  for (int i = 0; i < 20; ++i) line.push_back({4.0 * i, 7.3, 2});
  EXPECT_EQ(TurnDegrees(line, WaysOf(line, Turn(2, 12))), 0);
  const std::vector<Vec3d> same(10, Vec3d{1, 2, 3}), ways(10);
  EXPECT_EQ(TurnDegrees(same, ways), 0);
  std::vector<Vec3d> undefined = WaysOf(many, Turn(0, 30));
  undefined[7].x = NAN;
  EXPECT_EQ(TurnDegrees(many, undefined), 0);
}

class DeformationWaysTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DeformationWaysTest);

// A constant displacement in front of an affine part.
TEST_P(DeformationWaysTest, AreBeforeTheAffinePart) {
  Geometry grid;
  grid.size = {8, 7, 6};
  grid.spacing = {10, 10, 10};
  std::vector<float> field;
  for (int64_t i = 0; i < grid.voxels(); ++i) field.insert(field.end(), {3, -2, 1});
  AffineMap affine = Turn(2, 30);
  affine.m[0][3] = 50;
  Buffer on_device = *device().Allocate(field.size() * sizeof(float), ctx().stream());
  ASSERT_OK(device().Copy(on_device.as<float>(), field.data(), on_device.bytes(), ctx().stream()));
  // Control points of one displacement.
  const Transform transform(affine, std::move(on_device), grid, std::nullopt);
  const std::vector<Vec3d> places = {{20, 30, 25}, {41, 33, 11}};
  const absl::StatusOr<std::vector<Vec3d>> ways = DeformationWays(ctx(), transform, places);
  ASSERT_OK(ways) << ways.status();
  for (const Vec3d& way : *ways) {
    EXPECT_NEAR(way.x, 3, 1e-4);
    EXPECT_NEAR(way.y, -2, 1e-4);
    EXPECT_NEAR(way.z, 1, 1e-4);
  }
  const absl::StatusOr<std::vector<Vec3d>> none = DeformationWays(ctx(), Transform(affine), places);
  ASSERT_OK(none);
  for (const Vec3d& way : *none) EXPECT_EQ(Dot(way, way), 0);
}

}  // namespace
}  // namespace intrawarp
