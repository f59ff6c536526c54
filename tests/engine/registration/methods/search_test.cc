// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/search.h"

#include <cmath>
#include <vector>

#include "engine/base/field_error.h"
#include "engine/quality/jacobian.h"
#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

AffineMap Shift(double x, double y, double z) {
  AffineMap map = AffineMap::Identity();
  map.m[0][3] = x;
  map.m[1][3] = y;
  map.m[2][3] = z;
  return map;
}

class SearchTest : public TexturedPairTest {
 protected:
  absl::StatusOr<RegistrationResult> Register(const Pair& pair, std::vector<StageOptions> stages,
                                              CheckpointFn checkpoint = nullptr) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    const RegistrationInput input{&fixed, &moving, nullptr, nullptr, std::move(stages), AffineMap::Identity()};
    return RunInput(input, std::move(checkpoint));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SearchTest);

// A motion of 12 mm with waves of 4 mm, found from nothing; intensities do not matter.
TEST_P(SearchTest, FindsALargeMotionWithoutAStart) {
  for (const bool is_2d : {false, true}) {
    SCOPED_TRACE(is_2d ? "2-D" : "3-D");
    Pair pair = MakeTexturedPair(Texture(5, is_2d), 2.2, 4, is_2d, Shift(9, -7, is_2d ? 0 : 4));
    for (float& v : pair.moving) v = 900 - 3 * v;
    const double before = MeanError(pair, Transform(AffineMap::Identity()), 8);
    const absl::StatusOr<RegistrationResult> found = Register(pair, {SearchOptions{}});
    ASSERT_OK(found) << found.status();
    EXPECT_TRUE(found->transform.has_control_grid());
    EXPECT_EQ(found->transform.domain(), pair.fixed_grid);
    EXPECT_EQ(found->stop_reason, StopReason::kConverged);
    EXPECT_FALSE(found->worse_than_start);
    const StageReport& report = found->stages.front();
    ASSERT_EQ(report.levels.size(), 1u);
    EXPECT_LT(report.levels[0].value_after, 0.7 * report.levels[0].value_before);
    const double after = MeanError(pair, found->transform, 8);
    EXPECT_LT(after, 0.2 * before) << before << " -> " << after;
  }
}

TEST_P(SearchTest, FfdGoesOnFromIt) {
  const Pair pair = MakeTexturedPair(Texture(6, false), 2.2, 4, false, Shift(17, -13, 9));
  const absl::StatusOr<RegistrationResult> found = Register(pair, {SearchOptions{}}),
                                           refined = Register(pair, {SearchOptions{}, FfdOptions{}}),
                                           without = Register(pair, {FfdOptions{}});
  ASSERT_OK(found) << found.status();
  ASSERT_OK(refined) << refined.status();
  ASSERT_OK(without) << without.status();
  EXPECT_LT(MeanError(pair, refined->transform, 8), MeanError(pair, found->transform, 8));
  EXPECT_LT(MeanError(pair, refined->transform, 8), 0.5 * MeanError(pair, without->transform, 8));
}

TEST_P(SearchTest, ItsResultDoesNotFold) {
  const Pair pair = MakeTexturedPair(Texture(7, false), 2.2, 9, false, Shift(-6, 8, -5));
  const absl::StatusOr<RegistrationResult> found = Register(pair, {SearchOptions{}});
  ASSERT_OK(found) << found.status();
  OwnedContext owned = *OwnedContext::Create(device(), JacobianWorkspaceBytes(pair.fixed_grid, true));
  const absl::StatusOr<JacobianStatistics> jacobian =
      MeasureJacobian(owned.context(), found->transform, pair.fixed_grid);
  ASSERT_OK(jacobian) << jacobian.status();
  EXPECT_GT(jacobian->min, 0);
  EXPECT_LT(jacobian->min, 0.9);
}

