// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/start/body.h"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class BodyTest : public DeviceTest {
 protected:
  PreparedImage Prepare(const std::vector<float>& values, const Geometry& grid) {
    return *PreparedImage::Prepare(ctx(), values.data(), PixelType::kFloat32, 1, 0, grid);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(BodyTest);

// A box of value 100 in a surround of -50.
std::vector<float> Box(Int3 size, Int3 begin, Int3 end) {
  std::vector<float> values;
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) {
        const bool inside = x >= begin.x && x < end.x && y >= begin.y && y < end.y && z >= begin.z && z < end.z;
        values.push_back(inside ? 100.0f : -50.0f);
      }
  return values;
}

TEST_P(BodyTest, PointsAreTheVoxelsOffTheBackground) {
  for (const Int3 size : {Int3{9, 7, 5}, Int3{11, 6, 1}}) {
    Geometry grid = ObliqueGeometry(size);
    const Int3 begin{2, 1, 0}, end{5, 4, size.z == 1 ? 1 : 3};
    const PreparedImage image = Prepare(Box(size, begin, end), grid);
    const absl::StatusOr<Body> body = ReadBody(ctx(), image, 0, MaskLevel{});
    ASSERT_OK(body) << body.status();
    ASSERT_EQ(body->points.size(), static_cast<size_t>(9 * (end.z - begin.z)));
    for (const Vec3d& p : body->points) {
      const Vec3d index = body->to_index(p);
      for (int a = 0; a < 3; ++a) {
        EXPECT_NEAR(index[a], std::round(index[a]), 1e-6);
        EXPECT_GE(index[a], begin[a] - 1e-6);
        EXPECT_LT(index[a], end[a] - 1 + 1e-6);
      }
    }
  }
}

TEST_P(BodyTest, AMaskCutsTheBodyAndWhatItCovers) {
  const Int3 size{8, 8, 8};
  const Geometry grid{.size = size};
  const PreparedImage image = Prepare(Box(size, {0, 2, 2}, {8, 6, 6}), grid);
  std::vector<uint8_t> half(grid.voxels());
  for (size_t i = 0; i < half.size(); ++i) half[i] = i % 8 < 4;
  const uint8_t* mask = Upload(half);
  const Body masked = *ReadBody(ctx(), image, 0, MaskLevel{{mask, grid}, 256});
  const Body whole = *ReadBody(ctx(), image, 0, MaskLevel{});
  EXPECT_EQ(whole.points.size(), 128u);
  EXPECT_EQ(masked.points.size(), 64u);
  EXPECT_EQ(CoveredFraction(whole.points, AffineMap::Identity(), whole), 1);
  EXPECT_EQ(CoveredFraction(whole.points, AffineMap::Identity(), masked), 0.5);
  AffineMap shift = AffineMap::Identity();
  shift.m[0][3] = 2.4;  // six of eight columns stay inside
  EXPECT_EQ(CoveredFraction(whole.points, shift, whole), 0.75);
  EXPECT_EQ(CoveredFraction({}, shift, whole), 0);
}

TEST_P(BodyTest, LargeBodiesAreSampled) {
  const Int3 size{32, 30, 28};
  const Geometry grid{.size = size};
  const PreparedImage image = Prepare(Box(size, {2, 2, 2}, {30, 28, 26}), grid);
  const Body body = *ReadBody(ctx(), image, 0, MaskLevel{});
  EXPECT_GE(body.points.size(), 400u);
  EXPECT_LE(body.points.size(), 410u);
}

TEST(MeanDistanceTest, IsThatOfTheMappedPoints) {
  AffineMap a = AffineMap::Identity(), b = AffineMap::Identity();
  b.m[0][3] = 3;
  b.m[1][1] = 2;
  const std::vector<Vec3d> points = {{0, 0, 0}, {1, 4, 7}};
  EXPECT_DOUBLE_EQ(MeanDistance(points, a, b), (3 + 5) / 2.0);
  EXPECT_EQ(MeanDistance({}, a, b), 0);
}

}  // namespace
}  // namespace intrawarp
