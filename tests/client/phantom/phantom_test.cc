// SPDX-License-Identifier: Apache-2.0
#include "client/phantom/phantom.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace intrawarp::phantom {
namespace {

// Large enough for every organ, small enough to be quick.
PhantomOptions SmallOptions() {
  PhantomOptions options;
  options.size = {64, 62, 50};
  options.spacing = {5, 5.2, 4.8};
  options.noise_sd = 0;
  return options;
}

PhantomOptions FlatOptions() {
  PhantomOptions options = SmallOptions();
  options.size = {120, 118, 1};
  options.spacing = {2.7, 2.7, 5};
  return options;
}

Phantom Make(const PhantomOptions& options) {
  absl::StatusOr<Phantom> phantom = MakePhantom(options);
  EXPECT_TRUE(phantom.ok()) << phantom.status();
  return phantom.ok() ? *std::move(phantom) : Phantom();
}

PhantomModel Model(const PhantomOptions& options) { return *PhantomModel::Create(options); }

template <typename Body>
void ForEach(const Geometry& g, const Body& body) {
  const AffineMap to_physical = IndexToPhysical(g);
  int64_t i = 0;
  for (int z = 0; z < g.size.z; ++z)
    for (int y = 0; y < g.size.y; ++y)
      for (int x = 0; x < g.size.x; ++x) body(i++, to_physical({double(x), double(y), double(z)}));
}

Vec3d At(const io::HostField& field, int64_t i) {
  return {field.displacement[3 * i], field.displacement[3 * i + 1], field.displacement[3 * i + 2]};
}

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }

// Trilinear at a physical point; false outside. `gradient` is per millimetre.
bool Sample(const std::vector<float>& image, const Geometry& g, Vec3d p, double* value, Vec3d* gradient) {
  const Vec3d index = PhysicalToIndex(g)(p);
  int base[3];
  double w[3];
  for (int a = 0; a < 3; ++a) {
    if (!(index[a] >= 0 && index[a] < g.size[a] - 1)) return false;
    base[a] = static_cast<int>(index[a]);
    w[a] = index[a] - base[a];
  }
  *value = 0;
  *gradient = {};
  for (int corner = 0; corner < 8; ++corner) {
    const int b[3] = {corner & 1, corner >> 1 & 1, corner >> 2};
    double f[3];
    for (int a = 0; a < 3; ++a) f[a] = b[a] ? w[a] : 1 - w[a];
    const double v = image[(int64_t{base[2] + b[2]} * g.size.y + base[1] + b[1]) * g.size.x + base[0] + b[0]];
    *value += f[0] * f[1] * f[2] * v;
    for (int a = 0; a < 3; ++a) {
      (*gradient)[a] += (b[a] ? 1 : -1) * f[(a + 1) % 3] * f[(a + 2) % 3] * v / g.spacing[a];
    }
  }
  return true;
}

TEST(PhantomTest, ImagesAreTheAnatomyThroughTheTrueTransform) {
  PhantomOptions options = SmallOptions();
  for (const bool with_affine : {false, true}) {
    if (with_affine) options.affine = RandomAffine(3);
    const Phantom phantom = Make(options);
    const PhantomModel model = Model(options);
    EXPECT_EQ(phantom.fixed.pixel_type, PixelType::kInt16);
    EXPECT_EQ(phantom.fixed.geometry.size, options.size);
    EXPECT_EQ(phantom.fixed.geometry, phantom.field.geometry);
    const std::vector<float> fixed = io::ToFloat(phantom.fixed), moving = io::ToFloat(phantom.moving);
    int inside = 0;
    ForEach(phantom.fixed.geometry, [&](int64_t i, Vec3d x) {
      const Vec3d y = x + At(phantom.field, i);
      ASSERT_NEAR(fixed[i], model.Hounsfield(y), 0.6) << i;
      ASSERT_LT(Length(y - model.Transform(x)), 1e-5) << i;
      ASSERT_EQ(phantom.body_mask.pixels[i], model.BodyDistance(model.Transform(x)) < 0) << i;
      inside += phantom.body_mask.pixels[i];
    });
    ForEach(phantom.moving.geometry, [&](int64_t i, Vec3d y) { ASSERT_NEAR(moving[i], model.Hounsfield(y), 0.51); });
    const double share = double(inside) / phantom.fixed.geometry.voxels();
    EXPECT_GT(share, 0.25);
    EXPECT_LT(share, 0.7);
  }
}

