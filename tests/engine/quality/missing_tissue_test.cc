// SPDX-License-Identifier: Apache-2.0
// Missing tissue on images whose holes are known: a textured body with organs, in the moving image with another
// relation of intensities, and a hole in one of them.
#include "engine/quality/missing_tissue.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "engine/quality/verdict.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

struct Scene {
  Geometry grid;
  std::vector<float> fixed, moving;
  std::vector<uint8_t> valid, hole;

  NodeSamples samples() const { return {fixed, moving, valid}; }
};

double Distance(Vec3d a, Vec3d b) { return std::sqrt(Dot(a - b, a - b)); }

// A body of 90 mm radius with a brighter organ in it, as the intensity of a point in mm.
double Tissue(Vec3d p) {
  if (Distance(p, {0, 0, 0}) > 90) return 0;
  const double texture = 12 * std::sin(p.x / 5) * std::sin(p.y / 6 + 1) * std::sin(p.z / 7);
  return Distance(p, {35, 10, 0}) < 30 ? 180 + texture : 100 + texture;
}

struct Hole {
  Vec3d centre{-30, 0, 0};
  double radius = 20;
  double intensity = 30;
};

// `shift`: how far the moving image is off, mm. `contrast`: its intensity for the fixed one's. Noise has a deviation of
// `noise`. A hole of radius 0 is none.
Scene MakeScene(const Hole& hole, double shift = 0, const std::function<double(double)>& contrast = nullptr,
                double noise = 4, double spacing = 3) {
  Scene scene;
  const int n = static_cast<int>(210 / spacing);
  scene.grid.size = {n, n, n};
  scene.grid.spacing = {spacing, spacing, spacing};
  scene.grid.origin = {-0.5 * spacing * (n - 1), -0.5 * spacing * (n - 1), -0.5 * spacing * (n - 1)};
  const AffineMap to_point = IndexToPhysical(scene.grid);
  std::mt19937 random(11);
  std::normal_distribution<double> normal(0, noise);
  for (int z = 0; z < n; ++z)
    for (int y = 0; y < n; ++y)
      for (int x = 0; x < n; ++x) {
        const Vec3d p = to_point({double(x), double(y), double(z)});
        const bool is_hole = Distance(p, hole.centre) < hole.radius;
        const double m = Tissue({p.x, p.y, p.z + shift});
        scene.fixed.push_back(static_cast<float>((is_hole ? hole.intensity : Tissue(p)) + normal(random)));
        scene.moving.push_back(static_cast<float>((contrast ? contrast(m) : m) + normal(random)));
        scene.hole.push_back(is_hole);
      }
  scene.valid.assign(scene.fixed.size(), 1);
  return scene;
}

double Dice(const MissingTissue& found, const std::vector<uint8_t>& want) {
  if (found.nodes.empty()) return 0;
  double both = 0, sum = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    both += found.nodes[i] && want[i];
    sum += found.nodes[i] + want[i];
  }
  return 2 * both / sum;
}

TEST(MissingTissueTest, AHoleIsFoundAndMeasured) {
  const Scene scene = MakeScene({});
  const MissingTissue found = FindMissingTissue(scene.grid, scene.samples());
  EXPECT_GT(Dice(found, scene.hole), 0.9);
  const double volume = 4.0 / 3 * M_PI * 20 * 20 * 20;
  EXPECT_NEAR(found.volume_mm3, volume, 0.2 * volume);
  EXPECT_NEAR(found.fraction, found.volume_mm3 / (210.0 * 210 * 210), 1e-9);
  EXPECT_TRUE(found.Contains({-30, 0, 0}));
  EXPECT_TRUE(found.Contains({-30, 12, -8}));
  EXPECT_FALSE(found.Contains({30, 0, 0}));
  EXPECT_FALSE(found.Contains({1e6, 0, 0}));
  EXPECT_FALSE(found.Contains({std::nan(""), 0, 0}));
}

TEST(MissingTissueTest, AHoleInTheMovingImageIsFoundToo) {
  Scene scene = MakeScene({});
  std::swap(scene.fixed, scene.moving);
  EXPECT_GT(Dice(FindMissingTissue(scene.grid, scene.samples()), scene.hole), 0.9);
}

