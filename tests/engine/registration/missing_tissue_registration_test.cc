// SPDX-License-Identifier: Apache-2.0
// Registration around tissue that only one image shows: a known deformation, and a hole in the fixed image.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/field_error.h"
#include "engine/registration/assess.h"
#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

constexpr Vec3d kHoleCentre{-16, 6, 4};
constexpr double kHoleRadius = 15;
// An intensity that the texture hardly has.
constexpr float kFluid = -80;

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }
bool IsInHole(Vec3d p) { return Length(p - kHoleCentre) < kHoleRadius; }

class MissingTissueRegistrationTest : public TexturedPairTest {
 protected:
  static Pair Whole() {
    AffineMap affine = AffineMap::Identity();
    affine.m[0][3] = 3;
    affine.m[2][3] = -2;
    return MakeTexturedPair(Texture(7, false), 2.2, 3, false, affine);
  }
  static Pair WithHole() {
    Pair pair = Whole();
    size_t i = 0;
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) {
      if (IsInHole(p)) pair.fixed[i] = kFluid;
      ++i;
    });
    return pair;
  }

  absl::StatusOr<AssessedRegistration> Run(const Pair& pair, std::vector<StageOptions> stages, bool find_missing,
                                           const AssessOptions& options = {}, bool automatic = false,
                                           CheckpointFn checkpoint = nullptr) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input;
    input.fixed = &fixed;
    input.moving = &moving;
    input.stages = std::move(stages);
    input.automatic = automatic;
    if (!automatic) input.initial = AffineMap::Identity();
    input.find_missing_tissue = find_missing;
    // In an arena of exactly the size that is asked for.
    arenas_.push_back(*OwnedContext::Create(device(), AssessedWorkspaceBytes(device(), input)));
    return RegisterAndAssess(arenas_.back().context(std::move(checkpoint)), input, options);
  }

  // The mean error in mm at least `margin` outside the hole, off the faces.
  double ErrorOutside(const Pair& pair, const Transform& transform, double margin = 0) {
    const Geometry& g = pair.fixed_grid;
    const std::vector<float> field = FieldOn(pair, transform);
    double sum = 0, count = 0;
    size_t i = 0;
    ForEachPoint(g, [&](Vec3d p, Int3 v) {
      const Vec3d u{field[i], field[i + 1], field[i + 2]};
      i += 3;
      for (int a = 0; a < 3; ++a)
        if (v[a] < 5 || v[a] >= g.size[a] - 5) return;
      if (Length(p - kHoleCentre) < kHoleRadius + margin) return;
      sum += Length(p + u - pair.Truth(p));
      ++count;
    });
    return sum / count;
  }

  static double Dice(const MissingTissue& tissue) {
    double both = 0, sum = 0;
    size_t i = 0;
    ForEachPoint(tissue.grid, [&](Vec3d p, Int3) {
      const bool is_missing = !tissue.nodes.empty() && tissue.nodes[i] != 0;
      both += is_missing && IsInHole(p);
      sum += is_missing + IsInHole(p);
      ++i;
    });
    return 2 * both / sum;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MissingTissueRegistrationTest);

std::vector<StageOptions> AffineThenFfd() {
  return {AffineOptions{.metric = MetricKind::kNmi}, FfdOptions{.metric = MetricKind::kSsd}};
}

