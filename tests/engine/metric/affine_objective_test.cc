// SPDX-License-Identifier: Apache-2.0
#include "engine/metric/affine_objective.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "hwy/targets.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/affine_objective_fixture.h"

namespace intrawarp::affine_objective_test {
namespace {

INTRAWARP_INSTANTIATE_DEVICE_TEST(AffineObjectiveTest);

TEST_P(AffineObjectiveTest, MatchesReferenceAtManySizes) {
  const Int3 sizes[] = {{1, 1, 1},  {2, 3, 1},  {3, 3, 3},   {17, 33, 1}, {16, 16, 1}, {1, 9, 7},   {9, 1, 7},
                        {64, 5, 4}, {31, 8, 5}, {33, 17, 9}, {15, 4, 3},  {129, 7, 6}, {7, 35, 34}, {67, 66, 3}};
  uint32_t seed = 1;
  for (MetricKind metric : kMetrics) {
    for (Int3 size : sizes) {
      const HostProblem p = MakeProblem(metric, size, size, seed += 17);
      SCOPED_TRACE(Describe(p));
      MapOptions map;
      map.degrees = IsFlat(p) ? Vec3d{0, 0, 2.1} : Vec3d{1.3, -2.2, 2.9};
      map.scale = {0.98, 1.01, 0.97};
      map.shift = {0.113, -0.171, IsFlat(p) ? 0.0 : 0.093};
      Check(p, MakeMap(p, map));
    }
  }
}

TEST_P(AffineObjectiveTest, MatchesReferenceForACube) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {64, 64, 64}, {64, 64, 64}, 90);
    SCOPED_TRACE(Describe(p));
    MapOptions map;
    map.degrees = {3.3, 1.2, -4.9};
    map.scale = {1.013, 0.991, 0.987};
    map.shift = {1.37, -0.61, 0.77};
    EXPECT_GT(Check(p, MakeMap(p, map)), 150000);
  }
}

// Steps along a row from -1.9 to 2 voxels, and rows that run across the moving image: every way to fetch.
TEST_P(AffineObjectiveTest, MatchesReferenceForLargeMaps) {
  const MapOptions maps[] = {{{0, 0, 90}, {1, 1, 1}, {0.2, 0.3, 0.4}},   {{0, 90, 0}, {1, 1, 1}, {0.2, 0.3, 0.4}},
                             {{20, 31, 44}, {1, 1, 1}, {0.2, 0.3, 0.4}}, {{0, 0, 180}, {1, 1, 1}, {0.2, 0.3, 0.4}},
                             {{3, 2, 1}, {-1, 1, 1}, {0.2, 0.3, 0.4}},   {{3, 2, 1}, {1, -0.9, -1.1}, {0.2, 0.3, 0.4}},
                             {{4, 3, 5}, {1.9, 1.7, 1.6}, {0.1, 0, 3}},  {{4, 3, 5}, {0.3, 0.4, 0.45}, {0.1, 0, 3}},
                             {{4, 8, 9}, {-1.4, 1.1, 1.2}, {2.1, 0, 1}}, {{0, 0, 7}, {0.6, -0.7, 0.8}, {4.1, 5, 2}}};
  for (MetricKind metric : kMetrics) {
    for (bool masked : {false, true}) {
      const HostProblem p =
          MakeProblem(metric, {45, 37, 19}, {45, 37, 19}, 200 + masked, Content::kNoisy, masked, masked);
      for (const MapOptions& map : maps) {
        SCOPED_TRACE(Describe(p) + (masked ? " masked " : " ") + std::to_string(&map - maps));
        EXPECT_GT(Check(p, MakeMap(p, map)), 300);
      }
    }
  }
}

