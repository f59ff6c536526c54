// SPDX-License-Identifier: Apache-2.0
// A slice registered to a volume: a textured body, cut at random planes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/base/field_error.h"
#include "engine/quality/verdict.h"
#include "engine/registration/registration.h"
#include "engine/registration/start/rotations.h"
#include "engine/registration/start/slice_pose.h"
#include "gmock/gmock.h"
#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

using ::testing::HasSubstr;

constexpr MetricKind kMetrics[] = {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc};

AffineMap About(Vec3d center, const AffineMap& linear, Vec3d shift) {
  AffineMap map = linear;
  const Vec3d moved = center - linear.Linear(center) + shift;
  for (int r = 0; r < 3; ++r) map.m[r][3] = moved[r];
  return map;
}

Vec3d Column(const Geometry& g, int c) { return {g.direction[0][c], g.direction[1][c], g.direction[2][c]}; }

Vec3d Cross(Vec3d a, Vec3d b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }

// fixed(p) = body(truth(p)) on a slice at any angle near the origin, moving(y) = body(y).
struct SlicePair {
  Geometry fixed_grid, moving_grid;
  std::vector<float> fixed, moving;
  AffineMap truth = AffineMap::Identity();
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  double Uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(engine_); }
  Vec3d Direction() {
    std::normal_distribution<double> normal;
    const Vec3d v{normal(engine_), normal(engine_), normal(engine_)};
    return (1 / Length(v)) * v;
  }
  AffineMap Turn(double degrees) { return RotationMap(RotationAbout(Direction(), degrees)); }

 private:
  std::mt19937 engine_;
};

Geometry RandomSlice(Random& random, bool is_left_handed) {
  Geometry g{.size = {72, 61, 1}, .spacing = {1.5, 1.7, 3}};
  const AffineMap turn = random.Turn(random.Uniform(0, 180));
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) g.direction[r][c] = turn.m[r][c] * (is_left_handed && c == 2 ? -1 : 1);
  }
  CenterAtOrigin(g);
  g.origin = g.origin + random.Uniform(-10, 10) * Column(g, 2);
  return g;
}

template <typename Body>
SlicePair MakeSlicePair(const Body& body, const Geometry& slice, const AffineMap& truth) {
  SlicePair pair;
  pair.truth = truth;
  pair.fixed_grid = slice;
  pair.moving_grid = {.size = {66, 61, 63}, .spacing = {2, 2.1, 2.2}};
  pair.moving_grid.direction[0][0] = -1;
  CenterAtOrigin(pair.moving_grid);
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { pair.fixed.push_back(static_cast<float>(body(truth(p)))); });
  ForEachPoint(pair.moving_grid, [&](Vec3d p, Int3) { pair.moving.push_back(static_cast<float>(body(p))); });
  return pair;
}

// Mean distance over the slice, mm.
double MeanErrorMm(const SlicePair& pair, const AffineMap& found) {
  double sum = 0;
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { sum += Length(found(p) - pair.truth(p)); });
  return sum / static_cast<double>(pair.fixed_grid.voxels());
}

class SliceTest : public TexturedPairTest {
 protected:
  absl::StatusOr<RegistrationResult> Run(const SlicePair& pair, std::vector<StageOptions> stages,
                                         std::optional<AffineMap> initial) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    return RunInput({&fixed, &moving, nullptr, nullptr, std::move(stages), initial});
  }
  absl::Status Refusal(const RegistrationInput& input) { return RunInput(input).status(); }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SliceTest);

TEST_P(SliceTest, RigidFindsThePoseInAndOutOfThePlane) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Random random(seed);
    const Texture texture(seed, false);
    const Geometry slice = RandomSlice(random, seed % 2 == 0);
    const AffineMap truth = About(Center(slice), random.Turn(5), 6 * random.Direction());
    const SlicePair pair = MakeSlicePair(texture, slice, truth);
    for (MetricKind metric : kMetrics) {
      SCOPED_TRACE(std::string(MetricName(metric)) + " seed " + std::to_string(seed));
      const absl::StatusOr<RegistrationResult> result =
          Run(pair, {RigidOptions{.metric = metric}}, AffineMap::Identity());
      ASSERT_OK(result) << result.status();
      const AffineMap& found = result->transform.affine();
      // Blobs have no intensity that many pixels share: NMI's minimum lies up to 2 mm off, from a start 6 mm off.
      EXPECT_LT(MeanErrorMm(pair, found), metric == MetricKind::kNmi ? 2.5 : 0.35);
      EXPECT_NEAR(Determinant(found), 1, 1e-9);
      EXPECT_FALSE(result->worse_than_start);
      ASSERT_TRUE(result->slice_pose.has_value());
      EXPECT_GT(result->slice_pose->Observability(), kLeastObservability);
    }
  }
}

