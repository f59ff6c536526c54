// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/ffd_objective.h"

#include <cmath>
#include <limits>
#include <string>

#include "hwy/targets.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/ffd_objective_fixture.h"

namespace intrawarp::ffd_objective_test {
namespace {

INTRAWARP_INSTANTIATE_DEVICE_TEST(FfdObjectiveTest);

TEST_P(FfdObjectiveTest, MatchesReferenceAtManySizes) {
  const Int3 sizes[] = {{7, 6, 5},   {32, 8, 6},  {31, 7, 12}, {33, 9, 13},  {64, 16, 7}, {65, 17, 6}, {5, 33, 40},
                        {70, 35, 3}, {40, 37, 1}, {9, 80, 1},  {100, 12, 2}, {2, 40, 9},  {1, 20, 15}, {12, 1, 14}};
  uint32_t seed = 1;
  for (MetricKind metric : kMetrics) {
    for (Int3 size : sizes) {
      Options o;
      o.fixed = o.moving = size;
      o.seed = seed += 17;
      if (size.z == 1) o.degrees = {0, 0, 2.1};
      // Axes of one voxel: turning would leave them.
      if (size.x == 1 || size.y == 1) o.degrees = {0, 0, 0};
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      const double samples = Check(p);
      EXPECT_GT(samples, metric == MetricKind::kNgf ? -1 : 0.3 * p.fixed.geometry.voxels());
    }
  }
}

TEST_P(FfdObjectiveTest, MatchesReferenceForAnySpacing) {
  const Vec3d spacings[] = {{1, 1, 1}, {1.37, 2.9, 3.3}, {7.77, 1.01, 5}, {40, 3, 2.5}, {3, 40, 100}, {4, 4.5, 1.2}};
  uint32_t seed = 300;
  for (MetricKind metric : kMetrics) {
    for (const Vec3d& spacing : spacings) {
      Options o;
      o.fixed = {45, 21, 18};
      o.moving = {37, 25, 16};
      o.spacing = spacing;
      o.seed = seed += 5;
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      EXPECT_GT(Check(p), 1000);
    }
  }
}

TEST_P(FfdObjectiveTest, MatchesReferenceWithMasksAndLeftHandedGrids) {
  for (MetricKind metric : kMetrics) {
    for (int which = 1; which < 4; ++which) {
      for (Int3 size : {Int3{40, 19, 17}, Int3{50, 35, 1}}) {
        Options o;
        o.fixed = size;
        o.moving = {37, 24, size.z};
        o.seed = 400 + which;
        o.fixed_mask = which & 1;
        o.moving_mask = which & 2;
        o.left_handed = true;
        o.degrees = size.z == 1 ? Vec3d{0, 0, 3.1} : Vec3d{11.3, -14.4, 8.1};
        const HostProblem p = MakeProblem(metric, o);
        SCOPED_TRACE(Describe(p) + " masks " + std::to_string(which));
        EXPECT_GT(Check(p), 100);
      }
    }
  }
}

TEST_P(FfdObjectiveTest, MatchesReferenceWithSoftMasks) {
  const Int3 sizes[] = {{40, 19, 17}, {33, 9, 13}, {50, 35, 1}, {65, 17, 6}, {1, 20, 15}, {9, 80, 1}};
  for (MetricKind metric : kMetrics) {
    for (int which = 1; which < 4; ++which) {
      for (Int3 size : sizes) {
        Options o;
        o.fixed = size;
        o.moving = {37, 24, size.z == 1 ? 1 : 19};
        o.seed = 430 + which;
        o.fixed_mask = which & 1;
        o.moving_mask = which & 2;
        o.soft = true;
        o.degrees = size.z == 1 || size.x == 1 ? Vec3d{0, 0, size.x == 1 ? 0 : 3.1} : Vec3d{1.3, -4.4, 3.1};
        const HostProblem p = MakeProblem(metric, o);
        SCOPED_TRACE(Describe(p) + " masks " + std::to_string(which));
        EXPECT_GT(Check(p), metric == MetricKind::kNgf ? -1 : 100);
      }
    }
  }
}

// One mask's bytes are weights, the other one's are not.
TEST_P(FfdObjectiveTest, SoftAndBinaryMasksMeet) {
  for (MetricKind metric : kMetrics) {
    for (bool fixed_is_soft : {false, true}) {
      Options o;
      o.seed = 445;
      o.fixed_mask = o.moving_mask = true;
      HostProblem p = MakeProblem(metric, o);
      (fixed_is_soft ? p.fixed : p.moving).weight_per_unit = kWeightPerUnit;
      SCOPED_TRACE(Describe(p));
      EXPECT_GT(Check(p), 1000);
    }
  }
}

TEST_P(FfdObjectiveTest, MatchesReferenceOnEveryInstructionSet) {
  if (ctx().is_cuda()) GTEST_SKIP() << "only for the CPU";
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (MetricKind metric : kMetrics) {
      for (Int3 size : {Int3{43, 19, 14}, Int3{50, 35, 1}}) {
        for (bool soft : {false, true}) {
          Options o;
          o.fixed = size;
          o.moving = {37, 24, size.z};
          o.seed = 450;
          o.fixed_mask = o.moving_mask = true;
          o.soft = soft;
          if (size.z == 1) o.degrees = {0, 0, 3.1};
          const HostProblem p = MakeProblem(metric, o);
          SCOPED_TRACE(Describe(p) + " on " + hwy::TargetName(rest & -rest));
          EXPECT_GT(Check(p), 100);
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Runs along z of more than one piece, several tiles of x and y.
TEST_P(FfdObjectiveTest, MatchesReferenceForACube) {
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kNgf}) {
    Options o;
    o.fixed = {67, 43, 71};
    o.moving = {61, 52, 66};
    o.seed = 500;
    const HostProblem p = MakeProblem(metric, o);
    SCOPED_TRACE(Describe(p));
    EXPECT_GT(Check(p), 100000);
  }
}

TEST_P(FfdObjectiveTest, LeavesTheImagePartlyAndWholly) {
  for (MetricKind metric : kMetrics) {
    Options o;
    o.seed = 600;
    o.shift = {13.3, -4.2, 2.1};
    const HostProblem part = MakeProblem(metric, o);
    SCOPED_TRACE(Describe(part));
    EXPECT_GT(Check(part), 100);
    for (double far : {1e2, 1e9, -1e30, std::numeric_limits<double>::quiet_NaN()}) {
      HostProblem none = part;
      none.affine.m[1][3] += far;
      const Evaluation e = Evaluate(none);
      EXPECT_TRUE(std::isnan(e.value.metric));
      EXPECT_EQ(e.value.samples, 0);
      for (float g : e.gradient) ASSERT_EQ(g, 0);
    }
  }
}

TEST_P(FfdObjectiveTest, DifferentThicknessesMeet) {
  const Int3 pairs[][2] = {{{40, 21, 1}, {33, 30, 9}}, {{40, 21, 9}, {35, 27, 1}}, {{20, 20, 20}, {2, 2, 2}}};
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc}) {
    for (const auto& pair : pairs) {
      Options o;
      o.fixed = pair[0];
      o.moving = pair[1];
      o.seed = 650;
      o.degrees = {0, 0, 3};
      const HostProblem p = MakeProblem(metric, o);
      SCOPED_TRACE(Describe(p));
      EXPECT_GT(Check(p), 100);
    }
  }
}

// Far from the origin of the indices the positions are as good as near it.
TEST_P(FfdObjectiveTest, LongImages) {
  Options o;
  o.fixed = o.moving = {3000, 4, 3};
  o.seed = 670;
  o.degrees = {0, 0, 0};
  const HostProblem p = MakeProblem(MetricKind::kSsd, o);
  EXPECT_GT(Check(p), 10000);
}

}  // namespace
}  // namespace intrawarp::ffd_objective_test