// Voxels outside the masks do not count: the other half of the moving image is noise there.
TEST_P(SearchTest, MasksCount) {
  Pair pair = MakeTexturedPair(Texture(8, false), 2.2, 3, false, Shift(6, 0, 0));
  std::vector<float> fixed_mask(pair.fixed.size(), 1), moving_mask(pair.moving.size(), 1);
  const std::vector<float> noise = RandomFloats(pair.moving.size(), 9, -100, 400);
  for (size_t i = 0; i < pair.moving.size(); ++i) {
    const int row = static_cast<int>(i) / pair.moving_grid.size.x % pair.moving_grid.size.y;
    if (row < pair.moving_grid.size.y / 2) continue;
    pair.moving[i] = noise[i];
    moving_mask[i] = 0;
  }
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid),
                      fixed_marks = Prepare(fixed_mask, pair.fixed_grid),
                      moving_marks = Prepare(moving_mask, pair.moving_grid);
  const RegistrationInput input{&fixed, &moving, &fixed_marks, &moving_marks, {SearchOptions{}}, AffineMap::Identity()};
  const absl::StatusOr<RegistrationResult> found = RunInput(input);
  ASSERT_OK(found) << found.status();
  const std::vector<float> field = FieldOn(pair, found->transform);
  double sum = 0;
  int count = 0;
  size_t i = 0;
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3 v) {
    const Vec3d d = p + Vec3d{field[i], field[i + 1], field[i + 2]} - pair.Truth(p);
    i += 3;
    if (v.y < 8 || v.y > 14 || v.x < 8 || v.x > 35 || v.z < 8 || v.z > 28) return;
    sum += std::sqrt(Dot(d, d));
    ++count;
  });
  EXPECT_LT(sum / count, 2.5);
}

TEST_P(SearchTest, TheSameBitsEachTime) {
  const Pair pair = MakeTexturedPair(Texture(10, false), 2.2, 4, false, Shift(3, 2, 1));
  const absl::StatusOr<RegistrationResult> a = Register(pair, {SearchOptions{}}), b = Register(pair, {SearchOptions{}});
  ASSERT_OK(a) << a.status();
  ASSERT_OK(b) << b.status();
  EXPECT_EQ(FieldOn(pair, a->transform), FieldOn(pair, b->transform));
}

TEST_P(SearchTest, WithoutTimeNothingMoves) {
  const Pair pair = MakeTexturedPair(Texture(11, false), 2.2, 4, false, Shift(9, -7, 4));
  const auto stop = [](const Progress&) { return Decision::kStop; };
  const absl::StatusOr<RegistrationResult> stopped = Register(pair, {SearchOptions{}}, stop);
  ASSERT_OK(stopped) << stopped.status();
  EXPECT_EQ(stopped->stop_reason, StopReason::kBudget);
  EXPECT_TRUE(stopped->transform.has_control_grid());
  EXPECT_THAT(FieldOn(pair, stopped->transform), testing::Each(0.0f));
  const auto cancel = [](const Progress&) { return Decision::kCancel; };
  EXPECT_EQ(Register(pair, {SearchOptions{}}, cancel).status().code(), absl::StatusCode::kCancelled);
}

TEST_P(SearchTest, SaysWhatIsWrong) {
  const Pair pair = MakeTexturedPair(Texture(12, false), 2.2, 4, false, AffineMap::Identity());
  const auto error = [&](std::vector<StageOptions> stages) { return Register(pair, std::move(stages)).status(); };
  EXPECT_EQ(FieldOf(error({SearchOptions{.node_mm = -1}})), "stages[0].node_mm");
  EXPECT_EQ(FieldOf(error({SearchOptions{.range_mm = 1e6}})), "stages[0].range_mm");
  EXPECT_EQ(error({SearchOptions{}, LogDemonsOptions{}}).message(),
            "stages[1].method: must be search or ffd after search");
  for (const StageOptions& stage : {StageOptions(AffineOptions{.metric = MetricKind::kMind}),
                                    StageOptions(RigidOptions{.metric = MetricKind::kMind})}) {
    const absl::Status status = error({stage});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_EQ(FieldOf(status), "stages[0].metric");
  }
}

// An image that lies nowhere near the other one.
TEST_P(SearchTest, ImagesThatDoNotMeetAreRefused) {
  Pair pair = MakeTexturedPair(Texture(13, false), 2.2, 0, false, AffineMap::Identity());
  pair.moving_grid.origin.x += 5000;
  EXPECT_EQ(Register(pair, {SearchOptions{}}).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace intrawarp