TEST_P(AffineObjectiveTest, MatchesReferenceWhenGridsDiffer) {
  const Int3 pairs[][2] = {{{31, 8, 5}, {17, 33, 9}}, {{33, 17, 9}, {64, 12, 30}}, {{40, 21, 1}, {19, 57, 1}},
                           {{12, 11, 10}, {1, 9, 8}}, {{12, 11, 10}, {9, 1, 8}},   {{12, 11, 10}, {8, 9, 1}},
                           {{12, 11, 1}, {8, 9, 6}},  {{20, 20, 20}, {2, 2, 2}},   {{12, 1, 1}, {30, 1, 1}}};
  uint32_t seed = 300;
  for (MetricKind metric : kMetrics) {
    for (const auto& pair : pairs) {
      HostProblem p = MakeProblem(metric, pair[0], pair[1], seed += 5);
      p.intensity_scale = 2.5;
      SCOPED_TRACE(Describe(p));
      MapOptions map;
      map.degrees = IsFlat(p) ? Vec3d{0, 0, -2.6} : Vec3d{2.3, 1.4, -2.6};
      map.scale = {0.93, 0.96, 0.91};
      map.shift = {0.07, 0.11, IsFlat(p) ? 0.0 : -0.13};
      // An axis of one moving voxel takes fixed voxels only within half a voxel.
      for (int a = 0; a < 3; ++a) {
        if (pair[1][a] == 1 && pair[0][a] > 1) map.scale[a] = 0.05;
      }
      EXPECT_GT(Check(p, MakeMap(p, map)), 0);
    }
  }
}

// A slice at any angle in a volume.
TEST_P(AffineObjectiveTest, MatchesReferenceForASliceOfAVolume) {
  const Int3 slices[] = {{45, 37, 1}, {17, 33, 1}, {64, 9, 1}, {130, 70, 1}, {11, 8, 1}, {9, 1, 1}};
  const Vec3d angles[] = {{31, -22, 14}, {90, 0, 0}, {0, 87, 3}, {170, 12, -40}};
  uint32_t seed = 1300;
  for (MetricKind metric : kMetrics) {
    for (Int3 slice : slices) {
      for (const Vec3d& degrees : angles) {
        const bool masked = ++seed % 2 == 0;
        const HostProblem p = MakeProblem(metric, slice, {41, 39, 27}, seed, Content::kNoisy, masked, masked);
        SCOPED_TRACE(Describe(p) + (masked ? " masked" : "") + " seed " + std::to_string(seed));
        MapOptions map;
        map.degrees = degrees;
        map.scale = {0.71, 0.63, 0.9};
        map.shift = {0.31, -0.27, 0.17};
        EXPECT_GE(Check(p, MakeMap(p, map)), slice.x > 8 ? 1 : 0);
      }
    }
  }
}

TEST_P(AffineObjectiveTest, MatchesReferenceWithMasks) {
  for (MetricKind metric : kMetrics) {
    for (int which = 1; which < 4; ++which) {
      for (Int3 size : {Int3{33, 17, 9}, Int3{40, 35, 1}, Int3{70, 6, 5}}) {
        const HostProblem p =
            MakeProblem(metric, size, {37, 19, size.z}, 400 + which, Content::kNoisy, which & 1, which & 2);
        SCOPED_TRACE(Describe(p) + " masks " + std::to_string(which));
        MapOptions map;
        map.degrees = IsFlat(p) ? Vec3d{0, 0, 3.1} : Vec3d{1.3, -1.4, 3.1};
        map.shift = {0.31, -0.27, IsFlat(p) ? 0.0 : 0.17};
        EXPECT_GT(Check(p, MakeMap(p, map)), 50);
      }
    }
  }
}

TEST_P(AffineObjectiveTest, NotANumberOutsideTheMasksDoesNotCount) {
  // LNCC takes fixed images that are finite everywhere (lncc.h).
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi}) {
    HostProblem p = MakeProblem(metric, {24, 22, 20}, {24, 22, 20}, 450);
    p.fixed.mask.assign(p.fixed.data.size(), 1);
    p.moving.mask.assign(p.moving.data.size(), 1);
    size_t i = 0;
    // The corner octant of each image has no data; the mask leaves a margin for what neighbours reach.
    for (int z = 0; z < 20; ++z) {
      for (int y = 0; y < 22; ++y) {
        for (int x = 0; x < 24; ++x, ++i) {
          if (x < 6 && y < 6 && z < 6) p.fixed.data[i] = p.moving.data[i] = NAN;
          if (x < 9 && y < 9 && z < 9) p.fixed.mask[i] = p.moving.mask[i] = 0;
        }
      }
    }
    SCOPED_TRACE(Describe(p));
    MapOptions map;
    map.degrees = {2.1, 1.2, -1.9};
    map.shift = {0.41, 0.32, 0.23};
    EXPECT_GT(Check(p, MakeMap(p, map)), 4000);
  }
}

