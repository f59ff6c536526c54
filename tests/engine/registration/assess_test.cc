// SPDX-License-Identifier: Apache-2.0
// The verdict that comes with a registration: on a pair whose deformation is known, on images that have nothing in
// common, and where a hook or a caller ends it.
#include "engine/registration/assess.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class AssessTest : public TexturedPairTest {
 protected:
  // Prepared images, and the input over them.
  struct Case {
    Case(AssessTest& test, const Pair& pair, std::vector<StageOptions> stages)
        : fixed(test.Prepare(pair.fixed, pair.fixed_grid)), moving(test.Prepare(pair.moving, pair.moving_grid)) {
      input.fixed = &fixed;
      input.moving = &moving;
      input.stages = std::move(stages);
    }
    Case(const Case&) = delete;
    const PreparedImage fixed, moving;
    RegistrationInput input;
  };

  static Pair Known(double amplitude, bool is_2d = false) {
    AffineMap affine = AffineMap::Identity();
    affine.m[0][3] = 4;
    affine.m[1][3] = -3;
    return MakeTexturedPair(Texture(7, is_2d), 2.2, amplitude, is_2d, affine);
  }
  // The moving image shows another body.
  static Pair Unrelated() {
    Pair pair = Known(0);
    const Texture other(1234, false);
    pair.moving.clear();
    ForEachPoint(pair.moving_grid, [&](Vec3d p, Int3) { pair.moving.push_back(other(p)); });
    return pair;
  }

  // In an arena of exactly the size that is asked for.
  absl::StatusOr<AssessedRegistration> Run(const RegistrationInput& input, const AssessOptions& options = {},
                                           const RegistrationHooks& hooks = {}, CheckpointFn checkpoint = nullptr) {
    arenas_.push_back(*OwnedContext::Create(device(), AssessedWorkspaceBytes(device(), input)));
    return RegisterAndAssess(arenas_.back().context(std::move(checkpoint)), input, options, hooks, &latency_);
  }

  // Hooks that write down their names; the one named `fails` answers with an error.
  RegistrationHooks Recording(const std::string& fails = "") {
    const auto hook = [this, fails](const std::string& name) {
      called_.push_back(name);
      return name == fails ? absl::AbortedError(name) : absl::OkStatus();
    };
    return {.on_start = [hook] { return hook("start"); },
            .on_optimised = [hook](const RegistrationResult&) { return hook("optimised"); },
            .on_transform = [hook](const Transform&) { return hook("transform"); }};
  }
  bool HasCalled(const std::string& name) const { return std::count(called_.begin(), called_.end(), name) > 0; }

  std::vector<std::string> called_;
  LatencyBreakdown latency_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(AssessTest);

TEST_P(AssessTest, AKnownDeformationIsOkAndItsErrorExpected) {
  for (const bool is_2d : {false, true}) {
    SCOPED_TRACE(is_2d);
    const Pair pair = Known(4, is_2d);
    const Case c(*this, pair, {AffineOptions{}, FfdOptions{.metric = MetricKind::kSsd}});
    const absl::StatusOr<AssessedRegistration> answer = Run(c.input);
    ASSERT_OK(answer) << answer.status();
    const QualityReport& quality = answer->quality;
    EXPECT_TRUE(quality.is_deformed);
    EXPECT_FALSE(quality.rejected_gain.has_value());
    EXPECT_GT(quality.jacobian.min, 0);
    EXPECT_GT(*quality.after.ncc, *quality.before.ncc);
    ASSERT_TRUE(quality.error.has_value());
    EXPECT_LT(quality.error->expected_mm, 3);
    EXPECT_LT(MeanError(pair, answer->result.transform), 1);
    EXPECT_FALSE(NeedsReview(quality.review_reasons));
  }
}

