// SPDX-License-Identifier: Apache-2.0
// The registration that chooses, on textures whose deformation is known.
#include "engine/registration/automatic.h"

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/field_error.h"
#include "engine/registration/automatic_steps.h"
#include "engine/registration/choose/automatic_rules.h"
#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

using testing::HasSubstr;

class AutomaticTest : public TexturedPairTest {
 protected:
  // Prepared images, and the input over them.
  struct Case {
    Case(AutomaticTest& test, const Pair& pair)
        : fixed(test.Prepare(pair.fixed, pair.fixed_grid)), moving(test.Prepare(pair.moving, pair.moving_grid)) {
      input.fixed = &fixed;
      input.moving = &moving;
      input.stages = AutomaticStages();
      input.automatic = true;
    }
    Case(const Case&) = delete;
    const PreparedImage fixed, moving;
    RegistrationInput input;
  };

  static AffineMap Shifted() {
    AffineMap affine = AffineMap::Identity();
    affine.m[0][0] = 1.04;
    affine.m[0][3] = 5;
    affine.m[1][3] = -4;
    return affine;
  }
  static Pair MakePair(double amplitude, bool is_2d = false) {
    return MakeTexturedPair(Texture(7, is_2d), 2.2, amplitude, is_2d, Shifted());
  }
  double AffineError(const Pair& pair, const RegistrationResult& result, int margin = 5) {
    return MeanError(pair, Transform(result.transform.affine(), pair.fixed_grid), margin);
  }
  static bool IsAt(AutomaticStep step, const Progress& progress) { return progress.stage == static_cast<int>(step); }
  static Pair Remapped(Pair pair, const std::function<double(double)>& map) {
    for (float& value : pair.moving) value = static_cast<float>(map(value));
    return pair;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(AutomaticTest);

TEST_P(AutomaticTest, RegistersOneModality) {
  const Pair pair = MakePair(5);
  const Case c(*this, pair);
  const absl::StatusOr<RegistrationResult> result = RunInput(c.input);
  ASSERT_OK(result) << result.status();
  EXPECT_LT(MeanError(pair, result->transform), 0.75);
  EXPECT_LT(MeanError(pair, result->transform), 0.4 * AffineError(pair, *result));
  ASSERT_TRUE(result->choice.has_value());
  const Choice& choice = *result->choice;
  EXPECT_EQ(choice.reason, ChoiceReason::kLinearIntensities);
  EXPECT_EQ(choice.deformations.size(), 2);
  EXPECT_TRUE(choice.is_deformed());
  ASSERT_EQ(choice.affine.size(), 2);
  EXPECT_EQ(choice.affine[0].metric, MetricKind::kNgf);
  // The tissue is further from the affine map than from the start.
  EXPECT_TRUE(choice.deformations[1].is_searched);
  EXPECT_TRUE(choice.deformations[1].is_chosen);
  EXPECT_EQ(choice.affine[0].is_chosen + choice.affine[1].is_chosen, 0);
  EXPECT_THAT(Describe(choice), HasSubstr("after a search was chosen"));
  ASSERT_TRUE(choice.error.has_value());
  EXPECT_LT(choice.error->expected_mm, *choice.error->affine_expected_mm);
  EXPECT_GT(*choice.error->deformation_mm, 1);
  ASSERT_EQ(choice.stages.size(), 3);
  ASSERT_EQ(result->stages.size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(MetricOf(choice.stages[i]), MetricOf(result->stages[i].options));
  EXPECT_TRUE(result->starts.has_value());
  EXPECT_FALSE(result->worse_than_start);
  EXPECT_LE(result->transform.resident_bytes(), RegistrationResultBytes(c.input));
}

// Where the first deformation leaves little, no search is tried, and LNCC continues it.
TEST_P(AutomaticTest, RefinesADeformationThatLeavesLittle) {
  const Pair pair = MakePair(2);
  const Case c(*this, pair);
  const absl::StatusOr<RegistrationResult> result = RunInput(c.input);
  ASSERT_OK(result) << result.status();
  const Choice& choice = *result->choice;
  ASSERT_EQ(choice.deformations.size(), 2) << Describe(choice);
  EXPECT_EQ(choice.deformations[0].metric, MetricKind::kNmi);
  EXPECT_FALSE(choice.deformations[0].is_chosen);
  EXPECT_TRUE(choice.deformations[1].is_refinement);
  EXPECT_FALSE(choice.deformations[1].is_searched);
  EXPECT_TRUE(choice.deformations[1].is_chosen) << Describe(choice);
  EXPECT_THAT(Describe(choice), HasSubstr("after nmi was chosen"));
  ASSERT_EQ(choice.stages.size(), 3);
  ASSERT_EQ(result->stages.size(), 3);
  EXPECT_EQ(MetricOf(choice.stages[1]), MetricKind::kNmi);
  EXPECT_EQ(MetricOf(choice.stages[2]), MetricKind::kLncc);
  EXPECT_EQ(result->stages[2].levels.size(), 1);
  EXPECT_LT(MeanError(pair, result->transform), 0.4);
  EXPECT_LE(result->transform.resident_bytes(), RegistrationResultBytes(c.input));
}

// The chosen stages by name, from the affine part of the result, give the same bits: choosing adds nothing.
TEST_P(AutomaticTest, ItsChoiceCanBeNamed) {
  const Pair pair = MakePair(5);
  const Case c(*this, pair);
  const absl::StatusOr<RegistrationResult> chosen = RunInput(c.input), again = RunInput(c.input);
  ASSERT_OK(chosen) << chosen.status();
  RegistrationInput named = c.input;
  named.automatic = false;
  named.initial = chosen->transform.affine();
  named.stages = chosen->choice->stages;
  if (std::holds_alternative<AffineOptions>(named.stages.front())) named.stages.erase(named.stages.begin());
  const absl::StatusOr<RegistrationResult> result = RunInput(named);
  ASSERT_OK(result) << result.status();
  EXPECT_EQ(FieldOn(pair, chosen->transform), FieldOn(pair, again->transform));
  EXPECT_EQ(FieldOn(pair, chosen->transform), FieldOn(pair, result->transform));
}

// Where NGF and NMI are two estimates of one map, the affine part is their mean. Where one is clearly behind, it is
// not; what both leave of a deformation hides the difference on at least one of these pairs. Unlike intensities keep
// the search out.
TEST_P(AutomaticTest, ItsAffinePartIsTheMeanOfTheChosenTrials) {
  int means = 0;
  for (const double amplitude : {3.0, 5.0, 8.0}) {
    const Pair pair = Remapped(MakePair(amplitude), [](double v) { return 700 - 3.7 * v; });
    const Case c(*this, pair);
    const absl::StatusOr<RegistrationResult> chosen = RunInput(c.input);
    ASSERT_OK(chosen) << chosen.status();
    std::vector<AffineMap> maps;
    for (const AffineTrial& trial : chosen->choice->affine) {
      if (!trial.is_chosen) continue;
      // The search of the start is that of NGF, whichever metric follows.
      RegistrationInput named = c.input;
      named.automatic = false;
      named.stages = {AffineOptions{.metric = trial.metric}};
      const absl::StatusOr<RegistrationResult> result = RunInput(named);
      ASSERT_OK(result) << result.status();
      maps.push_back(result->transform.affine());
    }
    ASSERT_FALSE(maps.empty());
    const AffineMap mean = MeanOf(maps), found = chosen->transform.affine();
    for (int row = 0; row < 3; ++row) {
      for (int column = 0; column < 4; ++column) EXPECT_NEAR(found.m[row][column], mean.m[row][column], 1e-9);
    }
    const char* text = maps.size() > 1 ? "The affine part is the mean of those of ngf (" : "The affine stage uses ";
    EXPECT_THAT(Describe(*chosen->choice), HasSubstr(text));
    means += maps.size() > 1;
  }
  EXPECT_GT(means, 0);
}

TEST_P(AutomaticTest, RegistersOtherIntensities) {
  const auto inverted = [](double v) { return 700 - 3.7 * v; };
  const auto folded = [](double v) { return std::abs(v - 110); };
  for (const std::function<double(double)>& map : {std::function<double(double)>(inverted), {folded}}) {
    const Pair pair = Remapped(MakePair(5), map);
    const Case c(*this, pair);
    const absl::StatusOr<RegistrationResult> result = RunInput(c.input);
    ASSERT_OK(result) << result.status();
    EXPECT_EQ(result->choice->reason, ChoiceReason::kOtherIntensities);
    for (const DeformationTrial& trial : result->choice->deformations) EXPECT_EQ(trial.metric, MetricKind::kNmi);
    EXPECT_LT(MeanError(pair, result->transform), 0.8) << Describe(*result->choice);
  }
}

TEST_P(AutomaticTest, RegistersPlanes) {
  const Pair pair = MakePair(4, /*is_2d=*/true);
  const Case c(*this, pair);
  const absl::StatusOr<RegistrationResult> result = RunInput(c.input);
  ASSERT_OK(result) << result.status();
  EXPECT_EQ(result->choice->reason, ChoiceReason::kPlane);
  EXPECT_EQ(result->choice->affine.size(), 3);
  EXPECT_LT(MeanError(pair, result->transform), 1.2) << Describe(*result->choice);
  EXPECT_THAT(Describe(*result->choice), HasSubstr("2-D"));
}

// The deformation is a start that is far off, and has no time to become better: the affine part, which needs none, is
// the answer, in the form of ffd.
TEST_P(AutomaticTest, TakesOutADeformationThatGainsNothing) {
  const Pair bent = MakePair(8);
  const Case before(*this, bent);
  const absl::StatusOr<RegistrationResult> start = RunInput(before.input);
  ASSERT_OK(start) << start.status();
  const Pair pair = Remapped(MakePair(0), [](double v) { return std::abs(v - 110); });
  Case c(*this, pair);
  c.input.initial_transform = &start->transform;
  const absl::StatusOr<RegistrationResult> result = RunInput(c.input, [](const Progress& progress) {
    return IsAt(AutomaticStep::kDeformation, progress) ? Decision::kStop : Decision::kContinue;
  });
  ASSERT_OK(result) << result.status();
  const Choice& choice = *result->choice;
  EXPECT_FALSE(choice.is_deformed()) << Describe(choice);
  ASSERT_TRUE(choice.rejected_gain.has_value());
  EXPECT_LT(*choice.rejected_gain, -0.2) << Describe(choice);
  EXPECT_EQ(choice.error->expected_mm, choice.affine[choice.affine[1].is_chosen].error->expected_mm);
  EXPECT_EQ(result->stop_reason, StopReason::kBudget);
  EXPECT_TRUE(result->transform.has_control_grid());
  const Transform affine(result->transform.affine(), pair.fixed_grid);
  EXPECT_EQ(FieldOn(pair, result->transform), FieldOn(pair, affine));
  EXPECT_LT(MeanError(pair, result->transform), 0.5) << Describe(choice);
  EXPECT_THAT(Describe(choice), HasSubstr("the affine part alone"));
}

// The moving image vanishes at its finest level when the second deformation begins.
TEST_P(AutomaticTest, OtherDeformationsThatFailLeaveTheFirst) {
  const Pair pair = MakePair(5);
  const Case c(*this, pair);
  const ConstVolumeView finest = c.moving.volume();
  bool is_gone = false;
  const absl::StatusOr<RegistrationResult> result = RunInput(c.input, [&](const Progress& progress) {
    if (!is_gone && IsAt(AutomaticStep::kSearch, progress)) {
      is_gone = true;
      EXPECT_OK(device().Fill(const_cast<float*>(finest.data), 0xFF, finest.geometry.voxels() * sizeof(float),
                              ctx().stream()));
      EXPECT_OK(device().Synchronize(ctx().stream()));
    }
    return Decision::kContinue;
  });
  ASSERT_OK(result) << result.status();
  const Choice& choice = *result->choice;
  ASSERT_EQ(choice.deformations.size(), 3) << Describe(choice);
  EXPECT_TRUE(choice.deformations[0].is_chosen);
  EXPECT_TRUE(choice.deformations[1].is_searched);
  EXPECT_FALSE(choice.deformations[2].is_searched);
  for (int i = 1; i < 3; ++i) {
    EXPECT_FALSE(choice.deformations[i].has_result);
    EXPECT_FALSE(choice.deformations[i].is_accepted);
    EXPECT_FALSE(choice.deformations[i].error.has_value());
  }
  EXPECT_TRUE(choice.is_deformed());
  EXPECT_NE(result->stop_reason, StopReason::kBudget);
  EXPECT_LT(MeanError(pair, result->transform), 0.75);
  EXPECT_LE(result->transform.resident_bytes(), RegistrationResultBytes(c.input));
}

// An affine pair: the affine stage agrees already, and what a deformation still moves is little.
TEST_P(AutomaticTest, LeavesAnAffineResultAlone) {
  const Pair pair = Remapped(MakePair(0), [](double v) { return std::abs(v - 110); });
  const Case c(*this, pair);
  const absl::StatusOr<RegistrationResult> result = RunInput(c.input);
  ASSERT_OK(result) << result.status();
  EXPECT_LT(MeanError(pair, result->transform), 0.5) << Describe(*result->choice);
  EXPECT_EQ(result->choice->deformations.size(), 1);
}

TEST_P(AutomaticTest, WorksWithMasks) {
  const Pair pair = MakePair(4);
  Case c(*this, pair);
  std::vector<float> inside;
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { inside.push_back(Dot(p, p) < 38 * 38 ? 1 : 0); });
  const PreparedImage mask = Prepare(inside, pair.fixed_grid);
  const PreparedImage moving_mask = Prepare(std::vector<float>(pair.moving.size(), 1.0f), pair.moving_grid);
  c.input.fixed_mask = &mask;
  c.input.moving_mask = &moving_mask;
  const absl::StatusOr<RegistrationResult> result = RunInput(c.input);
  ASSERT_OK(result) << result.status();
  EXPECT_LT(result->choice->intensities->samples, static_cast<int64_t>(pair.fixed.size()));
  EXPECT_LT(MeanError(pair, result->transform, 12), 0.75 * AffineError(pair, *result, 12));
  const PreparedImage empty = Prepare(std::vector<float>(pair.fixed.size(), 0.0f), pair.fixed_grid);
  c.input.fixed_mask = &empty;
  const absl::Status none = RunInput(c.input).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FieldOf(none), "fixed_mask");
}

TEST_P(AutomaticTest, StartsWhereItIsTold) {
  const Pair pair = MakePair(5);
  Case c(*this, pair);
  c.input.initial = pair.affine;
  const absl::StatusOr<RegistrationResult> first = RunInput(c.input);
  ASSERT_OK(first) << first.status();
  EXPECT_FALSE(first->starts.has_value());
  EXPECT_LT(MeanError(pair, first->transform), 0.75);
  c.input.initial.reset();
  c.input.initial_transform = &first->transform;
  const absl::StatusOr<RegistrationResult> second = RunInput(c.input);
  ASSERT_OK(second) << second.status();
  EXPECT_LT(MeanError(pair, second->transform), 0.75);
}

TEST_P(AutomaticTest, AnswersForTinyImages) {
  for (const Int3 size : {Int3{8, 7, 6}, Int3{9, 8, 1}, Int3{12, 2, 9}, Int3{64, 1, 1}}) {
    Pair pair;
    pair.fixed_grid = pair.moving_grid = Geometry{.size = size, .spacing = {2, 2, 2}};
    CenterAtOrigin(pair.fixed_grid);
    CenterAtOrigin(pair.moving_grid);
    const Texture texture(3, size.z == 1);
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { pair.fixed.push_back(texture(p)); });
    pair.moving = pair.fixed;
    const Case c(*this, pair);
    const absl::StatusOr<RegistrationResult> result = RunInput(c.input);
    ASSERT_OK(result) << SizeString(pair.fixed_grid) << result.status();
    EXPECT_TRUE(result->transform.has_control_grid());
    EXPECT_FALSE(Describe(*result->choice).empty());
  }
}