TEST_P(MissingTissueRegistrationTest, AHoleIsFoundAndTheRestIsRegisteredAsIfItWereNotThere) {
  const auto whole = Run(Whole(), AffineThenFfd(), false);
  const auto blind = Run(WithHole(), AffineThenFfd(), false);
  const auto seeing = Run(WithHole(), AffineThenFfd(), true,
                          {.error = {.points = {kHoleCentre, kHoleCentre + Vec3d{0, kHoleRadius + 8, 0}}}});
  ASSERT_OK(whole);
  ASSERT_OK(blind);
  ASSERT_OK(seeing);
  // Next to the hole the field is an interpolation.
  constexpr double kMarginMm = 10;
  const double of_whole = ErrorOutside(Whole(), whole->result.transform, kMarginMm),
               of_blind = ErrorOutside(WithHole(), blind->result.transform, kMarginMm),
               of_seeing = ErrorOutside(WithHole(), seeing->result.transform, kMarginMm);
  EXPECT_LT(of_seeing, 2 * of_whole);
  EXPECT_LT(of_seeing, 0.5 * of_blind);
  EXPECT_FALSE(blind->result.missing_tissue.has_value());
  ASSERT_TRUE(seeing->result.missing_tissue.has_value());
  EXPECT_GT(Dice(*seeing->result.missing_tissue), 0.8);
  EXPECT_EQ(seeing->quality.missing_fraction, seeing->result.missing_tissue->fraction);
  ASSERT_EQ(seeing->quality.error_at.size(), 2u);
  EXPECT_TRUE(seeing->quality.error_at[0].is_missing);
  EXPECT_FALSE(seeing->quality.error_at[1].is_missing);
  // The hole is not stretched: T is continued smoothly.
  EXPECT_GT(seeing->quality.jacobian.min, 0.3);
  EXPECT_LT(seeing->quality.jacobian.max, 2);
  // The images agree better without the hole than with it.
  EXPECT_GT(*seeing->quality.after.ncc, *blind->quality.after.ncc);
}

TEST_P(MissingTissueRegistrationTest, WholeImagesAreRegisteredAsBefore) {
  const auto without = Run(Whole(), AffineThenFfd(), false);
  const auto with = Run(Whole(), AffineThenFfd(), true);
  ASSERT_OK(without);
  ASSERT_OK(with);
  ASSERT_TRUE(with->result.missing_tissue.has_value());
  EXPECT_TRUE(with->result.missing_tissue->nodes.empty());
  EXPECT_EQ(FieldOn(Whole(), with->result.transform), FieldOn(Whole(), without->result.transform));
  EXPECT_EQ(with->quality.missing_fraction, 0);
}

TEST_P(MissingTissueRegistrationTest, TheAutomaticMethodFindsItToo) {
  const auto answer = Run(WithHole(), AutomaticStages(), true, {}, /*automatic=*/true);
  ASSERT_OK(answer);
  ASSERT_TRUE(answer->result.missing_tissue.has_value());
  EXPECT_GT(Dice(*answer->result.missing_tissue), 0.8);
  EXPECT_TRUE(answer->result.starts.has_value());
  EXPECT_LT(ErrorOutside(WithHole(), answer->result.transform), 1);
}

TEST_P(MissingTissueRegistrationTest, ABudgetThatEndsTheSearchLeavesItUnsaid) {
  const auto answer =
      Run(WithHole(), AffineThenFfd(), true, {}, false, [](const Progress&) { return Decision::kStop; });
  ASSERT_OK(answer);
  EXPECT_EQ(answer->result.stop_reason, StopReason::kBudget);
  EXPECT_FALSE(answer->result.missing_tissue.has_value());
  EXPECT_FALSE(answer->quality.missing_fraction.has_value());
}

TEST_P(MissingTissueRegistrationTest, ASliceInAVolumeIsRefused) {
  const Pair pair = Whole();
  Geometry plane = pair.fixed_grid;
  plane.size.z = 1;
  const std::vector<float> values(pair.fixed.begin(), pair.fixed.begin() + plane.voxels());
  const PreparedImage fixed = Prepare(values, plane), moving = Prepare(pair.moving, pair.moving_grid);
  RegistrationInput input;
  input.fixed = &fixed;
  input.moving = &moving;
  input.stages = {RigidOptions{}};
  EXPECT_OK(ValidateRegistration(input));
  input.find_missing_tissue = true;
  const absl::Status status = ValidateRegistration(input);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(FieldOf(status), "find_missing_tissue");
}

TEST_P(MissingTissueRegistrationTest, MuchMissingTissueIsForReview) {
  QualityReport report;
  report.overlap = 1;
  report.missing_fraction = 0.19;
  const auto has_reason = [&] {
    const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
    return std::any_of(reasons.begin(), reasons.end(),
                       [](const ReviewReason& reason) { return reason.cause == ReviewCause::kMissingTissue; });
  };
  EXPECT_FALSE(has_reason());
  report.missing_fraction = 0.21;
  EXPECT_TRUE(has_reason());
  report.missing_fraction.reset();
  EXPECT_FALSE(has_reason());
}

}  // namespace
}  // namespace intrawarp