TEST(PhantomTest, DeformationIsLargeAtTheSurfaceAndFadesWithDepth) {
  const PhantomModel model = Model(SmallOptions());
  const auto moved = [&](Vec3d p) { return Length(model.Transform(p) - p); };
  EXPECT_GT(moved({0, -115, 0}), 25);
  EXPECT_GT(moved({-50, -50, 0}), 8);
  EXPECT_LT(moved({0, 66, 0}), 1);
  // The surface of the fixed image has risen: to the front is -y.
  EXPECT_LT(model.BodyDistance(model.Transform({0, -108, 0})), 0);
  EXPECT_GT(model.BodyDistance({0, -108, 0}), 0);
}

// The determinant against central differences of T, at the largest amplitude there may be.
TEST(PhantomTest, NothingFolds) {
  PhantomOptions options = SmallOptions();
  for (double amplitude : {30.0, 60.0}) {
    options.amplitude_mm = amplitude;
    const PhantomModel model = Model(options);
    double least = 1e9;
    ForEach(model.fixed_geometry(), [&](int64_t i, Vec3d x) {
      const double det = model.JacobianDeterminant(x);
      least = std::min(least, det);
      if (i % 17 != 0) return;
      AffineMap jacobian;
      for (int c = 0; c < 3; ++c) {
        Vec3d h{};
        h[c] = 1e-3;
        const Vec3d d = model.Transform(x + h) - model.Transform(x - h);
        for (int r = 0; r < 3; ++r) jacobian.m[r][c] = d[r] / 2e-3;
      }
      ASSERT_NEAR(det, Determinant(jacobian), 1e-6) << i;
    });
    EXPECT_GT(least, amplitude > 30 ? 0.1 : 0.4);
    EXPECT_LT(least, 0.8);
  }
}

TEST(PhantomTest, LandmarksAgreeWithTheField) {
  for (PhantomOptions options : {SmallOptions(), FlatOptions()}) {
    const Phantom phantom = Make(options);
    const PhantomModel model = Model(options);
    ASSERT_GE(phantom.fixed_landmarks.size(), 40u);
    ASSERT_EQ(phantom.fixed_landmarks.size(), phantom.moving_landmarks.size());
    const Geometry& g = phantom.field.geometry;
    std::vector<float> component(g.voxels());
    int in_liver = 0;
    for (int a = 0; a < (g.is_2d() ? 2 : 3); ++a) {
      for (int64_t i = 0; i < g.voxels(); ++i) component[i] = phantom.field.displacement[3 * i + a];
      Geometry thick = g;
      std::vector<float> image = component;
      if (g.is_2d()) {
        thick.size.z = 2;
        image.insert(image.end(), component.begin(), component.end());
      }
      for (size_t k = 0; k < phantom.fixed_landmarks.size(); ++k) {
        const Vec3d x = phantom.fixed_landmarks[k], y = phantom.moving_landmarks[k];
        double u;
        Vec3d gradient;
        ASSERT_TRUE(Sample(image, thick, x, &u, &gradient));
        EXPECT_NEAR(y[a] - x[a], u, 0.15) << k;
        EXPECT_LT(model.BodyDistance(y), 0) << k;
        if (a == 0) in_liver += model.LiverDistance(y) < 0;
      }
    }
    EXPECT_GE(in_liver, 20);
    EXPECT_LE(in_liver, 28);
  }
}

TEST(PhantomTest, AffineAloneIsExactly) {
  PhantomOptions options = SmallOptions();
  options.amplitude_mm = 0;
  options.affine = RandomAffine(7);
  const Phantom phantom = Make(options);
  ForEach(phantom.fixed.geometry,
          [&](int64_t i, Vec3d x) { ASSERT_LT(Length(x + At(phantom.field, i) - (*options.affine)(x)), 1e-5); });
  EXPECT_NEAR(Model(options).JacobianDeterminant({1, 2, 3}), Determinant(*options.affine), 1e-12);
}

TEST(PhantomTest, AffineComesAfterTheDeformation) {
  PhantomOptions options = SmallOptions();
  const PhantomModel deformation = Model(options);
  options.affine = RandomAffine(8);
  const PhantomModel both = Model(options);
  for (const Vec3d x : {Vec3d{10, -90, 5}, Vec3d{-40, 3, 30}}) {
    EXPECT_LT(Length(both.Transform(x) - (*options.affine)(deformation.Transform(x))), 1e-9);
  }
}

// Solves a x = b in place, by Gauss-Jordan with pivots.
std::array<double, 12> Solve(std::array<std::array<double, 13>, 12> a) {
  for (int c = 0; c < 12; ++c) {
    int pivot = c;
    for (int r = c; r < 12; ++r)
      if (std::abs(a[r][c]) > std::abs(a[pivot][c])) pivot = r;
    std::swap(a[c], a[pivot]);
    for (int r = 0; r < 12; ++r) {
      if (r == c) continue;
      const double f = a[r][c] / a[c][c];
      for (int k = c; k < 13; ++k) a[r][k] -= f * a[c][k];
    }
  }
  std::array<double, 12> x;
  for (int c = 0; c < 12; ++c) x[c] = a[c][12] / a[c][c];
  return x;
}

