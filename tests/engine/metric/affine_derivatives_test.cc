// SPDX-License-Identifier: Apache-2.0
// The derivatives of the affine objective, equal bits, and what it refuses.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/geometry/geometry.h"
#include "engine/metric/affine_objective.h"
#include "tests/engine/device_test.h"
#include "tests/engine/metric/affine_objective_fixture.h"

namespace intrawarp::affine_objective_test {
namespace {

// No point of a slice shows column 2 of W, and every row does something.
TEST_P(AffineObjectiveTest, SliceHasNoDerivativesAcrossItsPlane) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {50, 41, 1}, {47, 45, 33}, 1500);
    MapOptions map;
    map.degrees = {24, -31, 12};
    const NormalEquations sums = Evaluate(UploadProblem(p), MakeMap(p, map));
    EXPECT_GT(sums.samples, 500);
    int k = 0;
    for (int r = 0; r < 12; ++r) {
      for (int c = r; c < 12; ++c, ++k) {
        EXPECT_EQ(sums.hessian[k] == 0, r % 4 == 2 || c % 4 == 2) << MetricName(metric) << " " << r << " " << c;
      }
      EXPECT_EQ(sums.gradient[r] == 0, r % 4 == 2) << MetricName(metric) << " " << r;
    }
  }
}

TEST_P(AffineObjectiveTest, GradientOfASliceMatchesFiniteDifferences) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {34, 30, 1}, {40, 36, 31}, 1600, Content::kSmooth);
    MapOptions map;
    map.degrees = {21, -17, 33};
    map.scale = {0.6, 0.55, 0.5};
    map.shift = {0.13, 0.24, 0.35};
    const AffineMap w = MakeMap(p, map);
    const NormalEquations sums = Evaluate(UploadProblem(p), w);
    double scale = 0;
    for (double g : sums.gradient) scale = std::max(scale, std::abs(g));
    for (int i = 0; i < kAffineParameters; ++i) {
      const double h = 1e-5;
      AffineMap plus = w, minus = w;
      plus.m[i / 4][i % 4] += h;
      minus.m[i / 4][i % 4] -= h;
      const Reference a = EvaluateReference(p, plus, 0), b = EvaluateReference(p, minus, 0);
      ASSERT_EQ(a.sums.samples, b.sums.samples);
      const double tolerance = metric == MetricKind::kNmi ? 1e-2 : 1e-3;
      EXPECT_NEAR(sums.gradient[i], (a.sums.value - b.sums.value) / (2 * h), tolerance * scale)
          << MetricName(metric) << " " << i;
    }
  }
}

// The gradient is the derivative of the value: against central differences of the reference's value, where no sample
// enters or leaves.
TEST_P(AffineObjectiveTest, GradientMatchesFiniteDifferences) {
  for (MetricKind metric : kMetrics) {
    for (int nz : {1, 12}) {
      const HostProblem p = MakeProblem(metric, {24, 20, nz}, {40, 36, nz == 1 ? 1 : 26}, 800 + nz, Content::kSmooth);
      SCOPED_TRACE(Describe(p));
      MapOptions map;
      map.degrees = nz == 1 ? Vec3d{0, 0, 3.3} : Vec3d{2.1, 1.7, 3.3};
      map.scale = {0.6, 0.55, 0.5};
      map.shift = {0.13, 0.24, nz == 1 ? 0.0 : 0.35};
      const AffineMap w = MakeMap(p, map);
      const NormalEquations sums = Evaluate(UploadProblem(p), w);
      double scale = 0;
      for (double g : sums.gradient) scale = std::max(scale, std::abs(g));
      for (int i = 0; i < kAffineParameters; ++i) {
        const double h = 1e-5;
        AffineMap plus = w, minus = w;
        plus.m[i / 4][i % 4] += h;
        minus.m[i / 4][i % 4] -= h;
        const Reference a = EvaluateReference(p, plus, 0), b = EvaluateReference(p, minus, 0);
        ASSERT_EQ(a.sums.samples, b.sums.samples);
        // NMI's counts are rounded, its reference's here are not.
        const double tolerance = metric == MetricKind::kNmi ? 1e-2 : 1e-3;
        EXPECT_NEAR(sums.gradient[i], (a.sums.value - b.sums.value) / (2 * h), tolerance * scale) << i;
      }
    }
  }
}

// A 2-D image says nothing along z, and the derivatives along z are zero.
TEST_P(AffineObjectiveTest, PlaneHasNoDerivativesAcross) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {50, 41, 1}, {47, 45, 1}, 900);
    MapOptions map;
    map.degrees = {0, 0, 4};
    const NormalEquations sums = Evaluate(UploadProblem(p), MakeMap(p, map));
    EXPECT_GT(sums.samples, 1000);
    int k = 0;
    for (int r = 0; r < 12; ++r) {
      for (int c = r; c < 12; ++c, ++k) {
        const bool across = r / 4 == 2 || c / 4 == 2 || r % 4 == 2 || c % 4 == 2;
        EXPECT_EQ(sums.hessian[k] == 0, across) << r << " " << c;
      }
      EXPECT_EQ(sums.gradient[r] == 0, r / 4 == 2 || r % 4 == 2) << r;
    }
  }
}

