// SPDX-License-Identifier: Apache-2.0
#include "engine/transform/landmark_penalty.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/base/field_error.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

Geometry ControlGrid(Int3 size) {
  Geometry g = ObliqueGeometry(size, /*left_handed=*/true);
  g.spacing = {6.5, 5.25, 4};
  return g;
}

AffineMap SomeMap() {
  AffineMap map = AffineMap::Identity();
  const double m[3][4] = {{1.1, -0.2, 0.05, 3}, {0.1, 0.9, 0.15, -7}, {-0.04, 0.1, 1.05, 11}};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c) map.m[r][c] = m[r][c];
  return map;
}

double Bspline(double x) {
  const double a = std::abs(x);
  if (a >= 2) return 0;
  return a < 1 ? 2.0 / 3 - a * a + a * a * a / 2 : (2 - a) * (2 - a) * (2 - a) / 6;
}

// The definition in float64: a sum over all control points.
double Term(const Geometry& g, const std::vector<double>& c, const AffineMap& affine,
            const std::vector<Landmark>& landmarks) {
  const AffineMap to_index = PhysicalToIndex(g);
  double sum = 0;
  for (const Landmark& landmark : landmarks) {
    const Vec3d at = to_index(landmark.fixed);
    Vec3d u{};
    for (int64_t node = 0; node < g.voxels(); ++node) {
      const int64_t place[3] = {node % g.size.x, node / g.size.x % g.size.y, node / g.size.x / g.size.y};
      double weight = 1;
      for (int a = 0; a < 3; ++a) weight *= g.size[a] == 1 ? 1 : Bspline(at[a] - static_cast<double>(place[a]));
      for (int a = 0; a < 3; ++a) u[a] += weight * c[3 * node + a];
    }
    const Vec3d away = affine(landmark.fixed + u) - landmark.moving;
    sum += kLandmarkWeight * Dot(away, away) / (landmark.sigma_mm * landmark.sigma_mm);
  }
  return sum;
}

// Within the domain of u.
std::vector<Landmark> RandomLandmarks(const Geometry& g, int count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> part(0.001, 0.999), away(-9, 9), sigma(0.3, 4);
  const AffineMap to_point = IndexToPhysical(g);
  std::vector<Landmark> landmarks;
  for (int i = 0; i < count; ++i) {
    Vec3d index;
    for (int a = 0; a < 3; ++a) index[a] = g.size[a] == 1 ? 0 : 1 + part(engine) * (g.size[a] - 3);
    Landmark landmark;
    landmark.fixed = to_point(index);
    landmark.moving = SomeMap()(landmark.fixed) + Vec3d{away(engine), away(engine), away(engine)};
    landmark.sigma_mm = sigma(engine);
    landmarks.push_back(landmark);
  }
  return landmarks;
}

class LandmarkPenaltyTest : public DeviceTest {
 protected:
  struct Output {
    double value = 0;
    std::vector<float> gradient;
  };
  Output Run(const Geometry& g, const std::vector<float>& points, const std::vector<Landmark>& landmarks,
             double value_before, const std::vector<float>& gradient_before, const int* skip = nullptr) {
    OwnedContext owned = *OwnedContext::Create(device(), GridLandmarksBytes(static_cast<int64_t>(landmarks.size())));
    std::vector<double> before = {value_before};
    double* value = Upload(before);
    float* gradient = Upload(gradient_before);
    const absl::StatusOr<GridLandmarks> placed = PlaceLandmarks(owned.context(), landmarks, SomeMap(), g);
    EXPECT_OK(placed);
    EXPECT_OK(AddLandmarkPenalty(owned.context(), *placed, Upload(points), skip, gradient, value));
    EXPECT_OK(device().Synchronize(owned.context().stream()));
    return {Download(value, 1)[0], Download(gradient, gradient_before.size())};
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LandmarkPenaltyTest);

TEST_P(LandmarkPenaltyTest, ValueAndGradientAreThoseOfTheDefinition) {
  uint32_t seed = 11;
  struct Case {
    Int3 size;
    int landmarks;
  };
  for (const Case& c : {Case{{4, 4, 4}, 1},
                        {{7, 5, 6}, 3},
                        {{17, 9, 5}, kMaxLandmarks},
                        {{15, 19, 1}, 5},
                        {{1, 6, 5}, 2},
                        {{1, 1, 9}, 2}}) {
    const Geometry g = ControlGrid(c.size);
    SCOPED_TRACE(SizeString(g));
    const std::vector<Landmark> landmarks = RandomLandmarks(g, c.landmarks, ++seed);
    const std::vector<float> points = RandomFloats(3 * g.voxels(), ++seed, -4, 4);
    const std::vector<float> before = RandomFloats(points.size(), ++seed, -1e-3f, 1e-3f);
    std::vector<double> exact(points.begin(), points.end());
    const Output got = Run(g, points, landmarks, 7, before);
    const double term = Term(g, exact, SomeMap(), landmarks);
    EXPECT_NEAR(got.value, 7 + term, 1e-5 * (1 + term));
    for (size_t i = 0; i < points.size(); i += 1 + points.size() / 90) {
      constexpr double kStep = 1e-3;
      exact[i] = points[i] + kStep;
      const double above = Term(g, exact, SomeMap(), landmarks);
      exact[i] = points[i] - kStep;
      const double below = Term(g, exact, SomeMap(), landmarks);
      exact[i] = points[i];
      EXPECT_NEAR(got.gradient[i] - before[i], (above - below) / (2 * kStep), 1e-6 * c.landmarks) << i;
    }
  }
}

TEST_P(LandmarkPenaltyTest, LandmarksOutsideTheDomainAreLeftOut) {
  const Geometry g = ControlGrid({6, 6, 6});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 3, -4, 4), zero(points.size());
  std::vector<Landmark> landmarks = RandomLandmarks(g, 2, 4);
  const Output inside = Run(g, points, landmarks, 0, zero);
  landmarks.push_back(landmarks[0]);
  landmarks.back().fixed = IndexToPhysical(g)(Vec3d{0.9, 2, 2});
  const Output both = Run(g, points, landmarks, 0, zero);
  EXPECT_EQ(both.value, inside.value);
  EXPECT_EQ(both.gradient, inside.gradient);
  EXPECT_EQ(Run(g, points, {}, 5, zero).value, 5);
}