TEST(MissingTissueTest, AnotherContrastHidesNoHole) {
  const auto inverted = [](double v) { return v == 0 ? 0 : 250 - v; };
  const Scene scene = MakeScene({}, 0, inverted);
  EXPECT_GT(Dice(FindMissingTissue(scene.grid, scene.samples()), scene.hole), 0.85);
}

// CT: air at -1000 HU and bone at 1500, so that fluid in soft tissue differs by a thirtieth of the range.
Scene MakeCt(const Hole& hole, double shift, double noise) {
  Scene scene = MakeScene(hole, shift, nullptr, 0);
  const AffineMap to_point = IndexToPhysical(scene.grid);
  std::mt19937 random(12);
  std::normal_distribution<double> normal(0, noise);
  size_t i = 0;
  for (int z = 0; z < scene.grid.size.z; ++z)
    for (int y = 0; y < scene.grid.size.y; ++y)
      for (int x = 0; x < scene.grid.size.x; ++x, ++i) {
        const Vec3d p = to_point({double(x), double(y), double(z)});
        for (float* v : {&scene.fixed[i], &scene.moving[i]}) {
          if (*v == 0) *v = -1000;
          if (Distance(p, {0, 60, 0}) < 12) *v = 1500;
          *v += static_cast<float>(normal(random));
        }
      }
  return scene;
}

TEST(MissingTissueTest, FluidInSoftTissueIsFoundOnCt) {
  for (const double noise : {0.0, 8.0, 15.0}) {
    for (const double shift : {0.0, 2.0, 4.0}) {
      SCOPED_TRACE(testing::Message() << noise << " HU of noise, off by " << shift << " mm");
      const Scene scene = MakeCt({.intensity = 14}, shift, noise);
      EXPECT_GT(Dice(FindMissingTissue(scene.grid, scene.samples()), scene.hole), 0.8);
      const Scene intact = MakeCt({.radius = 0}, shift, noise);
      EXPECT_TRUE(FindMissingTissue(intact.grid, intact.samples()).nodes.empty());
    }
  }
}

// The bits do not depend on how the planes are shared out, nor on the run.
TEST(MissingTissueTest, TheSameBitsInEveryRun) {
  const Scene scene = MakeCt({.intensity = 14}, 2, 15);
  const MissingTissue first = FindMissingTissue(scene.grid, scene.samples());
  for (int run = 0; run < 3; ++run) EXPECT_EQ(FindMissingTissue(scene.grid, scene.samples()).nodes, first.nodes);
}

TEST(MissingTissueTest, WhatIsLeftOfTheMotionIsNotMissing) {
  for (const double shift : {0.0, 2.0, 4.0}) {
    SCOPED_TRACE(shift);
    const Scene scene = MakeScene({.radius = 0}, shift);
    const MissingTissue found = FindMissingTissue(scene.grid, scene.samples());
    EXPECT_TRUE(found.nodes.empty());
    EXPECT_EQ(found.volume_mm3, 0);
    EXPECT_EQ(found.fraction, 0);
  }
  const Scene scene = MakeScene({}, 4);
  EXPECT_GT(Dice(FindMissingTissue(scene.grid, scene.samples()), scene.hole), 0.8);
}

TEST(MissingTissueTest, ThinAndSmallThingsAreNotMissing) {
  for (const double radius : {2.0, 4.0}) {
    const Scene scene = MakeScene({.radius = radius});
    EXPECT_TRUE(FindMissingTissue(scene.grid, scene.samples()).nodes.empty()) << radius;
  }
}

TEST(MissingTissueTest, TheBodyOfUnrelatedImagesIsMissingAndTooMuchIsForReview) {
  Scene scene = MakeScene({.radius = 0});
  std::mt19937 random(5);
  std::shuffle(scene.moving.begin(), scene.moving.end(), random);
  EXPECT_GT(FindMissingTissue(scene.grid, scene.samples()).fraction, kMostMissing);
}