TEST_P(AffineObjectiveTest, BitIdenticalForAnyNumberOfCores) {
  for (MetricKind metric : kMetrics) {
    for (Int3 size : {Int3{70, 66, 40}, Int3{150, 141, 1}}) {
      const HostProblem p = MakeProblem(metric, size, size, 950);
      ExpectTheSameBitsOnAnyNumberOfCores(p);
      HostProblem weighted = p;
      SetSlowWeights(951, &weighted.moving);
      ExpectTheSameBitsOnAnyNumberOfCores(weighted);
    }
  }
}

TEST_P(AffineObjectiveTest, RefusesAMaskOfAnotherSize) {
  HostProblem p = MakeProblem(MetricKind::kSsd, {9, 8, 7}, {9, 8, 7}, 970, Content::kNoisy, true, true);
  AffineObjective o = UploadProblem(p);
  const AffineMap w = MakeMap(p, {});
  NormalEquations sums;
  o.fixed_mask.geometry.size.x = 8;
  EXPECT_EQ(EvaluateAffineObjective(ctx(), o, w, &sums).code(), absl::StatusCode::kInvalidArgument);
  o = UploadProblem(p);
  o.moving_mask.geometry.size.z = 8;
  EXPECT_EQ(EvaluateAffineObjective(ctx(), o, w, &sums).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(AffineObjectiveTest, RefusesParametersOutOfRange) {
  HostProblem p = MakeProblem(MetricKind::kNmi, {9, 8, 7}, {9, 8, 7}, 980);
  const AffineMap w = MakeMap(p, {});
  AffineObjective o = UploadProblem(p);
  NormalEquations sums;
  for (int bins : {-1, 3, 65}) {
    o.nmi_bins = bins;
    EXPECT_EQ(EvaluateAffineObjective(ctx(), o, w, &sums).code(), absl::StatusCode::kInvalidArgument) << bins;
  }
  o = UploadProblem(p);
  o.metric = MetricKind::kLncc;
  for (double sigma : {0.0, 6.0}) {
    o.lncc_sigma = sigma;
    EXPECT_EQ(EvaluateAffineObjective(ctx(), o, w, &sums).code(), absl::StatusCode::kInvalidArgument) << sigma;
  }
}

// A constant says nothing of any image.
TEST_P(AffineObjectiveTest, ConstantImagesWeighNothing) {
  for (MetricKind metric : {MetricKind::kNmi, MetricKind::kLncc}) {
    const HostProblem varied = MakeProblem(metric, {20, 11, 7}, {20, 11, 7}, 990);
    for (int constant = 1; constant < 4; ++constant) {
      HostProblem p = varied;
      if (constant & 1) std::fill(p.fixed.data.begin(), p.fixed.data.end(), 3.0f);
      if (constant & 2) std::fill(p.moving.data.begin(), p.moving.data.end(), -2.0f);
      SCOPED_TRACE(Describe(p) + " constant " + std::to_string(constant));
      const NormalEquations sums = Evaluate(UploadProblem(p), MakeMap(p, {}));
      EXPECT_EQ(sums.samples, 20 * 11 * 7);
      EXPECT_EQ(sums.value, 0);
      EXPECT_EQ(sums.weight, 0);
      for (double g : sums.gradient) EXPECT_EQ(g, 0);
      for (double h : sums.hessian) EXPECT_EQ(h, 0);
    }
  }
}

// The Hessian is positive semi-definite: no direction has a negative curvature.
TEST_P(AffineObjectiveTest, CurvatureIsNeverNegative) {
  for (MetricKind metric : kMetrics) {
    const HostProblem p = MakeProblem(metric, {33, 30, 21}, {33, 30, 21}, 995);
    MapOptions map;
    map.degrees = {1.3, -1.4, 3.1};
    const NormalEquations sums = Evaluate(UploadProblem(p), MakeMap(p, map));
    for (uint32_t seed = 1; seed < 40; ++seed) {
      const std::vector<float> v = RandomFloats(kAffineParameters, seed);
      double product = 0, scale = 0;
      for (int r = 0; r < kAffineParameters; ++r) {
        for (int c = 0; c < kAffineParameters; ++c) {
          const double term = sums.hessian[HessianEntry(std::min(r, c), std::max(r, c))] * v[r] * v[c];
          product += term;
          scale += std::abs(term);
        }
      }
      EXPECT_GE(product, -1e-6 * scale) << MetricName(metric) << " " << seed;
      EXPECT_GT(scale, 0);
    }
  }
}

TEST(AffineNormalization, TakesTheGridToTheUnitCube) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{2, 3, 1}, Int3{31, 8, 5}}) {
    Geometry g;
    g.size = size;
    const Vec3d low = IndexToNormalized(g)({0, 0, 0});
    const Vec3d high = IndexToNormalized(g)({size.x - 1.0, size.y - 1.0, size.z - 1.0});
    const AffineMap round_trip = Compose(NormalizedToIndex(g), IndexToNormalized(g));
    for (int a = 0; a < 3; ++a) {
      EXPECT_NEAR(low[a], size[a] == 1 ? 0 : -1, 1e-15);
      EXPECT_NEAR(high[a], size[a] == 1 ? 0 : 1, 1e-15);
      for (int c = 0; c < 4; ++c) EXPECT_NEAR(round_trip.m[a][c], a == c ? 1 : 0, 1e-13);
    }
  }
}

}  // namespace
}  // namespace intrawarp::affine_objective_test
