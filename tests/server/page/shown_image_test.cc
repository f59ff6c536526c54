// SPDX-License-Identifier: Apache-2.0
#include "server/page/shown_image.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace intrawarp::server {
namespace {

Geometry GridOf(Int3 size) {
  Geometry grid;
  grid.size = size;
  grid.spacing = {2, 3, 4};
  grid.origin = {-10, 5, 7};
  return grid;
}

template <typename T>
std::vector<T> Ramp(const Geometry& grid) {
  std::vector<T> pixels(grid.voxels());
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<T>(i * 7 % 1000);
  return pixels;
}

TEST(ShownImage, WordsKeepWholeNumbersAsTheyAre) {
  const Geometry grid = GridOf({5, 4, 3});
  const std::vector<int16_t> pixels = Ramp<int16_t>(grid);
  const Rescale rescale{2, -100};
  const ShownRange range = RangeOf(pixels.data(), PixelType::kInt16, rescale, grid);
  const ShownImage image = ShowImage(pixels.data(), PixelType::kInt16, rescale, grid, range, ShownLimits());
  for (int z = 0; z < 3; ++z) {
    for (int y = 0; y < 4; ++y) {
      for (int x = 0; x < 5; ++x) {
        const Vec3d at = IndexToPhysical(grid)({double(x), double(y), double(z)});
        EXPECT_NEAR(image.At(at).value(), 2 * pixels[(z * 4 + y) * 5 + x] - 100, 1e-6);
      }
    }
  }
  EXPECT_FALSE(image.At(IndexToPhysical(grid)({-0.6, 0, 0})));
}

TEST(ShownImage, UnsignedWordsAboveHalfSurvive) {
  const Geometry grid = GridOf({2, 1, 1});
  const std::vector<uint16_t> pixels = {65535, 1};
  const ShownImage image = ShowImage(pixels.data(), PixelType::kUint16, {}, grid, {}, ShownLimits());
  EXPECT_EQ(image.At(grid.origin).value(), 65535);
}

TEST(ShownImage, LargeOnesAreBytesAndLargerOnesAreCoarser) {
  const Geometry grid = GridOf({9, 8, 7});
  const std::vector<float> pixels = Ramp<float>(grid);
  const ShownRange range = RangeOf(pixels.data(), PixelType::kFloat32, {}, grid);
  const ShownImage bytes = ShowImage(pixels.data(), PixelType::kFloat32, {}, grid, range, {100, 1 << 20});
  EXPECT_TRUE(bytes.is_byte);
  EXPECT_EQ(bytes.voxels->size(), grid.voxels());
  const double value = std::clamp<double>(pixels[1], range.black, range.white);
  EXPECT_NEAR(bytes.At(IndexToPhysical(grid)({1, 0, 0})).value(), value, (range.white - range.black) / 255);
  const ShownImage coarse = ShowImage(pixels.data(), PixelType::kFloat32, {}, grid, range, {1 << 20, 100});
  EXPECT_EQ(coarse.grid.size, (Int3{5, 4, 4}));
  EXPECT_EQ(coarse.grid.spacing.x, 4);
}

TEST(ShownImage, NotANumberHasNoPartInTheRange) {
  const Geometry grid = GridOf({4, 1, 1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> pixels = {nan, 1, 2, 3};
  const ShownRange range = RangeOf(pixels.data(), PixelType::kFloat32, {}, grid);
  EXPECT_TRUE(std::isfinite(range.low) && std::isfinite(range.high));
  EXPECT_LT(range.black, range.white);
  const std::vector<float> flat(4, 5.0f);
  const ShownRange even = RangeOf(flat.data(), PixelType::kFloat32, {}, grid);
  EXPECT_LT(even.black, even.white);
}

TEST(ShownField, ReachesTheCornersOfTheDomain) {
  for (const Int3 size : {Int3{1, 1, 1}, Int3{2, 5, 1}, Int3{64, 63, 20}, Int3{512, 512, 400}}) {
    const Geometry domain = GridOf(size);
    const Geometry grid = CoarseGrid(domain);
    EXPECT_LE(grid.voxels(), 350000);
    const Vec3d last = IndexToPhysical(domain)({size.x - 1.0, size.y - 1.0, size.z - 1.0});
    const Vec3d node = IndexToPhysical(grid)({grid.size.x - 1.0, grid.size.y - 1.0, grid.size.z - 1.0});
    EXPECT_NEAR(last.x, node.x, 1e-9);
    EXPECT_NEAR(last.y, node.y, 1e-9);
    EXPECT_NEAR(last.z, node.z, 1e-9);
  }
}

TEST(ShownField, MapsByItsNodes) {
  const Geometry grid = CoarseGrid(GridOf({9, 9, 9}));
  std::vector<float> nodes(3 * grid.voxels());
  for (size_t i = 0; i < nodes.size(); i += 3) {
    nodes[i] = 20;
    nodes[i + 2] = -1;
  }
  const ShownField field = ShowField(nodes.data(), grid);
  const Vec3d to = field.Map({-3, 8, 9});
  EXPECT_NEAR(to.x, 17, 1e-3);
  EXPECT_NEAR(to.y, 8, 1e-3);
  EXPECT_NEAR(to.z, 8, 1e-3);
}

}  // namespace
}  // namespace intrawarp::server