TEST_P(LandmarkPenaltyTest, ASkippedEvaluationChangesNothing) {
  const Geometry g = ControlGrid({5, 6, 7});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 5, -4, 4);
  const std::vector<float> before = RandomFloats(points.size(), 6, -1, 1);
  const Output got = Run(g, points, RandomLandmarks(g, 3, 8), 3, before, Upload(std::vector<int>{1}));
  EXPECT_EQ(got.value, 3);
  EXPECT_EQ(got.gradient, before);
  EXPECT_NE(Run(g, points, RandomLandmarks(g, 3, 8), 3, before, Upload(std::vector<int>{0})).gradient, before);
}

TEST_P(LandmarkPenaltyTest, RunsGiveTheSameBits) {
  const Geometry g = ControlGrid({9, 8, 7});
  const std::vector<float> points = RandomFloats(3 * g.voxels(), 9, -4, 4), zero(points.size());
  const std::vector<Landmark> landmarks = RandomLandmarks(g, 200, 12);
  const Output first = Run(g, points, landmarks, 0, zero), second = Run(g, points, landmarks, 0, zero);
  EXPECT_EQ(first.value, second.value);
  EXPECT_EQ(first.gradient, second.gradient);
}

TEST_P(LandmarkPenaltyTest, MeasuresDistancesInMillimetresAndSigmas) {
  const Geometry g = ControlGrid({9, 8, 7});
  const Vec3d p = g.origin;
  const std::vector<Landmark> landmarks = {{p, SomeMap()(p) + Vec3d{3, 0, 4}, 2},
                                           {p, SomeMap()(p) + Vec3d{0, 1, 0}, 0.1}};
  const auto fit = MeasureLandmarks(ctx(), Transform(SomeMap()), landmarks, 0.5);
  ASSERT_OK(fit);
  ASSERT_EQ(fit->distance_mm.size(), 2u);
  EXPECT_NEAR(fit->distance_mm[0], 5, 1e-9);
  EXPECT_NEAR(fit->distance_mm[1], 1, 1e-9);
  EXPECT_NEAR(fit->mean_mm, 3, 1e-9);
  EXPECT_NEAR(fit->max_mm, 5, 1e-9);
  EXPECT_NEAR(fit->max_sigmas, 2.5, 1e-9);
  EXPECT_NEAR(MeasureLandmarks(ctx(), Transform(SomeMap()), landmarks, 0.1)->max_sigmas, 10, 1e-9);
}

TEST(ValidateLandmarksTest, WrongOnesAreNamed) {
  const Landmark good{{1, 2, 3}, {4, 5, 6}, 2};
  EXPECT_OK(ValidateLandmarks({}));
  EXPECT_OK(ValidateLandmarks(std::vector<Landmark>(kMaxLandmarks, good)));
  EXPECT_EQ(FieldOf(ValidateLandmarks(std::vector<Landmark>(kMaxLandmarks + 1, good))), "landmarks");
  Landmark bad = good;
  bad.moving.y = std::numeric_limits<double>::infinity();
  EXPECT_EQ(FieldOf(ValidateLandmarks({good, bad})), "landmarks[1]");
  for (const double sigma : {0.0, 0.09, 101.0, std::nan("")}) {
    bad = good;
    bad.sigma_mm = sigma;
    EXPECT_EQ(FieldOf(ValidateLandmarks({bad})), "landmarks[0].sigma_mm") << sigma;
  }
}

}  // namespace
}  // namespace intrawarp
