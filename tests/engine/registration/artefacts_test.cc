// SPDX-License-Identifier: Apache-2.0
// Values that say nothing of tissue (metal, padding, a resampling tool's fill) do not decide a registration.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

constexpr double kRodRadius = 1.5;
constexpr double kFarFromRods = 20;

// Rods along z, on a circle; eight are one voxel in 140 of the smaller image, three are few (window.h).
class Rods {
 public:
  explicit Rods(int count) {
    for (int i = 0; i < count; ++i) places_.push_back({26 * std::cos(0.8 * i), 26 * std::sin(0.8 * i), 0});
  }
  double ToNearest(Vec3d p) const {
    double nearest = std::numeric_limits<double>::infinity();
    for (const Vec3d& rod : places_) nearest = std::min(nearest, std::hypot(p.x - rod.x, p.y - rod.y));
    return nearest;
  }
  // They stand where `place` takes a point of the grid.
  template <typename Place>
  void AddTo(const Geometry& g, std::vector<float>& values, const Place& place) const {
    const float largest = *std::max_element(values.begin(), values.end());
    size_t i = 0;
    ForEachPoint(g, [&](Vec3d p, Int3) {
      if (ToNearest(place(p)) <= kRodRadius) values[i] = 20 * largest;
      ++i;
    });
  }

 private:
  // Where they cross the plane z = 0.
  std::vector<Vec3d> places_;
};

// Outside the circle that touches the sides of the grid.
void Pad(const Geometry& g, std::vector<float>& values, float padding) {
  size_t i = 0;
  ForEachPoint(g, [&](Vec3d, Int3 v) {
    const double x = 2.0 * v.x / (g.size.x - 1) - 1, y = 2.0 * v.y / (g.size.y - 1) - 1;
    if (std::hypot(x, y) > 1) values[i] = padding;
    ++i;
  });
}

// A body of texture in air.
float InAir(const Texture& texture, Vec3d p) {
  const Vec3d q{p.x / 30, p.y / 24, p.z / 26};
  return Dot(q, q) < 1 ? static_cast<float>(texture(p)) : -100;
}

class ArtefactsTest : public TexturedPairTest {
 protected:
  // A textured pair without artefacts whose affine part moves it by some millimetres.
  static Pair Clean(double amplitude) {
    AffineMap shift = AffineMap::Identity();
    shift.m[0][3] = 3;
    shift.m[1][3] = -2;
    shift.m[2][3] = 1;
    return MakeTexturedPair(Texture(7, false), 2.2, amplitude, false, shift);
  }
  static Pair CleanInAir() {
    Pair pair = Clean(0);
    const Texture texture(7, false);
    size_t i = 0;
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { pair.fixed[i++] = InAir(texture, pair.Truth(p)); });
    i = 0;
    ForEachPoint(pair.moving_grid, [&](Vec3d p, Int3) { pair.moving[i++] = InAir(texture, p); });
    return pair;
  }

  static bool IsCentral(Vec3d p) { return std::hypot(p.x, p.y) < 26 && std::abs(p.z) < 26; }

  // The displacements that a registration finds at the voxels of the fixed image; empty where it fails.
  std::vector<float> FieldOf(const Pair& pair, const std::vector<StageOptions>& stages) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, stages, std::nullopt};
    const absl::StatusOr<RegistrationResult> result = RunInput(input);
    EXPECT_OK(result) << result.status();
    return result.ok() ? FieldOn(pair, result->transform) : std::vector<float>();
  }

  // The mean distance in mm of two results, 20 mm and more from the rods' axes.
  static double FarChange(const Pair& pair, const Rods& rods, const std::vector<float>& a,
                          const std::vector<float>& b) {
    if (a.empty() || b.empty()) return std::numeric_limits<double>::infinity();
    double sum = 0;
    int count = 0;
    size_t i = 0;
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) {
      const Vec3d d{a[i] - b[i], a[i + 1] - b[i + 1], a[i + 2] - b[i + 2]};
      i += 3;
      if (!IsCentral(p) || rods.ToNearest(p) < kFarFromRods) return;
      sum += std::sqrt(Dot(d, d));
      ++count;
    });
    EXPECT_GT(count, 100);
    return sum / count;
  }

  // The mean error in mm near the axis, and 20 mm and more from the axes of `rods` where there are any.
  double ErrorOf(const Pair& pair, const std::vector<StageOptions>& stages, const Rods* rods = nullptr) {
    const std::vector<float> field = FieldOf(pair, stages);
    if (field.empty()) return std::numeric_limits<double>::infinity();
    double sum = 0;
    int count = 0;
    size_t i = 0;
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) {
      const Vec3d d = p + Vec3d{field[i], field[i + 1], field[i + 2]} - pair.Truth(p);
      i += 3;
      if (!IsCentral(p) || (rods != nullptr && rods->ToNearest(p) < kFarFromRods)) return;
      sum += std::sqrt(Dot(d, d));
      ++count;
    });
    EXPECT_GT(count, 100);
    return sum / count;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(ArtefactsTest);