TEST_P(AssessTest, ImagesWithNothingInCommonAreForReview) {
  const Pair pair = Unrelated();
  for (const std::vector<StageOptions>& stages :
       {std::vector<StageOptions>{AffineOptions{}}, {AffineOptions{}, FfdOptions{}}}) {
    SCOPED_TRACE(stages.size());
    const Case c(*this, pair, stages);
    const absl::StatusOr<AssessedRegistration> answer = Run(c.input);
    ASSERT_OK(answer) << answer.status();
    EXPECT_TRUE(NeedsReview(answer->quality.review_reasons));
  }
}

TEST_P(AssessTest, HooksRunOnceAndInTheirOrder) {
  const Case c(*this, Known(0), {AffineOptions{}});
  for (const Scrutiny scrutiny : {Scrutiny::kFull, Scrutiny::kFrame}) {
    called_.clear();
    ASSERT_OK(Run(c.input, {.scrutiny = scrutiny}, Recording()).status());
    EXPECT_THAT(called_, ElementsAre("start", "optimised", "transform"));
  }
  EXPECT_GT(latency_.phase(Phase::kOptimise).count(), 0);
  EXPECT_GT(latency_.phase(Phase::kAssess).count(), 0);
}

TEST_P(AssessTest, TheErrorOfAHookIsTheAnswerAndTheLastThingThatHappens) {
  const Case c(*this, Known(0), {AffineOptions{}});
  const std::vector<std::string> names = {"start", "optimised", "transform"};
  for (size_t i = 0; i < names.size(); ++i) {
    called_.clear();
    EXPECT_EQ(Run(c.input, {}, Recording(names[i])).status(), absl::AbortedError(names[i]));
    EXPECT_EQ(called_, std::vector<std::string>(names.begin(), names.begin() + i + 1));
  }
}

// A frame's transform goes out before anything is judged; another one only after its deformation was.
TEST_P(AssessTest, OnlyAFrameIsSentBeforeItIsJudged) {
  const Case c(*this, Known(0), {AffineOptions{}});
  for (const Scrutiny scrutiny : {Scrutiny::kFull, Scrutiny::kFrame}) {
    called_.clear();
    const absl::Status status = Run(c.input, {.scrutiny = scrutiny}, Recording(), [this](const Progress&) {
                                  return HasCalled("optimised") ? Decision::kCancel : Decision::kContinue;
                                }).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_EQ(HasCalled("transform"), scrutiny == Scrutiny::kFrame);
  }
}

TEST_P(AssessTest, ACancelledRegistrationTellsNobodyOfAResult) {
  const Case c(*this, Known(0), {AffineOptions{}});
  const absl::Status status = Run(c.input, {}, Recording(), [](const Progress&) { return Decision::kCancel; }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_THAT(called_, ElementsAre("start"));
}

TEST_P(AssessTest, ALowLimitOfTheErrorIsAReasonAndPointsHaveTheirs) {
  const Case c(*this, Known(0), {AffineOptions{}});
  const AssessOptions options{.error_limit_mm = 1e-6, .error = {.map = true, .points = {{0, 0, 0}, {1000, 0, 0}}}};
  const absl::StatusOr<AssessedRegistration> answer = Run(c.input, options);
  ASSERT_OK(answer) << answer.status();
  const auto is_above = [](const ReviewReason& reason) { return reason.cause == ReviewCause::kErrorAboveLimit; };
  const std::vector<ReviewReason>& reasons = answer->quality.review_reasons;
  EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), is_above));
  EXPECT_TRUE(answer->quality.error_map.has_value());
  EXPECT_EQ(answer->quality.error_at.size(), 2u);
}

TEST(HasDivergedTest, NotFiniteOrWithoutInverse) {
  RegistrationResult result;
  EXPECT_FALSE(HasDiverged(result));
  AffineMap map = AffineMap::Identity();
  map.m[0][3] = std::numeric_limits<double>::quiet_NaN();
  result.transform = Transform(map);
  EXPECT_TRUE(HasDiverged(result));
  map = AffineMap::Identity();
  map.m[2][2] = 0;
  result.transform = Transform(map);
  EXPECT_TRUE(HasDiverged(result));
}

}  // namespace
}  // namespace intrawarp
