// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/landmark_force.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

Geometry LevelGrid() {
  Geometry g;
  g.size = {15, 13, 11};
  g.spacing = {2, 3, 4};
  g.origin = {-10, 5, 7};
  return g;
}

// A component of a voxel, in either layout.
int64_t Place(const FieldLayout& layout, int64_t voxel, int component) {
  return layout.voxel_step * voxel + layout.component_step * component;
}

class LandmarkForceTest : public DeviceTest {
 protected:
  struct Output {
    std::vector<float> force;
    double term = 0;
  };

  // The force added to `before` where the velocity is the same everywhere; a weight below 0 is the second pass.
  Output Run(const std::vector<Landmark>& landmarks, Vec3f velocity, float weight, const std::vector<float>& before,
             FieldLayout layout, int done = 0) {
    const Geometry g = LevelGrid();
    OwnedContext owned = *OwnedContext::Create(device(), LandmarkForceBytes(static_cast<int64_t>(landmarks.size())));
    std::vector<float> field(3 * g.voxels());
    for (int64_t i = 0; i < g.voxels(); ++i)
      for (int c = 0; c < 3; ++c) field[Place(layout, i, c)] = velocity[c];
    DemonsState state;
    state.done = done;
    state.landmarks = -1;
    state.largest = std::max({std::abs(velocity.x), std::abs(velocity.y), std::abs(velocity.z)});
    DemonsState* on_device = Upload(std::vector<DemonsState>{state});
    float* force = Upload(before);
    const absl::StatusOr<LandmarkForce> placed =
        PlaceLandmarkForce(owned.context(), landmarks, Affine(), g, g.size, /*max_step=*/2);
    EXPECT_OK(placed);
    EXPECT_OK(FollowLandmarks(owned.context(), *placed, Upload(field), g.size, layout, on_device));
    EXPECT_OK(AddLandmarkForce(owned.context(), *placed, weight, g.size, layout, force, on_device));
    EXPECT_OK(device().Synchronize(owned.context().stream()));
    return {Download(force, before.size()), Download(on_device, 1)[0].landmarks};
  }

  static AffineMap Affine() {
    AffineMap map = AffineMap::Identity();
    map.m[0][3] = 100;
    map.m[1][1] = 1.25;
    return map;
  }
  // Its fixed point is voxel (7, 6, 5), its moving one that voxel and so many more before the affine part.
  static Landmark At(Vec3d away, double sigma_mm) {
    const AffineMap to_point = IndexToPhysical(LevelGrid());
    return {to_point(Vec3d{7, 6, 5}), Affine()(to_point(Vec3d{7, 6, 5} + away)), sigma_mm};
  }
  static std::vector<float> Zero() { return std::vector<float>(4 * LevelGrid().voxels()); }
  static int64_t Middle() { return (int64_t{5} * 13 + 6) * 15 + 7; }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LandmarkForceTest);

TEST_P(LandmarkForceTest, PullsByWhatTheVelocityHasNotReached) {
  const Vec3d away{1, -0.5, 0.25};
  const Vec3f velocity{0.5f, 0.25f, -0.25f};
  const Int3 n = LevelGrid().size;
  for (const FieldLayout& layout : {FieldLayout::Interleaved(), FieldLayout::Planes(n)}) {
    const Output got = Run({At(away, 5)}, velocity, 1, Zero(), layout);
    // At the landmark g is 1, and N / D is the residual.
    const float denominator = got.force[3 * LevelGrid().voxels() + Middle()];
    const double side = std::cbrt(24.0);
    EXPECT_NEAR(denominator, kLandmarkCertainty * side * side / 25, 1e-6);
    for (int c = 0; c < 3; ++c) {
      EXPECT_NEAR(got.force[Place(layout, Middle(), c)] / denominator, away[c] - velocity[c], 1e-5) << c;
    }
    const Vec3d mm{2 * 0.5, 1.25 * 3 * -0.75, 4 * 0.5};
    EXPECT_NEAR(got.term, kLandmarkWeight * Dot(mm, mm) / 25, 1e-8);
    // It falls off to 0 at the reach: 25 mm are 12.5 voxels along x, 8.3 along y, 6.25 along z.
    const float beside = got.force[3 * LevelGrid().voxels() + Middle() + 4];
    EXPECT_NEAR(beside / denominator, std::pow(1 - 64.0 / 625, 3), 1e-5);
  }
}

TEST_P(LandmarkForceTest, TheSecondPassPullsTheOtherWay) {
  const Vec3d away{1, -1, 1};
  const Vec3f velocity{0.25f, 0, 0};
  const FieldLayout layout = FieldLayout::Interleaved();
  const Output got = Run({At(away, 5)}, velocity, -0.5f, Zero(), layout);
  const int64_t target = (int64_t{6} * 13 + 5) * 15 + 8;
  const float denominator = got.force[3 * LevelGrid().voxels() + target];
  EXPECT_GT(denominator, 0);
  // r = f - exp(-v)(y), and the weight of the pass turns it.
  const double wanted[3] = {1 - 0.25, -1, 1};
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(got.force[3 * target + c] / denominator, wanted[c], 1e-5) << c;
}

