// SPDX-License-Identifier: Apache-2.0
#include "engine/image/two_regions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

Geometry GridOf(Int3 size, Vec3d spacing = {2, 2, 2}) {
  Geometry g = ObliqueGeometry(size, /*left_handed=*/false);
  g.spacing = spacing;
  return g;
}

// h of each axis, as two_regions.h defines it.
Vec3d PerSide(const Geometry& g) {
  double product = 1, axes = 0;
  for (int a = 0; a < 3; ++a) {
    if (g.size[a] > 1) product *= g.spacing[a], axes += 1;
  }
  const double mean = std::pow(product, 1 / axes);
  return {mean / g.spacing.x, mean / g.spacing.y, mean / g.spacing.z};
}

// The cost of a share.
double Energy(const Geometry& g, const std::vector<float>& cost, double weight, const std::vector<double>& share) {
  const Int3 n = g.size;
  const int64_t stride[3] = {1, n.x, int64_t{n.x} * n.y};
  const Vec3d h = PerSide(g);
  double sum = 0;
  for (int64_t i = 0; i < g.voxels(); ++i) {
    const int64_t at[3] = {i % n.x, i / n.x % n.y, i / stride[2]};
    double square = 0;
    for (int a = 0; a < 3; ++a) {
      const double d = at[a] + 1 < n[a] ? h[a] * (share[i + stride[a]] - share[i]) : 0;
      square += d * d;
    }
    sum += cost[i] * share[i] + weight * std::sqrt(square);
  }
  return sum;
}