// How far, on average over the body, one Gauss-Newton step of SSD from the true affine map would leave it: the bias
// that sampling and interpolation put into a known-answer test.
double BiasInVoxels(const PhantomOptions& options) {
  const Phantom phantom = Make(options);
  const std::vector<float> fixed = io::ToFloat(phantom.fixed), moving = io::ToFloat(phantom.moving);
  std::array<std::array<double, 13>, 12> normal{};
  std::vector<Vec3d> body;
  ForEach(phantom.fixed.geometry, [&](int64_t i, Vec3d x) {
    double value;
    Vec3d gradient;
    if (!Sample(moving, phantom.moving.geometry, (*options.affine)(x), &value, &gradient)) return;
    if (phantom.body_mask.pixels[i]) body.push_back(x);
    double row[12];
    const double homogeneous[4] = {x.x / 100, x.y / 100, x.z / 100, 1};
    for (int k = 0; k < 12; ++k) row[k] = gradient[k / 4] * homogeneous[k % 4];
    for (int r = 0; r < 12; ++r) {
      for (int c = 0; c < 12; ++c) normal[r][c] += row[r] * row[c];
      normal[r][12] += row[r] * (fixed[i] - value);
    }
  });
  const std::array<double, 12> step = Solve(normal);
  double sum = 0;
  for (const Vec3d& x : body) {
    Vec3d d;
    for (int r = 0; r < 3; ++r)
      d[r] = (step[4 * r] * x.x + step[4 * r + 1] * x.y + step[4 * r + 2] * x.z) / 100 + step[4 * r + 3];
    sum += Length(d);
  }
  return sum / body.size() / options.spacing.x;
}

TEST(PhantomTest, TheTrueAffineMapCanBeRecovered) {
  PhantomOptions options = SmallOptions();
  options.amplitude_mm = 0;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    options.affine = RandomAffine(seed);
    EXPECT_LT(BiasInVoxels(options), 0.03) << seed;
  }
}

TEST(PhantomTest, MovingGridMayDiffer) {
  PhantomOptions options = SmallOptions();
  Geometry moving;
  moving.size = {40, 71, 33};
  moving.spacing = {7, 4, 6};
  moving.origin = {150, -140, -90};
  moving.direction[0][0] = -1;
  options.moving_geometry = moving;
  const Phantom phantom = Make(options);
  EXPECT_EQ(phantom.moving.geometry, moving);
  const PhantomModel model = Model(options);
  const std::vector<float> image = io::ToFloat(phantom.moving);
  ForEach(moving, [&](int64_t i, Vec3d y) { ASSERT_NEAR(image[i], model.Hounsfield(y), 0.51) << i; });
}

TEST(PhantomTest, NoiseIsSeededAndOfTheSizeAskedFor) {
  PhantomOptions options = SmallOptions();
  const Phantom clean = Make(options);
  options.noise_sd = 20;
  const Phantom noisy = Make(options), again = Make(options);
  EXPECT_EQ(noisy.fixed.pixels, again.fixed.pixels);
  EXPECT_EQ(noisy.moving.pixels, again.moving.pixels);
  EXPECT_EQ(noisy.field.displacement, clean.field.displacement);
  options.seed = 2;
  EXPECT_NE(Make(options).fixed.pixels, noisy.fixed.pixels);

  const std::vector<float> a = io::ToFloat(clean.fixed), b = io::ToFloat(noisy.fixed);
  const std::vector<float> c = io::ToFloat(clean.moving), d = io::ToFloat(noisy.moving);
  double sum = 0, squares = 0, product = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double n = b[i] - a[i], m = d[i] - c[i];
    sum += n, squares += n * n, product += n * m;
  }
  EXPECT_NEAR(sum / a.size(), 0, 0.2);
  EXPECT_NEAR(std::sqrt(squares / a.size()), 20, 0.2);
  EXPECT_NEAR(product / squares, 0, 0.01) << "the images' noise is independent";
}

TEST(PhantomTest, InversionIsARescaling) {
  PhantomOptions options = SmallOptions();
  const Phantom plain = Make(options);
  options.invert_intensities = true;
  const Phantom inverted = Make(options);
  EXPECT_EQ(plain.fixed.pixels, inverted.fixed.pixels);
  const std::vector<float> a = io::ToFloat(plain.moving), b = io::ToFloat(inverted.moving);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(b[i], 400 - 0.4 * a[i], 0.8);
}

