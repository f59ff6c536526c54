// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/optimise/affine_pull.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace intrawarp {
namespace {

AffineMap MakeMap(std::vector<double> entries) {
  AffineMap map;
  for (int e = 0; e < 12; ++e) map.m[e / 4][e % 4] = entries[e];
  return map;
}

AffineMap ToNormalized() { return MakeMap({0.01, 0.001, 0, -0.3, 0, 0.02, 0.002, 0.1, 0.001, 0, 0.03, 0.2}); }
AffineMap ToMoving() { return MakeMap({0.5, 0.05, 0, 60, 0, 0.4, -0.03, 80, 0.02, 0, 0.3, 40}); }
AffineMap SomeW() { return MakeMap({50, 1, -2, 70, 0.5, 20, 1, 85, -1, 2, 10, 45}); }

std::vector<Landmark> SomeLandmarks() {
  return {{{10, 20, 30}, {12, 25, 28}, 2}, {{-40, 60, 5}, {-38, 55, 9}, 0.5}, {{80, -30, -20}, {70, -20, -25}, 3}};
}

AffinePull Make(const std::vector<Landmark>& landmarks) {
  return MakeAffinePull(landmarks, ToNormalized(), ToMoving());
}

// The definition: distances in mm.
double Term(const AffineMap& w, const std::vector<Landmark>& landmarks) {
  double sum = 0;
  for (const Landmark& landmark : landmarks) {
    const Vec3d away = Inverse(ToMoving())(w(ToNormalized()(landmark.fixed))) - landmark.moving;
    sum += kLandmarkWeight * Dot(away, away) / (landmark.sigma_mm * landmark.sigma_mm);
  }
  return sum;
}

TEST(AffinePullTest, ValueIsThatOfTheDefinition) {
  for (size_t count = 1; count <= SomeLandmarks().size(); ++count) {
    std::vector<Landmark> landmarks = SomeLandmarks();
    landmarks.resize(count);
    const double term = Term(SomeW(), landmarks);
    EXPECT_NEAR(Make(landmarks).Value(SomeW()), term, 1e-9 * term);
  }
}

TEST(AffinePullTest, GradientAndHessianAreItsDerivatives) {
  const AffinePull pull = Make(SomeLandmarks());
  constexpr double kStep = 1e-3;
  for (int e = 0; e < 12; ++e) {
    AffineMap above = SomeW(), below = SomeW();
    above.m[e / 4][e % 4] += kStep;
    below.m[e / 4][e % 4] -= kStep;
    const double slope = (Term(above, SomeLandmarks()) - Term(below, SomeLandmarks())) / (2 * kStep);
    EXPECT_NEAR(pull.Gradient(SomeW(), e), slope, 1e-6 * (1 + std::abs(slope))) << e;
    for (int f = 0; f < 12; ++f) {
      const double curve = (pull.Gradient(above, f) - pull.Gradient(below, f)) / (2 * kStep);
      EXPECT_NEAR(pull.Hessian(e, f), curve, 1e-9 * (1 + std::abs(curve))) << e << " " << f;
    }
  }
}

TEST(AffinePullTest, AMapThatMeetsTheLandmarksCostsNothing) {
  std::vector<Landmark> landmarks = SomeLandmarks();
  for (Landmark& landmark : landmarks) {
    landmark.moving = Inverse(ToMoving())(SomeW()(ToNormalized()(landmark.fixed)));
  }
  const AffinePull pull = Make(landmarks);
  EXPECT_NEAR(pull.Value(SomeW()), 0, 1e-12);
  for (int e = 0; e < 12; ++e) EXPECT_NEAR(pull.Gradient(SomeW(), e), 0, 1e-12);
}

TEST(AffinePullTest, WithoutLandmarksItIsInactive) { EXPECT_FALSE(Make({}).is_active); }

}  // namespace
}  // namespace intrawarp