// Iterations may: a stage tries its coarsest level more than once.
TEST_P(AutomaticTest, StepsAndLevelsOfItsProgressNeverGoBack) {
  const Pair pair = MakePair(5);
  const Case c(*this, pair);
  std::vector<std::string> steps;
  std::pair<int, int> last = {kBeforeStages, 0};
  ASSERT_OK(RunInput(c.input, [&](const Progress& progress) {
    const std::pair<int, int> now = {progress.stage, progress.level};
    EXPECT_GE(now, last);
    if (progress.stage >= 0 && (steps.empty() || progress.stage > last.first)) {
      const std::string text = StepText(c.input, progress);
      steps.push_back(text.substr(0, text.find(", level 1 of")));
    }
    last = now;
    return Decision::kContinue;
  }));
  EXPECT_THAT(steps, testing::ElementsAre("affine (ngf)", "affine (nmi)", "ffd (nmi)", "search",
                                          "ffd (mind) after search", "ffd (lncc) after search"));
}

TEST_P(AutomaticTest, StepsOfNamedStagesAreTheirMethods) {
  RegistrationInput input;
  input.stages = {RigidOptions(), SearchOptions()};
  EXPECT_EQ(StepText(input, {.stage = 0, .level = 1, .levels = 3}), "rigid, level 2 of 3");
  EXPECT_EQ(StepText(input, {.stage = 1, .level = 0, .levels = 1}), "search, level 1 of 1");
  EXPECT_EQ(StepText(input, {.stage = kBeforeStages, .levels = 4}), "before the first stage");
  EXPECT_EQ(StepText(input, {.stage = 5, .levels = 1}), "stage 6, level 1 of 1");
  input.automatic = true;
  EXPECT_EQ(StepText(input, {.stage = kAutomaticSteps, .levels = 1}), "stage 11, level 1 of 1");
}