TEST(PhantomTest, TwoDimensionalStaysInItsPlane) {
  PhantomOptions options = FlatOptions();
  options.affine = RandomAffine(4, 20, 0.15, 0.1, 30, {0, 0, 0}, true);
  const Phantom phantom = Make(options);
  const PhantomModel model = Model(options);
  EXPECT_TRUE(phantom.fixed.geometry.is_2d());
  EXPECT_TRUE(phantom.moving.geometry.is_2d());
  double largest = 0;
  ForEach(phantom.fixed.geometry, [&](int64_t i, Vec3d x) {
    const Vec3d u = At(phantom.field, i);
    ASSERT_EQ(u.z, 0);
    ASSERT_GT(model.JacobianDeterminant(x), 0);
    largest = std::max(largest, Length(u));
  });
  EXPECT_GT(largest, 20);
  for (const Vec3d& y : phantom.moving_landmarks) EXPECT_EQ(y.z, 0);
}

TEST(PhantomTest, AnatomyFollowsTheFieldOfView) {
  PhantomOptions options = SmallOptions();
  options.amplitude_mm = 0;
  const Phantom whole = Make(options);
  for (int a = 0; a < 3; ++a) options.spacing[a] *= 0.25;
  const Phantom quarter = Make(options);
  EXPECT_EQ(whole.body_mask.pixels, quarter.body_mask.pixels);
}

TEST(PhantomTest, OptionsAreRefusedByName) {
  const double nan = std::nan("");
  const std::pair<const char*, std::function<void(PhantomOptions&)>> cases[] = {
      {"size: x", [](auto& o) { o.size.x = 0; }},
      {"size: must be at least", [](auto& o) { o.size.y = 8; }},
      {"spacing: y", [](auto& o) { o.spacing.y = -1; }},
      {"amplitude_mm: ", [](auto& o) { o.amplitude_mm = -1; }},
      {"amplitude_mm: ", [](auto& o) { o.amplitude_mm = 61; }},
      {"amplitude_mm: ", [nan](auto& o) { o.amplitude_mm = nan; }},
      {"noise_sd: ", [nan](auto& o) { o.noise_sd = nan; }},
      {"noise_sd: ", [](auto& o) { o.noise_sd = -1; }},
      {"affine: is not finite", [nan](auto& o) { o.affine = RandomAffine(1), o.affine->m[1][1] = nan; }},
      {"affine: its determinant", [](auto& o) { o.affine = AffineMap(); }},
      {"affine: leaves too little", [](auto& o) { o.affine = AffineMap::Identity(), o.affine->m[0][3] = 1000; }},
      {"affine: must stay in the plane", [](auto& o) { o = FlatOptions(), o.affine = RandomAffine(1); }},
      {"moving_geometry: spacing", [](auto& o) { o.moving_geometry.emplace().spacing.x = 0; }},
      {"moving_geometry: must be 2-D", [](auto& o) { o.moving_geometry.emplace(); }},
  };
  for (const auto& [message, change] : cases) {
    PhantomOptions options = SmallOptions();
    change(options);
    const absl::StatusOr<Phantom> phantom = MakePhantom(options);
    EXPECT_EQ(phantom.status().code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(std::string(phantom.status().message()).find(message), 0u) << phantom.status();
  }
}

TEST(RandomAffineTest, StaysWithinItsLimits) {
  const Vec3d center{10, -20, 30};
  double largest_angle = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const AffineMap rotation = RandomAffine(seed, 20, 0, 0, 0, center);
    const double trace = rotation.m[0][0] + rotation.m[1][1] + rotation.m[2][2];
    const double angle = std::acos(std::min(1.0, (trace - 1) / 2)) * 180 / M_PI;
    EXPECT_LE(angle, 20 + 1e-6);
    EXPECT_NEAR(Determinant(rotation), 1, 1e-12);
    EXPECT_LT(Length(rotation(center) - center), 1e-12);
    largest_angle = std::max(largest_angle, angle);

    const AffineMap map = RandomAffine(seed, 20, 0.15, 0.1, 30, center);
    EXPECT_LE(Length(map(center) - center), 30 + 1e-9);
    EXPECT_GE(Determinant(map), std::pow(0.85, 3));
    EXPECT_LE(Determinant(map), std::pow(1.15, 3));
    const AffineMap flat = RandomAffine(seed, 20, 0.15, 0.1, 30, center, true);
    EXPECT_EQ(flat({3, 4, 5}).z, 5);
    EXPECT_EQ(flat.m[0][2], 0);
  }
  EXPECT_GT(largest_angle, 19);
}

TEST(RandomAffineTest, SeedsDecide) {
  EXPECT_EQ(RandomAffine(5)({1, 2, 3}), RandomAffine(5)({1, 2, 3}));
  EXPECT_FALSE(RandomAffine(5)({1, 2, 3}) == RandomAffine(6)({1, 2, 3}));
}

}  // namespace
}  // namespace intrawarp::phantom