// A stretch and a shear in the plane show; along the normal nothing does, and the map keeps lengths there.
TEST_P(SliceTest, AffineIsCompletedByTheUnitNormal) {
  for (uint32_t seed = 11; seed <= 13; ++seed) {
    Random random(seed);
    const Texture texture(seed, false);
    const Geometry slice = RandomSlice(random, seed % 2 == 0);
    const Vec3d u = Column(slice, 0), v = Column(slice, 1);
    AffineMap stretch = AffineMap::Identity();
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < 3; ++c) stretch.m[r][c] += 0.06 * u[r] * u[c] - 0.04 * v[r] * v[c] + 0.03 * u[r] * v[c];
    const AffineMap truth = About(Center(slice), Compose(random.Turn(4), stretch), 4 * random.Direction());
    const SlicePair pair = MakeSlicePair(texture, slice, truth);
    for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
      SCOPED_TRACE(std::string(MetricName(metric)) + " seed " + std::to_string(seed));
      const absl::StatusOr<RegistrationResult> result =
          Run(pair, {AffineOptions{.metric = metric}}, AffineMap::Identity());
      ASSERT_OK(result) << result.status();
      const AffineMap& found = result->transform.affine();
      EXPECT_LT(MeanErrorMm(pair, found), 0.4);
      const Vec3d a = found.Linear(u), b = found.Linear(v), normal = found.Linear(Column(slice, 2));
      EXPECT_NEAR(Length(normal), 1, 1e-6);
      EXPECT_NEAR(Dot(normal, a), 0, 1e-6);
      EXPECT_NEAR(Dot(normal, b), 0, 1e-6);
      EXPECT_NEAR(Determinant(found), Length(Cross(a, b)), 1e-6);
      EXPECT_NEAR(Determinant(found), 1.06 * 0.96, 0.02);
    }
  }
}

TEST_P(SliceTest, SearchFindsAPoseFarFromTheHeader) {
  int elsewhere = 0;  // the header's start may reach the pose, too
  for (uint32_t seed = 21; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Texture texture(seed, false);
    const Geometry slice = RandomSlice(random, false);
    const AffineMap truth = About(Center(slice), random.Turn(14), 22 * Column(slice, 2) + 8 * random.Direction());
    const SlicePair pair = MakeSlicePair(texture, slice, truth);
    const absl::StatusOr<RegistrationResult> result =
        Run(pair, {RigidOptions{.metric = MetricKind::kNgf}}, std::nullopt);
    ASSERT_OK(result) << result.status();
    EXPECT_LT(MeanErrorMm(pair, result->transform.affine()), 0.35);
    ASSERT_TRUE(result->starts.has_value());
    ASSERT_FALSE(result->starts->candidates.empty());
    elsewhere += result->starts->candidates[0].kind != StartKind::kHeader ? 1 : 0;
    EXPECT_FALSE(result->starts->mirror_lead.has_value());
    for (const StartCandidate& candidate : result->starts->candidates) {
      EXPECT_NE(candidate.kind, StartKind::kMirrored);
      EXPECT_NEAR(Determinant(candidate.end), 1, 1e-9);
    }
  }
  EXPECT_GE(elsewhere, 2);
}

TEST_P(SliceTest, ExactHeaderWins) {
  Random random(31);
  const SlicePair pair = MakeSlicePair(Texture(31, false), RandomSlice(random, false), AffineMap::Identity());
  const absl::StatusOr<RegistrationResult> result = Run(pair, {RigidOptions{}}, std::nullopt);
  ASSERT_OK(result) << result.status();
  EXPECT_LT(MeanErrorMm(pair, result->transform.affine()), 0.2);
  EXPECT_EQ(result->starts->candidates[0].kind, StartKind::kHeader);
}