TEST_P(AutomaticTest, MissingTissueIsSearchedBeforeTheFirstStage) {
  const Pair pair = MakePair(0);
  Case c(*this, pair);
  c.input.stages = {AffineOptions{}};
  c.input.automatic = false;
  c.input.initial = AffineMap::Identity();
  c.input.find_missing_tissue = true;
  std::vector<int> stages;
  ASSERT_OK(RunInput(c.input, [&](const Progress& progress) {
    if (stages.empty() || stages.back() != progress.stage) stages.push_back(progress.stage);
    return Decision::kContinue;
  }));
  EXPECT_THAT(stages, testing::ElementsAre(kBeforeStages, 0));
}

// A warm-up runs these in the workspace of the automatic registration.
TEST_P(AutomaticTest, ItsPipelinesAreValidOnEveryGrid) {
  for (const Int3 size : {Int3{20, 18, 16}, Int3{20, 18, 1}, Int3{20, 2, 16}, Int3{40, 2, 1}}) {
    const Geometry grid{.size = size, .spacing = {2, 2, 2}};
    const PreparedImage image = Prepare(RandomFloats(grid.voxels(), 1), grid);
    RegistrationInput input{&image, &image, nullptr, nullptr, AutomaticStages(), std::nullopt};
    input.automatic = true;
    const int64_t workspace = RegistrationWorkspaceBytes(device(), input);
    input.automatic = false;
    const std::vector<std::vector<StageOptions>> pipelines = AutomaticPipelines(grid);
    EXPECT_EQ(pipelines.size(), grid.is_2d() ? 1 : 4);
    for (const std::vector<StageOptions>& stages : pipelines) {
      input.stages = stages;
      EXPECT_OK(ValidateRegistration(input)) << SizeString(grid);
      EXPECT_LE(RegistrationWorkspaceBytes(device(), input), workspace) << SizeString(grid);
    }
  }
}

