// SPDX-License-Identifier: Apache-2.0
// Registration with landmarks: every method takes them, where they say what the images say and where they do not.
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

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }

constexpr Vec3d kPlaces[] = {{-12, 9, 7}, {14, -10, 5}, {3, 12, -14}};

class LandmarkRegistrationTest : public TexturedPairTest {
 protected:
  static Pair Textured() {
    AffineMap affine = AffineMap::Identity();
    affine.m[0][3] = 3;
    affine.m[2][3] = -2;
    return MakeTexturedPair(Texture(7, false), 2.2, 3, false, affine);
  }
  // Landmarks that are `wrong` mm from the truth.
  static std::vector<Landmark> Landmarks(const Pair& pair, Vec3d wrong, double sigma_mm) {
    std::vector<Landmark> landmarks;
    for (const Vec3d p : kPlaces) landmarks.push_back({p, pair.Truth(p) + wrong, sigma_mm});
    return landmarks;
  }

  absl::StatusOr<AssessedRegistration> Run(const Pair& pair, std::vector<StageOptions> stages,
                                           std::vector<Landmark> landmarks, bool automatic = false) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input;
    input.fixed = &fixed;
    input.moving = &moving;
    input.stages = std::move(stages);
    input.automatic = automatic;
    if (!automatic) input.initial = AffineMap::Identity();
    input.landmarks = std::move(landmarks);
    const absl::Status valid = ValidateRegistration(input);
    if (!valid.ok()) return valid;
    // In an arena of exactly the size that is asked for.
    arenas_.push_back(*OwnedContext::Create(device(), AssessedWorkspaceBytes(device(), input)));
    return RegisterAndAssess(arenas_.back().context(), input);
  }

  // The mean distance of T to the landmarks.
  double DistanceTo(const std::vector<Landmark>& landmarks, const Transform& transform) {
    const auto fit = MeasureLandmarks(ctx(), transform, landmarks, 1);
    EXPECT_OK(fit);
    return fit->mean_mm;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LandmarkRegistrationTest);

struct MethodCase {
  std::string name;
  std::vector<StageOptions> stages;
  // The part of the way to sure landmarks that the images deny by 6 mm which the method goes at least.
  double part;
};

std::vector<MethodCase> Methods() {
  const AffineOptions affine{.metric = MetricKind::kNmi};
  return {{"rigid", {RigidOptions{.metric = MetricKind::kNmi}}, 0.5},
          {"affine", {affine}, 0.5},
          {"affine ssd", {AffineOptions{}}, 0.5},
          {"ffd", {affine, FfdOptions{.metric = MetricKind::kSsd}}, 0.6},
          {"log-demons", {LogDemonsOptions{}}, 0.4},
          {"log-demons, symmetric", {LogDemonsOptions{.symmetric = true}}, 0.4},
          {"search", {SearchOptions{}}, 0.3},
          {"search, ffd", {SearchOptions{}, FfdOptions{.metric = MetricKind::kLncc}}, 0.6}};
}

TEST_P(LandmarkRegistrationTest, EveryMethodGoesToSureLandmarksThatTheImagesDeny) {
  const Pair pair = Textured();
  const Vec3d wrong{4, -4, 2};
  const std::vector<Landmark> landmarks = Landmarks(pair, wrong, 0.2);
  for (const MethodCase& method : Methods()) {
    SCOPED_TRACE(method.name);
    const auto without = Run(pair, method.stages, {}), with = Run(pair, method.stages, landmarks);
    ASSERT_OK(without);
    ASSERT_OK(with);
    const double before = DistanceTo(landmarks, without->result.transform),
                 after = DistanceTo(landmarks, with->result.transform);
    EXPECT_LT(after, (1 - method.part) * before) << before;
    EXPECT_EQ(with->quality.landmarks->mean_mm, after);
    EXPECT_GT(with->quality.jacobian.min, 0);
    EXPECT_FALSE(without->quality.landmarks.has_value());
  }
}

TEST_P(LandmarkRegistrationTest, LandmarksThatAgreeWithTheImagesDoNoHarm) {
  const Pair pair = Textured();
  for (const MethodCase& method : Methods()) {
    if (method.name != "affine" && method.name != "ffd" && method.name != "log-demons") continue;
    SCOPED_TRACE(method.name);
    const auto without = Run(pair, method.stages, {}), with = Run(pair, method.stages, Landmarks(pair, {0, 0, 0}, 1));
    ASSERT_OK(without);
    ASSERT_OK(with);
    EXPECT_LT(MeanError(pair, with->result.transform), 1.15 * MeanError(pair, without->result.transform) + 0.02);
    EXPECT_LE(DistanceTo(Landmarks(pair, {0, 0, 0}, 1), with->result.transform),
              DistanceTo(Landmarks(pair, {0, 0, 0}, 1), without->result.transform) + 0.02);
  }
}