TEST_P(LandmarkForceTest, IsNoLongerThanTheLongestStepAndNoSurerThanOne) {
  const Output got = Run({At({20, 0, 0}, 0.1)}, {0, 0, 0}, 1, Zero(), FieldLayout::Interleaved());
  const float denominator = got.force[3 * LevelGrid().voxels() + Middle()];
  EXPECT_FLOAT_EQ(denominator, 1);
  const double step = got.force[3 * Middle()] * 2 / std::cbrt(24.0);
  EXPECT_NEAR(step, 2, 1e-5);
}

// On a grid of twice as large voxels the same pulls, in its voxels: the certainty and the longest step are the level's.
TEST_P(LandmarkForceTest, OnACoarserVelocityTheLevelDecides) {
  const Geometry coarse = LevelGrid();
  Geometry level = coarse;
  for (int a = 0; a < 3; ++a) {
    level.size[a] = 2 * coarse.size[a];
    level.spacing[a] = coarse.spacing[a] / 2;
    level.origin[a] = coarse.origin[a] - level.spacing[a] / 2;
  }
  const std::vector<Landmark> landmarks = {At({1, -0.5, 0.25}, 5), At({20, 0, 0}, 0.1)};
  OwnedContext owned = *OwnedContext::Create(device(), LandmarkForceBytes(2));
  const absl::StatusOr<LandmarkForce> placed =
      PlaceLandmarkForce(owned.context(), landmarks, Affine(), level, coarse.size, /*max_step=*/2);
  ASSERT_OK(placed);
  const std::vector<LevelLandmark> at = Download(placed->placed, 2);
  for (int a = 0; a < 3; ++a) {
    EXPECT_NEAR(at[0].fixed[a], Vec3f({7, 6, 5})[a], 1e-5) << a;
    EXPECT_NEAR(at[0].target[a], Vec3f({8, 5.5f, 5.25f})[a], 1e-5) << a;
    EXPECT_NEAR(placed->sides[a], coarse.spacing[a] / std::cbrt(3.0), 1e-5) << a;
    EXPECT_NEAR(placed->falloff[a], coarse.spacing[a] * coarse.spacing[a] / 625, 1e-6) << a;
  }
  EXPECT_NEAR(at[0].certainty, kLandmarkCertainty * std::pow(3.0, 2.0 / 3) / 25, 1e-7);
  EXPECT_EQ(at[1].certainty, 1);
  DemonsState state;
  DemonsState* const on_device = Upload(std::vector<DemonsState>{state});
  float* const force = Upload(Zero());
  const FieldLayout layout = FieldLayout::Interleaved();
  const float* const velocity = Upload(std::vector<float>(3 * coarse.voxels()));
  ASSERT_OK(FollowLandmarks(owned.context(), *placed, velocity, coarse.size, layout, on_device));
  ASSERT_OK(AddLandmarkForce(owned.context(), *placed, 1, coarse.size, layout, force, on_device));
  ASSERT_OK(device().Synchronize(owned.context().stream()));
  const std::vector<float> got = Download(force, Zero().size());
  // The surer one leads: 20 voxels along x, shortened to two mean sides of the level's voxels.
  const double step = got[3 * Middle()] / got[3 * coarse.voxels() + Middle()];
  EXPECT_NEAR(step * 2 / std::cbrt(3.0), 2, 0.02);
  const Vec3d mm{2, 1.25 * 3 * -0.5, 4 * 0.25};
  EXPECT_NEAR(Download(on_device, 1)[0].landmarks, kLandmarkWeight * (Dot(mm, mm) / 25 + 40.0 * 40 / 0.01),
              1e-4 * kLandmarkWeight * 160000);
}

TEST_P(LandmarkForceTest, AddsToWhatIsThereAndSeveralLandmarksAdd) {
  const std::vector<float> before = RandomFloats(Zero().size(), 17, -1, 1);
  const FieldLayout layout = FieldLayout::Interleaved();
  const Landmark a = At({1, 0, 0}, 5), b = At({0, 1, 0}, 4);
  const Output of_a = Run({a}, {}, 1, Zero(), layout), of_b = Run({b}, {}, 1, Zero(), layout);
  const Output both = Run({a, b}, {}, 1, before, layout);
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_NEAR(both.force[i], before[i] + of_a.force[i] + of_b.force[i], 2e-6) << i;
  }
  EXPECT_NEAR(both.term, of_a.term + of_b.term, 1e-12);
}

TEST_P(LandmarkForceTest, NothingHappensOnceTheLevelIsDone) {
  const std::vector<float> before = RandomFloats(Zero().size(), 18, -1, 1);
  const Output got = Run({At({1, 0, 0}, 5)}, {}, 1, before, FieldLayout::Interleaved(), /*done=*/1);
  EXPECT_EQ(got.force, before);
  EXPECT_EQ(got.term, -1);
}

}  // namespace
}  // namespace intrawarp