TEST_P(AutomaticTest, NamesWhatIsWrong) {
  Pair pair;
  pair.fixed_grid = pair.moving_grid = Geometry{.size = {7, 3, 3}, .spacing = {2, 2, 2}};
  pair.fixed = pair.moving = RandomFloats(63, 1);
  const absl::Status tiny = RunInput(Case(*this, pair).input).status();
  EXPECT_EQ(tiny.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FieldOf(tiny), "fixed");
  // The control grid after a search would be coarser than this image, which is not to be blamed on stages that nobody
  // named.
  pair.fixed_grid = pair.moving_grid = Geometry{.size = {2, 2, 2}, .spacing = {2, 2, 2}};
  pair.fixed = pair.moving = RandomFloats(8, 1);
  const absl::Status tiniest = RunInput(Case(*this, pair).input).status();
  EXPECT_EQ(tiniest.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FieldOf(tiniest), "fixed");
  EXPECT_THAT(std::string(tiniest.message()), HasSubstr("voxels or more"));
  pair = MakePair(0);
  pair.moving.assign(pair.moving.size(), 5.0f);
  const absl::Status constant = RunInput(Case(*this, pair).input).status();
  EXPECT_EQ(constant.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(FieldOf(constant), "moving");
  pair = MakePair(0);
  Case apart(*this, pair);
  AffineMap away = AffineMap::Identity();
  away.m[0][3] = 1e4;
  apart.input.initial = away;
  EXPECT_EQ(RunInput(apart.input).status().code(), absl::StatusCode::kFailedPrecondition);
}

// At every checkpoint in turn: a cancel cancels, a stop gives a transform in the form of ffd, marked as cut short.
TEST_P(AutomaticTest, EndsAtACheckpoint) {
  const Pair pair = MakePair(5);
  const Case c(*this, pair);
  int checkpoints = 0;
  ASSERT_OK(RunInput(c.input, [&](const Progress&) { return ++checkpoints, Decision::kContinue; }));
  for (const double part : {0.0, 0.1, 0.4, 0.7, 0.95}) {
    const int last = static_cast<int>(part * checkpoints);
    for (const Decision decision : {Decision::kStop, Decision::kCancel}) {
      int seen = 0;
      const absl::StatusOr<RegistrationResult> result =
          RunInput(c.input, [&](const Progress&) { return seen++ < last ? Decision::kContinue : decision; });
      if (decision == Decision::kCancel) {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled) << part;
        continue;
      }
      ASSERT_OK(result) << result.status();
      EXPECT_TRUE(result->transform.has_control_grid());
      EXPECT_EQ(result->stages.size(), 2);
      EXPECT_EQ(result->stop_reason, StopReason::kBudget) << part;
      // A second deformation that was cut short leaves the first, which is whole.
      if (part == 0.95) {
        EXPECT_EQ(result->choice->deformations.size(), 2);
        EXPECT_TRUE(result->choice->deformations[0].is_chosen);
        EXPECT_NE(result->stages.back().stop_reason, StopReason::kBudget);
      }
    }
  }
}

}  // namespace
}  // namespace intrawarp