// An FFD and log-demons move the tissue beside a landmark, not the body.
TEST_P(LandmarkRegistrationTest, FarFromALandmarkNothingChanges) {
  const Pair pair = Textured();
  const Vec3d at = kPlaces[0];
  const std::vector<Landmark> one = {{at, pair.Truth(at) + Vec3d{4, 0, 0}, 0.5}};
  for (const StageOptions& stage :
       {StageOptions(FfdOptions{.metric = MetricKind::kSsd}), StageOptions(LogDemonsOptions{})}) {
    const auto without = Run(pair, {stage}, {}), with = Run(pair, {stage}, one);
    ASSERT_OK(without);
    ASSERT_OK(with);
    const std::vector<float> a = FieldOn(pair, without->result.transform), b = FieldOn(pair, with->result.transform);
    double near = 0, near_count = 0, far = 0, far_count = 0;
    size_t i = 0;
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) {
      const double change = Length({a[i] - b[i], a[i + 1] - b[i + 1], a[i + 2] - b[i + 2]}), away = Length(p - at);
      i += 3;
      // Off the faces, where the images say little.
      if (std::abs(p.x) > 32 || std::abs(p.y) > 32 || std::abs(p.z) > 30) return;
      if (away < 5) {
        near += change;
        ++near_count;
      } else if (away > 30) {
        far += change;
        ++far_count;
      }
    });
    EXPECT_GT(near / near_count, 1.5);
    EXPECT_LT(far / far_count, 0.2);
  }
}

TEST_P(LandmarkRegistrationTest, TheAutomaticMethodTakesThemAndSaysThatTheyAreMissed) {
  const Pair pair = Textured();
  const std::vector<Landmark> true_ones = Landmarks(pair, {0, 0, 0}, 1);
  const auto agreed = Run(pair, AutomaticStages(), true_ones, /*automatic=*/true);
  ASSERT_OK(agreed);
  EXPECT_FALSE(NeedsReview(agreed->quality.review_reasons));
  EXPECT_LT(agreed->quality.landmarks->mean_mm, 1);
  // 30 mm away from all that the images say, and one of them only.
  std::vector<Landmark> wrong = true_ones;
  wrong[1].moving = wrong[1].moving + Vec3d{0, 30, 0};
  wrong[1].sigma_mm = 3;
  const auto missed = Run(pair, AutomaticStages(), wrong, /*automatic=*/true);
  ASSERT_OK(missed);
  EXPECT_TRUE(std::any_of(missed->quality.review_reasons.begin(), missed->quality.review_reasons.end(),
                          [](const ReviewReason& r) { return r.cause == ReviewCause::kLandmarksMissed; }));
}

// The plane of a 2-D image moves in itself only: the part of a landmark's way across it pulls nothing.
TEST_P(LandmarkRegistrationTest, PlanesTakeNothingAcrossThem) {
  const Pair pair = MakeTexturedPair(Texture(7, true), 2.2, 4, true, AffineMap::Identity());
  std::vector<Landmark> in_plane, across;
  for (const Vec3d p : {Vec3d{12, 8, 0}, Vec3d{-14, 6, 0}, Vec3d{3, -15, 0}}) {
    in_plane.push_back({p, pair.Truth(p), 1});
    across.push_back({p + Vec3d{0, 0, 3}, pair.Truth(p) + Vec3d{0, 0, -9}, 1});
  }
  const AffineOptions affine{.metric = MetricKind::kNmi};
  const std::vector<std::vector<StageOptions>> methods = {
      {affine}, {affine, FfdOptions{}}, {LogDemonsOptions{}}, {SearchOptions{}, FfdOptions{}}};
  for (const std::vector<StageOptions>& stages : methods) {
    const auto flat = Run(pair, stages, in_plane), other = Run(pair, stages, across);
    ASSERT_OK(flat);
    ASSERT_OK(other);
    const std::vector<float> a = FieldOn(pair, flat->result.transform), b = FieldOn(pair, other->result.transform);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-3) << MethodName(stages.back());
    EXPECT_LT(MeanError(pair, other->result.transform), 1.5);
  }
}

TEST_P(LandmarkRegistrationTest, RunsGiveTheSameBits) {
  const Pair pair = Textured();
  for (const MethodCase& method : Methods()) {
    if (method.name != "ffd" && method.name != "log-demons, symmetric" && method.name != "search") continue;
    SCOPED_TRACE(method.name);
    const auto first = Run(pair, method.stages, Landmarks(pair, {2, 0, 0}, 1)),
               second = Run(pair, method.stages, Landmarks(pair, {2, 0, 0}, 1));
    ASSERT_OK(first);
    ASSERT_OK(second);
    EXPECT_EQ(FieldOn(pair, first->result.transform), FieldOn(pair, second->result.transform));
  }
}

TEST_P(LandmarkRegistrationTest, WrongLandmarksAreRefusedByName) {
  std::vector<Landmark> landmarks = Landmarks(Textured(), {0, 0, 0}, 1);
  landmarks[2].fixed.x = std::nan("");
  const auto answer = Run(Textured(), {AffineOptions{}}, landmarks);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(answer.status()), "landmarks[2]");
  landmarks[2].fixed.x = -2e7;
  const auto far = Run(Textured(), {AffineOptions{}}, landmarks);
  EXPECT_EQ(far.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(far.status()), "landmarks[2]");
}

}  // namespace
}  // namespace intrawarp