TEST_P(AffineObjectiveTest, LeavesTheImagePartlyAndWholly) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {33, 17, 9}, {31, 18, 11}, 500);
    SCOPED_TRACE(Describe(p));
    MapOptions map;
    map.degrees = {2.1, 3.2, -1.9};
    map.shift = {14.3, -5.2, 2.1};
    EXPECT_GT(Check(p, MakeMap(p, map)), 100);
    for (int axis = 0; axis < 3; ++axis) {
      for (double far : {-1e2, 1e2, 1e9, -1e30}) {
        MapOptions away;
        away.shift[axis] = far;
        EXPECT_EQ(Check(p, MakeMap(p, away)), 0);
      }
    }
  }
}

TEST_P(AffineObjectiveTest, MapThatIsNotANumberCountsNothing) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {33, 17, 9}, {33, 17, 9}, 550);
    const AffineObjective o = UploadProblem(p);
    for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      for (int r = 0; r < 3; ++r) {
        AffineMap w = MakeMap(p, {});
        w.m[r][3] = bad;
        const NormalEquations sums = Evaluate(o, w);
        EXPECT_EQ(sums.samples, 0);
        EXPECT_EQ(sums.value, 0);
        for (double h : sums.hessian) EXPECT_EQ(h, 0);
      }
    }
  }
}

// On the same grid the identity lands on voxel centres: images that are equal have distance 0 and gradient 0.
TEST_P(AffineObjectiveTest, IdentityOnEqualImages) {
  for (Int3 size : {Int3{33, 17, 9}, Int3{35, 18, 1}, Int3{128, 6, 5}}) {
    HostProblem p = MakeProblem(MetricKind::kSsd, size, size, 600);
    p.moving.data = p.fixed.data;
    SCOPED_TRACE(Describe(p));
    const NormalEquations sums = Evaluate(UploadProblem(p), NormalizedToIndex(p.fixed.geometry));
    EXPECT_EQ(sums.samples, p.fixed.geometry.voxels());
    EXPECT_LE(sums.value, 1e-9 * sums.samples);
    double scale = 0;
    for (double h : sums.hessian) scale = std::max(scale, std::abs(h));
    EXPECT_GT(scale, 0);
    for (double g : sums.gradient) EXPECT_LE(std::abs(g), 1e-5 * scale);
  }
}

TEST_P(AffineObjectiveTest, FlatFixedImagesWeighNothing) {
  for (double edge : {0.0, 1e-25, 0.1}) {
    HostProblem p = MakeProblem(MetricKind::kNgf, {20, 11, 7}, {20, 11, 7}, 650);
    p.fixed_edge = p.moving_edge = edge;
    std::fill(p.fixed.data.begin(), p.fixed.data.end(), 3.0f);
    HostProblem both = p;
    std::fill(both.moving.data.begin(), both.moving.data.end(), 2.0f);
    for (const HostProblem& problem : {p, both}) {
      const NormalEquations sums = Evaluate(UploadProblem(problem), NormalizedToIndex(p.fixed.geometry));
      EXPECT_EQ(sums.samples, 18 * 9 * 5);
      EXPECT_EQ(sums.value, 0);
      EXPECT_EQ(sums.weight, 0);
      for (double g : sums.gradient) EXPECT_EQ(g, 0);
      for (double h : sums.hessian) EXPECT_EQ(h, 0);
    }
  }
}

TEST_P(AffineObjectiveTest, IntensitiesOfAComputedTomography) {
  for (MetricKind metric : kMetrics) {
    HostProblem p = MakeProblem(metric, {41, 23, 12}, {39, 26, 13}, 700);
    for (float& v : p.fixed.data) v = 1000 * v - 500;
    for (float& v : p.moving.data) v = 800 * v + 200;
    p.fixed_edge = 30;
    p.moving_edge = 50;
    p.intensity_scale = 1e-3;
    SCOPED_TRACE(Describe(p));
    MapOptions map;
    map.degrees = {2.1, 1.2, -1.9};
    map.shift = {0.41, 0.32, 0.23};
    EXPECT_GT(Check(p, MakeMap(p, map)), 4000);
  }
}

