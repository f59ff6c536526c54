// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/residual_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/quality/deformation_gate.h"
#include "engine/quality/predicted_error.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

Geometry Grid(Int3 size, double spacing) {
  Geometry grid;
  grid.size = size;
  grid.spacing = {spacing, spacing, spacing};
  grid.origin = {-20, 5, 100};
  return grid;
}

// A smooth texture, different for each seed, at a point in mm.
double Texture(Vec3d p, int seed) {
  double sum = 0;
  for (int k = 0; k < 12; ++k) {
    const double a = 1.7 * k + 2.3 * seed, f = 0.16 + 0.02 * k;
    const Vec3d direction{std::sin(a), std::sin(2 * a + 1), std::cos(3 * a)};
    sum += std::sin(f * Dot(direction, p) + 5 * a);
  }
  return sum;
}

class ResidualProbeTest : public DeviceTest {
 protected:
  // The texture moved by `shift`, so that the map p -> p + shift brings it back; `gain` of its intensities.
  PreparedImage Image(const Geometry& grid, Vec3d shift, int seed, double gain = 1) {
    std::vector<float> voxels;
    const AffineMap to_physical = IndexToPhysical(grid);
    for (int z = 0; z < grid.size.z; ++z) {
      for (int y = 0; y < grid.size.y; ++y) {
        for (int x = 0; x < grid.size.x; ++x) {
          const Vec3d p = to_physical({double(x), double(y), double(z)});
          voxels.push_back(static_cast<float>(500 + gain * 100 * Texture(p - shift, seed)));
        }
      }
    }
    return *PreparedImage::Prepare(ctx(), voxels.data(), PixelType::kFloat32, 1, 0, grid);
  }
  PreparedImage Noise(const Geometry& grid, uint32_t seed) {
    return *PreparedImage::Prepare(ctx(), RandomFloats(grid.voxels(), seed).data(), PixelType::kFloat32, 1, 0, grid);
  }
  ResidualProbe Probe(const PreparedImage& fixed, const PreparedImage& moving, const AffineMap& map,
                      ConstMaskView fixed_mask = {}, ConstMaskView moving_mask = {}) {
    return *ProbeResidual(ctx(), fixed, moving, fixed_mask, moving_mask, Transform(map));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(ResidualProbeTest);

AffineMap Shift(Vec3d t) {
  AffineMap map = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) map.m[a][3] = t[a];
  return map;
}

TEST(ProbeGridTest, HasCubicNodesOverTheImagesDomain) {
  Geometry fixed = Grid({166, 195, 25}, 1);
  fixed.spacing = {1.37, 1.37, 4};
  const Geometry grid = ProbeGrid(fixed);
  EXPECT_NEAR(static_cast<double>(grid.voxels()), static_cast<double>(kProbeNodes), 0.1 * kProbeNodes);
  for (int a = 0; a < 3; ++a) {
    EXPECT_NEAR(grid.size[a] * grid.spacing[a], fixed.size[a] * fixed.spacing[a], 1e-9);
    EXPECT_NEAR(grid.spacing[a], grid.spacing.x, 0.05 * grid.spacing.x);
    EXPECT_NEAR(IndexToPhysical(grid)({-0.5, -0.5, -0.5})[a], IndexToPhysical(fixed)({-0.5, -0.5, -0.5})[a], 1e-9);
  }
}

TEST(ProbeGridTest, IsNoFinerThanTheImageAndKeepsAPlane) {
  EXPECT_EQ(ProbeGrid(Grid({20, 30, 10}, 2)).size, (Int3{20, 30, 10}));
  EXPECT_EQ(ProbeGrid(Grid({512, 256, 1}, 1)).size.z, 1);
  EXPECT_LE(ProbeGrid(Grid({512, 256, 1}, 1)).voxels(), kProbeNodes2d * 11 / 10);
  EXPECT_EQ(ProbeGrid(Grid({1, 1, 1}, 3)).size, (Int3{1, 1, 1}));
}

TEST(ProbeGridTest, AnAxisThinnerThanANodeLeavesThemToTheOthers) {
  for (int thin = 0; thin < 3; ++thin) {
    Geometry fixed = Grid({4096, 4096, 4096}, 1);
    fixed.size[thin] = 2;
    fixed.spacing[thin] = 0.01;
    const Geometry grid = ProbeGrid(fixed);
    EXPECT_EQ(grid.size[thin], 1);
    EXPECT_NEAR(static_cast<double>(grid.voxels()), static_cast<double>(kProbeNodes), 0.01 * kProbeNodes);
  }
  // The most blocks that a map can have.
  Geometry plate = Grid({16384, 25, 1}, 1);
  plate.size.z = 2;
  plate.spacing.z = 1e-3;
  EXPECT_LT(BlockCount(ProbeGrid(plate).size), 20000);
  Geometry line = Grid({1, 1, 900}, 1);
  line.spacing = {0.1, 0.2, 3};
  EXPECT_EQ(ProbeGrid(line).size, (Int3{1, 1, 900}));
}

TEST_P(ResidualProbeTest, SeesHowFarARightMapIsOff) {
  const Geometry grid = Grid({40, 44, 36}, 2);
  const Vec3d truth{6, -4, 2}, left{2.6, -1.4, 3.2};
  // Inverted and scaled: no metric of like intensities would see it.
  const PreparedImage fixed = Image(grid, {0, 0, 0}, 1), moving = Image(grid, truth, 1, -0.3);
  const ResidualProbe probe = Probe(fixed, moving, Shift(truth - left));
  int matched = 0, right = 0;
  for (const BlockMatch& match : probe.matches) {
    if (match.matched == 0) continue;
    ++matched;
    bool close = true;
    for (int a = 0; a < 3; ++a) {
      close = close && std::abs(match.smoothed.offset[a] * probe.node_mm[a] - left[a]) < 0.6;
    }
    right += close;
  }
  EXPECT_GT(matched, 200);
  EXPECT_GT(right, 0.9 * matched);
  const ErrorEstimate error = *PredictError(probe), none = *PredictError(Probe(fixed, moving, Shift(truth)));
  EXPECT_GT(error.expected_mm, none.expected_mm + 2);
  EXPECT_LT(none.expected_mm, 1);
  EXPECT_GT(none.agreement, 0.95);
}

TEST_P(ResidualProbeTest, UnrelatedImagesAgreeByChance) {
  const Geometry grid = Grid({44, 40, 36}, 2);
  const ErrorEstimate noise = *PredictError(Probe(Noise(grid, 1), Noise(grid, 2), AffineMap::Identity()));
  EXPECT_LT(noise.agreement, kUnrelatedChances * noise.chance);
  const ErrorEstimate textures =
      *PredictError(Probe(Image(grid, {0, 0, 0}, 1), Image(grid, {0, 0, 0}, 2), AffineMap::Identity()));
  EXPECT_LT(textures.agreement, 0.4);
  EXPECT_GT(textures.expected_mm, 3);
}

TEST_P(ResidualProbeTest, MasksAndOverlapLeaveBlocksOut) {
  const Geometry grid = Grid({40, 40, 40}, 2);
  const PreparedImage fixed = Image(grid, {0, 0, 0}, 1);
  std::vector<uint8_t> left(grid.voxels(), 0);
  for (int64_t i = 0; i < grid.voxels(); ++i) left[i] = i % 40 < 20;
  const ConstMaskView mask{Upload(left), grid};
  const auto covered = [](const ResidualProbe& probe) {
    int count = 0;
    for (const BlockMatch& match : probe.matches) count += match.covered;
    return count;
  };
  EXPECT_EQ(covered(Probe(fixed, fixed, AffineMap::Identity())), 512);
  EXPECT_EQ(covered(Probe(fixed, fixed, AffineMap::Identity(), mask)), 256);
  EXPECT_EQ(covered(Probe(fixed, fixed, AffineMap::Identity(), {}, mask)), 256);
  EXPECT_EQ(covered(Probe(fixed, fixed, Shift({0, 40, 0}))), 256);
  EXPECT_EQ(covered(Probe(fixed, fixed, Shift({500, 0, 0}))), 0);
}

TEST_P(ResidualProbeTest, AFlatImageHasNothingToMatch) {
  const Geometry grid = Grid({16, 16, 16}, 1);
  const std::vector<float> flat(grid.voxels(), 7);
  const PreparedImage image = *PreparedImage::Prepare(ctx(), flat.data(), PixelType::kFloat32, 1, 0, grid);
  EXPECT_FALSE(PredictError(Probe(image, image, AffineMap::Identity())).has_value());
}

TEST_P(ResidualProbeTest, MeasuresTheMeanDeformation) {
  const Geometry grid = Grid({20, 20, 20}, 2);
  const PreparedImage image = Image(grid, {0, 0, 0}, 1);
  std::vector<float> u(3 * grid.voxels(), 0);
  for (int64_t i = 0; i < grid.voxels(); ++i) u[3 * i + 1] = 3;
  Buffer memory = *device().Allocate(u.size() * sizeof(float), ctx().stream());
  ASSERT_OK(device().Copy(memory.as<float>(), u.data(), u.size() * sizeof(float), ctx().stream()));
  const Transform deformed(std::move(memory), grid);
  const ResidualProbe probe = *ProbeResidual(ctx(), image, image, {}, {}, deformed);
  EXPECT_NEAR(*MeanDeformation(ctx(), deformed, probe), 3, 1e-5);
  EXPECT_EQ(*MeanDeformation(ctx(), Transform(Shift({9, 9, 9})), probe), 0);
}

TEST_P(ResidualProbeTest, TakesTheWorkspaceThatItSays) {
  for (const Geometry& grid : {Grid({33, 20, 18}, 2), Grid({40, 50, 1}, 1), Grid({8, 1, 1}, 1)}) {
    OwnedContext owned = *OwnedContext::Create(device(), ResidualProbeWorkspaceBytes(grid));
    const PreparedImage image = Image(grid, {0, 0, 0}, 1);
    const Transform identity(AffineMap::Identity());
    const absl::StatusOr<ResidualProbe> a = ProbeResidual(owned.context(), image, image, {}, {}, identity);
    ASSERT_OK(a.status());
    const ResidualProbe b = Probe(image, image, AffineMap::Identity());
    EXPECT_EQ(std::memcmp(a->matches.data(), b.matches.data(), b.matches.size() * sizeof(BlockMatch)), 0);
    EXPECT_LE(MeanDeformationWorkspaceBytes(grid), ResidualProbeWorkspaceBytes(grid));
  }
}

}  // namespace
}  // namespace intrawarp