class TwoRegionsTest : public DeviceTest {
 protected:
  std::vector<float> Run(const Geometry& g, const std::vector<float>& cost, double weight, int iterations) {
    float* share = Poisoned<float>(cost.size());
    const absl::StatusOr<Decision> decision =
        SplitRegions(ctx(), {Upload(cost), g}, weight, iterations, Progress(), {share, g});
    EXPECT_OK(decision.status());
    EXPECT_EQ(decision.value_or(Decision::kCancel), Decision::kContinue);
    return Download(share, cost.size());
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(TwoRegionsTest);

TEST_P(TwoRegionsTest, ALineIsSplitAtLeastCost) {
  constexpr int kVoxels = 11;
  for (const bool along_y : {false, true}) {
    const Geometry g = along_y ? GridOf({1, kVoxels, 1}) : GridOf({kVoxels, 1, 1});
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      const std::vector<float> cost = RandomFloats(kVoxels, seed, -1, 1);
      double least = std::numeric_limits<double>::infinity();
      for (int labels = 0; labels < 1 << kVoxels; ++labels) {
        std::vector<double> share(kVoxels);
        for (int i = 0; i < kVoxels; ++i) share[i] = labels >> i & 1;
        least = std::min(least, Energy(g, cost, 0.7, share));
      }
      const std::vector<float> got = Run(g, cost, 0.7, 2000);
      std::vector<double> share(kVoxels);
      for (int i = 0; i < kVoxels; ++i) share[i] = got[i] > 0.5f;
      EXPECT_NEAR(Energy(g, cost, 0.7, share), least, 1e-4) << "seed " << seed;
    }
  }
}

TEST_P(TwoRegionsTest, NoChangeOfTheShareCostsLess) {
  uint32_t seed = 30;
  for (const Int3 size : {Int3{5, 4, 3}, {7, 6, 1}, {1, 5, 4}}) {
    const Geometry g = GridOf(size, {1.5, 2, 3});
    SCOPED_TRACE(SizeString(g));
    const std::vector<float> cost = RandomFloats(g.voxels(), ++seed, -1, 1);
    const std::vector<float> got = Run(g, cost, 0.4, 4000);
    const std::vector<double> share(got.begin(), got.end());
    const double least = Energy(g, cost, 0.4, share);
    // Towards one region, towards the other, and towards halves of the grid.
    for (int trial = 0; trial < 200; ++trial) {
      const std::vector<float> plane = RandomFloats(4, ++seed, -1, 1);
      std::vector<double> other = share;
      for (int64_t i = 0; i < g.voxels(); ++i) {
        const int64_t x = i % size.x, y = i / size.x % size.y, z = i / (int64_t{size.x} * size.y);
        const bool is_above =
            plane[0] * (x - 0.5 * size.x) + plane[1] * (y - 0.5 * size.y) + plane[2] * (z - 0.5 * size.z) + plane[3] >
            0;
        const double target = trial < 2 ? trial : is_above;
        other[i] = 0.7 * share[i] + 0.3 * target;
      }
      EXPECT_GE(Energy(g, cost, 0.4, other), least - 1e-3) << trial;
    }
  }
}

TEST_P(TwoRegionsTest, ANoisyBlockComesOutWhole) {
  const Geometry g = GridOf({19, 17, 13});
  const auto in_block = [&](int64_t i) {
    const int64_t x = i % 19, y = i / 19 % 17, z = i / (19 * 17);
    return x > 4 && x < 14 && y > 3 && y < 12 && z > 3 && z < 10;
  };
  const std::vector<float> noise = RandomFloats(g.voxels(), 77, -3, 3);
  std::vector<float> cost(g.voxels());
  for (int64_t i = 0; i < g.voxels(); ++i) cost[i] = (in_block(i) ? -1.0f : 1.0f) + noise[i];
  const std::vector<float> share = Run(g, cost, 1.5, 300);
  int64_t wrong = 0;
  for (int64_t i = 0; i < g.voxels(); ++i) {
    EXPECT_TRUE(share[i] >= 0 && share[i] <= 1);
    wrong += (share[i] > 0.5f) != in_block(i);
  }
  EXPECT_LT(wrong, g.voxels() / 30);
}

TEST_P(TwoRegionsTest, WithoutAWeightEachVoxelGoesByItsCost) {
  const Geometry g = GridOf({33, 3, 2});
  const std::vector<float> cost = RandomFloats(g.voxels(), 5, -1, 1);
  const std::vector<float> share = Run(g, cost, 0, 500);
  for (size_t i = 0; i < cost.size(); ++i) {
    if (std::abs(cost[i]) <= 0.01f) continue;
    EXPECT_EQ(share[i] > 0.5f, cost[i] < 0) << i;
  }
}

TEST_P(TwoRegionsTest, RunsGiveTheSameBits) {
  const Geometry g = GridOf({23, 31, 9});
  const std::vector<float> cost = RandomFloats(g.voxels(), 9, -2, 2);
  EXPECT_EQ(Run(g, cost, 1, 40), Run(g, cost, 1, 40));
}

// A stop leaves the share of the steps so far: the bits of a split with so many iterations.
TEST_P(TwoRegionsTest, EndsAtACheckpoint) {
  constexpr int kIterations = 40, kMostAtOnce = 10;
  const Geometry g = GridOf({23, 31, 9});
  const std::vector<float> cost = RandomFloats(g.voxels(), 9, -2, 2);
  OwnedContext owned = *OwnedContext::Create(device(), SplitRegionsWorkspaceBytes(g));
  const auto run = [&](int stop_at, Decision decision, int* steps, float* share) {
    const auto checkpoint = [=](const Progress& progress) {
      EXPECT_EQ(progress.stage, 3);
      EXPECT_LE(progress.iteration - *steps, kMostAtOnce);
      *steps = progress.iteration;
      return progress.iteration < stop_at ? Decision::kContinue : decision;
    };
    return SplitRegions(owned.context(checkpoint), {Upload(cost), g}, 1, kIterations, {.stage = 3}, {share, g});
  };
  for (const int stop_at : {1, 25}) {
    int steps = 0;
    float* share = Poisoned<float>(cost.size());
    const absl::StatusOr<Decision> stopped = run(stop_at, Decision::kStop, &steps, share);
    ASSERT_OK(stopped.status());
    EXPECT_EQ(*stopped, Decision::kStop);
    EXPECT_GE(steps, stop_at);
    EXPECT_LT(steps, kIterations);
    EXPECT_EQ(Download(share, cost.size()), Run(g, cost, 1, steps));
    EXPECT_EQ(run(stop_at, Decision::kCancel, &(steps = 0), share).status().code(), absl::StatusCode::kCancelled);
  }
}

TEST_P(TwoRegionsTest, WrongArgumentsAreRefused) {
  const Geometry g = GridOf({4, 4, 4});
  const std::vector<float> cost(g.voxels());
  const auto run = [&](double weight, int iterations, const Geometry& other) {
    return SplitRegions(ctx(), {Upload(cost), g}, weight, iterations, Progress(), {Poisoned<float>(64), other})
        .status()
        .ToString();
  };
  for (const double weight : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_THAT(run(weight, 1, g), testing::HasSubstr("weight"));
  }
  EXPECT_THAT(run(1, 0, g), testing::HasSubstr("iterations"));
  EXPECT_THAT(run(1, 1, GridOf({4, 4, 3})), testing::HasSubstr("share"));
}

}  // namespace
}  // namespace intrawarp