TEST_P(AffineObjectiveTest, MatchesReferenceWithWeights) {
  for (MetricKind metric : kMetrics) {
    for (int which = 1; which < 4; ++which) {
      for (Int3 size : {Int3{33, 17, 9}, Int3{40, 35, 1}, Int3{70, 6, 5}, Int3{13, 1, 11}, Int3{130, 37, 34}}) {
        HostProblem p = MakeProblem(metric, size, {37, std::min(19, 2 * size.y - 1), size.z}, 1000 + which);
        if (which & 1) SetSlowWeights(1100 + which, &p.fixed);
        if (which & 2) SetSlowWeights(1200 + which, &p.moving);
        SCOPED_TRACE(Describe(p) + " weights " + std::to_string(which));
        MapOptions map;
        map.degrees = IsFlat(p) ? Vec3d{0, 0, 3.1} : Vec3d{1.3, -1.4, 3.1};
        map.shift = {0.31, -0.27, IsFlat(p) ? 0.0 : 0.17};
        EXPECT_GT(Check(p, MakeMap(p, map)), 10);
      }
    }
  }
}

// One image has weights, the other a mask that is set or not.
TEST_P(AffineObjectiveTest, MatchesReferenceWithWeightsBesideAMask) {
  for (MetricKind metric : kMetrics) {
    for (bool fixed : {false, true}) {
      HostProblem p = MakeProblem(metric, {45, 37, 19}, {41, 39, 21}, 1250, Content::kNoisy, !fixed, fixed);
      SetSlowWeights(1260, fixed ? &p.fixed : &p.moving);
      SCOPED_TRACE(Describe(p));
      for (const Vec3d& degrees : {Vec3d{1.3, -1.4, 3.1}, Vec3d{20, 31, 44}}) {
        MapOptions map;
        map.degrees = degrees;
        map.shift = {0.31, -0.27, 0.17};
        EXPECT_GT(Check(p, MakeMap(p, map)), 500);
      }
    }
  }
}

TEST_P(AffineObjectiveTest, WeightsOfOneAreTheBitsOfAMask) {
  for (MetricKind metric : kMetrics) {
    for (Int3 size : {Int3{45, 37, 19}, Int3{51, 40, 1}}) {
      HostProblem mask = MakeProblem(metric, size, size, 1270, Content::kNoisy, true, true);
      HostProblem weights = mask;
      for (HostVolume* v : {&weights.fixed, &weights.moving}) {
        v->weight_per_unit = kWeightPerUnit;
        for (uint8_t& byte : v->mask) byte = byte == 0 ? 0 : 255;
      }
      SCOPED_TRACE(Describe(mask));
      MapOptions map;
      map.degrees = IsFlat(mask) ? Vec3d{0, 0, 3.1} : Vec3d{1.3, -1.4, 3.1};
      const AffineMap w = MakeMap(mask, map);
      const NormalEquations a = Evaluate(UploadProblem(mask), w), b = Evaluate(UploadProblem(weights), w);
      EXPECT_GT(a.samples, 100);
      EXPECT_EQ(std::memcmp(&a, &b, sizeof(a)), 0);
    }
  }
}

// Every instruction set that this processor has.
TEST_P(AffineObjectiveTest, MatchesReferenceOnEveryVectorTarget) {
  if (ctx().is_cuda()) GTEST_SKIP() << "only for the CPU";
  const int64_t supported = hwy::SupportedTargets();
  for (int64_t rest = supported; rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest & -rest);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (MetricKind metric : kMetrics) {
      for (int nz : {1, 14}) {
        const HostProblem p =
            MakeProblem(metric, {45, 37, nz}, {41, 39, nz}, 960 + nz, Content::kNoisy, nz == 1, nz == 1);
        for (double degrees : {2.9, 28.1}) {
          SCOPED_TRACE(Describe(p) + " target " + hwy::TargetName(rest & -rest) + " " + std::to_string(degrees));
          MapOptions map;
          map.degrees = IsFlat(p) ? Vec3d{0, 0, degrees} : Vec3d{1.3, -2.2, degrees};
          map.shift = {0.113, -0.171, IsFlat(p) ? 0.0 : 0.093};
          EXPECT_GT(Check(p, MakeMap(p, map)), 100);
          HostProblem weighted = p;
          SetSlowWeights(970 + nz, &weighted.fixed);
          SetSlowWeights(980 + nz, &weighted.moving);
          EXPECT_GT(Check(weighted, MakeMap(p, map)), 100);
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace intrawarp::affine_objective_test