TEST(MissingTissueTest, NoiseAndDegenerateImagesShowNothing) {
  Scene scene = MakeScene({.radius = 0});
  std::mt19937 random(6);
  std::uniform_real_distribution<float> noise(0, 200);
  for (float& v : scene.moving) v = noise(random);
  for (float& v : scene.fixed) v = noise(random);
  EXPECT_TRUE(FindMissingTissue(scene.grid, scene.samples()).nodes.empty());
  std::fill(scene.moving.begin(), scene.moving.end(), 3.0f);
  EXPECT_TRUE(FindMissingTissue(scene.grid, scene.samples()).nodes.empty());
  scene = MakeScene({});
  std::fill(scene.valid.begin(), scene.valid.end(), uint8_t{0});
  EXPECT_TRUE(FindMissingTissue(scene.grid, scene.samples()).nodes.empty());
}

TEST(MissingTissueTest, NodesThatDoNotCountAreNeverMissing) {
  Scene scene = MakeScene({});
  for (size_t i = 0; i < scene.valid.size(); i += 2) scene.valid[i] = scene.hole[i] ? 0 : 1;
  const MissingTissue found = FindMissingTissue(scene.grid, scene.samples());
  EXPECT_TRUE(found.nodes.empty());
}

TEST(MissingTissueTest, APlaneHasItsHoleToo) {
  const Scene volume = MakeScene({}, 0, nullptr, 4, 2);
  Scene plane;
  plane.grid = volume.grid;
  const int64_t area = int64_t{plane.grid.size.x} * plane.grid.size.y, at = plane.grid.size.z / 2 * area;
  plane.grid.size.z = 1;
  plane.fixed.assign(volume.fixed.begin() + at, volume.fixed.begin() + at + area);
  plane.moving.assign(volume.moving.begin() + at, volume.moving.begin() + at + area);
  plane.valid.assign(area, 1);
  plane.hole.assign(volume.hole.begin() + at, volume.hole.begin() + at + area);
  EXPECT_GT(Dice(FindMissingTissue(plane.grid, plane.samples()), plane.hole), 0.85);
}

TEST(MissingTissueTest, AMarginWidensByMillimetres) {
  const Scene scene = MakeScene({});
  const MissingTissue found = FindMissingTissue(scene.grid, scene.samples());
  const MissingTissue wide = Widened(found, 6);
  int64_t more = 0;
  for (size_t i = 0; i < found.nodes.size(); ++i) {
    EXPECT_LE(found.nodes[i], wide.nodes[i]);
    more += wide.nodes[i] - found.nodes[i];
  }
  EXPECT_GT(more, 0);
  EXPECT_TRUE(wide.Contains({-30 - 20 - 3, 0, 0}));
  EXPECT_FALSE(wide.Contains({-30 - 20 - 12, 0, 0}));
  EXPECT_TRUE(Widened(MissingTissue{}, 6).nodes.empty());
}

class MissingTissueOnDeviceTest : public DeviceTest {
 protected:
  PreparedImage Prepare(const std::vector<float>& values, const Geometry& grid) {
    return *PreparedImage::Prepare(ctx(), values.data(), PixelType::kFloat32, 1, 0, grid);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MissingTissueOnDeviceTest);

TEST_P(MissingTissueOnDeviceTest, ImagesThroughATransformAreSampledAtTheNodes) {
  const Scene scene = MakeScene({});
  const PreparedImage fixed = Prepare(scene.fixed, scene.grid);
  // The moving image lies elsewhere, and the transform says where.
  Geometry elsewhere = scene.grid;
  elsewhere.origin = elsewhere.origin + Vec3d{12, -7, 4};
  const PreparedImage moving = Prepare(scene.moving, elsewhere);
  AffineMap shift = AffineMap::Identity();
  shift.m[0][3] = 12;
  shift.m[1][3] = -7;
  shift.m[2][3] = 4;
  const auto found = FindMissingTissue(ctx(), fixed, moving, {}, {}, Transform(shift));
  ASSERT_OK(found);
  EXPECT_EQ(found->grid, ProbeGrid(scene.grid));
  EXPECT_GT(Dice(*found, scene.hole), 0.9);
  // A mask that leaves the hole out.
  std::vector<uint8_t> outside(scene.hole.size());
  std::transform(scene.hole.begin(), scene.hole.end(), outside.begin(), [](uint8_t h) { return uint8_t{h == 0}; });
  const auto masked = FindMissingTissue(ctx(), fixed, moving, {Upload(outside), scene.grid}, {}, Transform(shift));
  ASSERT_OK(masked);
  EXPECT_TRUE(masked->nodes.empty());
}

}  // namespace
}  // namespace intrawarp