TEST_P(ArtefactsTest, FewRodsInOneImageOrBothChangeNothingFarAway) {
  const Pair clean = Clean(2);
  const Rods rods(3);
  const auto in_moving = [](Vec3d p) { return p; };
  const auto in_fixed = [&](Vec3d p) { return clean.Truth(p); };
  Pair moving = clean;
  rods.AddTo(moving.moving_grid, moving.moving, in_moving);
  Pair fixed = clean;
  rods.AddTo(fixed.fixed_grid, fixed.fixed, in_fixed);
  Pair both = fixed;
  both.moving = moving.moving;
  // A result of NMI changes by 0.2 mm and more whatever changes in an image (docs/evidence/surgery.md).
  const std::vector<std::pair<StageOptions, double>> deformations = {{FfdOptions{.metric = MetricKind::kNmi}, 0.35},
                                                                     {FfdOptions{.metric = MetricKind::kSsd}, 0.2},
                                                                     {LogDemonsOptions{}, 0.2}};
  for (const auto& [deformation, most] : deformations) {
    const std::vector<StageOptions> stages = {AffineOptions{}, deformation};
    const std::vector<float> without = FieldOf(clean, stages);
    for (const auto& [pair, where] :
         {std::pair(&moving, "the moving image"), std::pair(&fixed, "the fixed image"), std::pair(&both, "both")}) {
      EXPECT_LT(FarChange(*pair, rods, FieldOf(*pair, stages), without), most)
          << MethodName(deformation) << ", in " << where << ", mm";
    }
  }
}

TEST_P(ArtefactsTest, ManyRodsAreClamped) {
  const Pair clean = Clean(2);
  const Rods rods(8);
  // SSD sees a rod in one image as a difference all the same, though a bounded one. How much of it is left depends on
  // where the optimiser ends: 0.46 mm on the CPU and 0.57 mm on CUDA.
  const std::vector<std::pair<StageOptions, double>> deformations = {{FfdOptions{.metric = MetricKind::kNmi}, 0.3},
                                                                     {FfdOptions{.metric = MetricKind::kSsd}, 0.6},
                                                                     {LogDemonsOptions{}, 0.3}};
  for (const auto& [deformation, most] : deformations) {
    const std::vector<StageOptions> stages = {AffineOptions{}, deformation};
    const double without = ErrorOf(clean, stages, &rods);
    Pair one = clean;
    const auto in_moving = [](Vec3d p) { return p; };
    const auto in_fixed = [&](Vec3d p) { return clean.Truth(p); };
    rods.AddTo(one.moving_grid, one.moving, in_moving);
    EXPECT_LT(ErrorOf(one, stages, &rods), without + most) << MethodName(deformation) << ", in the moving image";
    one.moving = clean.moving;
    rods.AddTo(one.fixed_grid, one.fixed, in_fixed);
    EXPECT_LT(ErrorOf(one, stages, &rods), without + most) << MethodName(deformation) << ", in the fixed image";
    rods.AddTo(one.moving_grid, one.moving, in_moving);
    EXPECT_LT(ErrorOf(one, stages, &rods), without + most) << MethodName(deformation) << ", in both";
  }
}

TEST_P(ArtefactsTest, PaddingOutsideTheCircleIsNotSeen) {
  const Pair clean = CleanInAir();
  const std::vector<StageOptions> stages = {RigidOptions{}};
  EXPECT_LT(ErrorOf(clean, stages), 0.3);
  for (const float padding : {-2000.f, -3024.f, -32768.f, 1e30f}) {
    Pair padded = clean;
    Pad(padded.fixed_grid, padded.fixed, padding);
    EXPECT_LT(ErrorOf(padded, stages), 0.5) << padding << " in the fixed image";
    Pad(padded.moving_grid, padded.moving, padding);
    EXPECT_LT(ErrorOf(padded, stages), 0.5) << padding << " in both";
  }
}

}  // namespace
}  // namespace intrawarp
