// SPDX-License-Identifier: Apache-2.0
#include "engine/feature/sampled_image.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/feature/node_grid.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

class SampledImageTest : public DeviceTest {
 protected:
  struct Samples {
    std::vector<float> values;
    std::vector<uint8_t> valid;
  };
  Samples Sample(const PreparedImage& image, ConstMaskView mask, const Transform& transform, const Geometry& grid) {
    auto* values = Poisoned<float>(grid.voxels());
    auto* valid = Poisoned<uint8_t>(grid.voxels());
    EXPECT_OK(SampleImage(ctx(), image, mask, transform, grid, values, valid));
    return {Download(values, grid.voxels()), Download(valid, grid.voxels())};
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SampledImageTest);

// On a ramp every level has the same values away from the faces.
TEST_P(SampledImageTest, SamplesARampThroughAMapWithItsMask) {
  Geometry g;
  g.size = {24, 20, 16};
  g.spacing = {1, 2, 1.5};
  g.origin = {5, -3, 2};
  std::vector<float> ramp;
  std::vector<uint8_t> mask;
  for (int i = 0; i < g.voxels(); ++i) {
    ramp.push_back(static_cast<float>(i % g.size.x));
    mask.push_back(i % g.size.x < 12 ? 1 : 0);
  }
  const PreparedImage image = *PreparedImage::Prepare(ctx(), ramp.data(), PixelType::kFloat32, 1, 0, g);
  const MaskView view{Upload(mask), g};
  AffineMap shift = AffineMap::Identity();
  shift.m[0][3] = 4;
  for (const Int3 counts : {Int3{24, 20, 16}, Int3{8, 5, 4}}) {
    const Geometry grid = Divided(g, counts);
    const Samples samples = Sample(image, view, Transform(shift), grid);
    for (int64_t i = 0; i < grid.voxels(); ++i) {
      const double x =
          (grid.origin.x + static_cast<double>(i % counts.x) * grid.spacing.x + 4 - g.origin.x) / g.spacing.x;
      if (x > 1 && x < 22) {
        EXPECT_NEAR(samples.values[i], x, 1e-4) << i;
      } else if (x > 24) {
        EXPECT_GT(samples.values[i], 20) << i;
      }
      const bool is_allowed = x <= 23.5 && std::lround(x) < 12;
      EXPECT_EQ(samples.valid[i], is_allowed ? 1 : 0) << i << " at " << x;
    }
  }
}

// A mask's weights are in `valid`, in steps of 1/255.
TEST_P(SampledImageTest, SamplesTheWeightsOfAMask) {
  Geometry g;
  g.size = {24, 20, 16};
  std::vector<uint8_t> mask;
  for (int i = 0; i < g.voxels(); ++i) mask.push_back(static_cast<uint8_t>(i % 24 * 11));
  const PreparedImage image =
      *PreparedImage::Prepare(ctx(), RandomFloats(g.voxels(), 5).data(), PixelType::kFloat32, 1, 0, g);
  const uint8_t* bytes = Upload(mask);
  const Samples weighted = Sample(image, {bytes, g, kWeightPerUnit}, Transform(AffineMap::Identity()), g),
                steep = Sample(image, {bytes, g, 0.01f}, Transform(AffineMap::Identity()), g),
                plain = Sample(image, {bytes, g}, Transform(AffineMap::Identity()), g);
  for (size_t i = 0; i < mask.size(); ++i) {
    EXPECT_EQ(weighted.valid[i], mask[i]);
    EXPECT_EQ(steep.valid[i], std::min(255, static_cast<int>(2.55 * mask[i] + 0.5))) << i;
    EXPECT_EQ(plain.valid[i], mask[i] != 0 ? 1 : 0);
  }
}

TEST(NodeGrid, CountsAreOfCubes) {
  Geometry g;
  g.size = {200, 100, 50};
  g.spacing = {1, 1, 4};
  EXPECT_EQ(CubicCounts(g, 4000), (Int3{20, 10, 20}));
  g.size.z = 1;
  EXPECT_EQ(CubicCounts(g, 200), (Int3{20, 10, 1}));
  // No finer than a voxel.
  EXPECT_EQ(CubicCounts(g, 1 << 30), (Int3{200, 100, 1}));
}

}  // namespace
}  // namespace intrawarp