TEST_P(SliceTest, SameBitsEveryTime) {
  Random random(41);
  const Geometry slice = RandomSlice(random, true);
  const SlicePair pair =
      MakeSlicePair(Texture(41, false), slice, About(Center(slice), random.Turn(5), 6 * random.Direction()));
  for (MetricKind metric : kMetrics) {
    const absl::StatusOr<RegistrationResult> a = Run(pair, {AffineOptions{.metric = metric}}, std::nullopt);
    const absl::StatusOr<RegistrationResult> b = Run(pair, {AffineOptions{.metric = metric}}, std::nullopt);
    ASSERT_OK(a) << a.status();
    ASSERT_OK(b) << b.status();
    EXPECT_EQ(std::memcmp(&a->transform.affine(), &b->transform.affine(), sizeof(AffineMap)), 0);
  }
}

// Across a tube the slice fits anywhere along the normal.
TEST_P(SliceTest, TubeDoesNotShowWhereTheSliceLies) {
  const Texture texture(51, true);
  const auto tube = [&](Vec3d p) { return texture({p.x, p.y, 0}); };
  Geometry slice{.size = {72, 61, 1}, .spacing = {1.5, 1.7, 3}};
  CenterAtOrigin(slice);
  const SlicePair pair = MakeSlicePair(tube, slice, AffineMap::Identity());
  for (MetricKind metric : kMetrics) {
    SCOPED_TRACE(MetricName(metric));
    const absl::StatusOr<RegistrationResult> result =
        Run(pair, {RigidOptions{.metric = metric}}, AffineMap::Identity());
    ASSERT_OK(result) << result.status();
    ASSERT_TRUE(result->slice_pose.has_value());
    EXPECT_GT(result->slice_pose->in_plane_rise, 0);
    EXPECT_LT(result->slice_pose->Observability(), kLeastObservability);
    QualityReport report;
    report.overlap = 1;
    report.slice_observability = result->slice_pose->Observability();
    const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
    ASSERT_EQ(reasons.size(), 1u);
    EXPECT_EQ(reasons[0].cause, ReviewCause::kPoseNotObserved);
    EXPECT_STREQ(ReviewText(reasons[0].cause), "pose not observed");
    EXPECT_EQ(reasons[0].value, report.slice_observability);
    EXPECT_EQ(reasons[0].limit, kLeastObservability);
  }
}

TEST(SlicePoseTest, ObservabilityIsTheWeakerRiseThroughThePlane) {
  EXPECT_EQ(SlicePose().Observability(), 0);
  EXPECT_DOUBLE_EQ((SlicePose{2, 0.02, 0.04, 0.1}).Observability(), 0.2);
  EXPECT_DOUBLE_EQ((SlicePose{2, 0.04, 0.01, 0.1}).Observability(), 0.1);
  EXPECT_EQ((SlicePose{2, 0.4, 0.3, 0.1}).Observability(), 1);
  EXPECT_EQ((SlicePose{2, 0.4, 0.3, 1e-6}).Observability(), 0);
}

TEST_P(SliceTest, RefusesWhatASliceCannotDo) {
  const auto image = [&](Int3 size, uint32_t seed) {
    Geometry g{.size = size};
    return Prepare(RandomFloats(g.voxels(), seed), g);
  };
  const PreparedImage volume = image({24, 22, 20}, 1), slice = image({24, 22, 1}, 2), line = image({24, 7, 1}, 3);
  const std::vector<StageOptions> rigid = {RigidOptions{}};
  const absl::Status reversed = Refusal({&volume, &slice, nullptr, nullptr, rigid, {}});
  EXPECT_EQ(reversed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(reversed), "moving");
  EXPECT_THAT(reversed.message(), HasSubstr("exchange them"));
  const absl::Status small = Refusal({&line, &volume, nullptr, nullptr, rigid, {}});
  EXPECT_EQ(small.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FieldOf(small), "fixed");
  for (const StageOptions& deformable : {StageOptions(FfdOptions{}), StageOptions(LogDemonsOptions{})}) {
    const absl::Status status = Refusal({&slice, &volume, nullptr, nullptr, {RigidOptions{}, deformable}, {}});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(FieldOf(status), "stages[1]");
    EXPECT_THAT(status.message(), HasSubstr(std::string(MethodName(deformable))));
  }
}

// A slice whose header lies far off the volume.
TEST_P(SliceTest, TooLittleOverlapIsAnError) {
  Random random(61);
  SlicePair pair = MakeSlicePair(Texture(61, false), RandomSlice(random, false), AffineMap::Identity());
  pair.fixed_grid.origin = pair.fixed_grid.origin + Vec3d{2000, 0, 0};
  const absl::Status status = Run(pair, {RigidOptions{}}, AffineMap::Identity()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("overlap"));
}

}  // namespace
}  // namespace intrawarp
