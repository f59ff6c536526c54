// SPDX-License-Identifier: Apache-2.0
// FFD registration of a textured body whose deformation is known.
#include "engine/registration/methods/ffd.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "engine/base/field_error.h"
#include "engine/quality/jacobian.h"
#include "engine/registration/registration.h"
#include "engine/transform/control_grid.h"
#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

Pair MakePair(double amplitude, bool is_2d = false, bool inverted = false,
              const AffineMap& affine = AffineMap::Identity()) {
  Pair pair = MakeTexturedPair(Texture(17, is_2d), 2.2, amplitude, is_2d, affine);
  if (inverted) {
    for (float& v : pair.moving) v = 700 - 3.7f * v;
  }
  return pair;
}

FfdOptions Ffd(MetricKind metric) { return {.metric = metric}; }

class FfdTest : public TexturedPairTest {
 protected:
  absl::StatusOr<RegistrationResult> Run(const Pair& pair, std::vector<StageOptions> stages,
                                         CheckpointFn checkpoint = nullptr, const Transform* initial = nullptr) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, std::move(stages), std::nullopt, initial};
    if (initial == nullptr) input.initial = AffineMap::Identity();
    return RunInput(input, std::move(checkpoint));
  }

  std::vector<float> ControlPoints(const Transform& transform) {
    const ConstFieldView grid = transform.control_grid();
    return Download(grid.data, 3 * grid.geometry.voxels());
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FfdTest);

int Iterations(const RegistrationResult& result) {
  int sum = 0;
  for (const LevelReport& level : result.stages.back().levels) sum += level.iterations;
  return sum;
}

TEST_P(FfdTest, RecoversASmoothDeformation) {
  struct Case {
    MetricKind metric;
    bool is_2d;
    double error;  // voxels
  };
  for (const Case& c :
       {Case{MetricKind::kSsd, false, 0.25}, Case{MetricKind::kSsd, true, 0.1}, Case{MetricKind::kNmi, false, 0.6},
        Case{MetricKind::kNmi, true, 0.35}, Case{MetricKind::kLncc, false, 0.2}, Case{MetricKind::kLncc, true, 0.1},
        Case{MetricKind::kNgf, false, 0.3}, Case{MetricKind::kNgf, true, 0.25}}) {
    const bool inverted = c.metric == MetricKind::kNmi || c.metric == MetricKind::kNgf;
    const Pair pair = MakePair(5, c.is_2d, inverted);
    FfdOptions options = Ffd(c.metric);
    // The mutual information of so few samples rises beyond that of the truth unless it is held.
    if (c.metric == MetricKind::kNmi && !c.is_2d) options.bending_weight = 5;
    absl::StatusOr<RegistrationResult> result = Run(pair, {options});
    ASSERT_OK(result) << result.status();
    ASSERT_TRUE(result->transform.has_control_grid());
    EXPECT_GT(MeanError(pair, Transform(AffineMap::Identity())), 2);
    EXPECT_LT(MeanError(pair, result->transform), c.error) << "metric " << int(c.metric) << " 2-D " << c.is_2d;
    EXPECT_FALSE(result->worse_than_start);
    EXPECT_GT(MeasureJacobian(ctx(), result->transform, pair.fixed_grid)->min, 0);
    EXPECT_EQ(result->transform.domain(), pair.fixed_grid);
    const Geometry grid = result->transform.control_grid().geometry;
    EXPECT_EQ(grid.size, (Int3{12, 12, c.is_2d ? 1 : 11}));
    for (int a = 0; a < (c.is_2d ? 2 : 3); ++a) EXPECT_NEAR(grid.spacing[a], 5 * pair.fixed_grid.spacing[a], 1e-9);
  }
}

TEST_P(FfdTest, ReportsLevelsFromTheCoarsest) {
  const Pair pair = MakePair(4);
  std::vector<Progress> progress;
  absl::StatusOr<RegistrationResult> result = Run(pair, {Ffd(MetricKind::kSsd)}, [&](const Progress& p) {
    progress.push_back(p);
    return Decision::kContinue;
  });
  ASSERT_OK(result) << result.status();
  ASSERT_EQ(result->stages.size(), 1u);
  const StageReport& report = result->stages[0];
  ASSERT_TRUE(std::holds_alternative<FfdOptions>(report.options));
  EXPECT_EQ(MetricOf(report.options), MetricKind::kSsd);
  EXPECT_EQ(std::get<FfdOptions>(report.options).levels, 3);
  ASSERT_EQ(report.levels.size(), 3u);
  EXPECT_EQ(report.levels[1].size, (Int3{22, 20, 18}));
  EXPECT_EQ(report.levels[2].size, pair.fixed_grid.size);
  for (const LevelReport& level : report.levels) {
    EXPECT_GT(level.iterations, 0);
    EXPECT_LT(level.value_after, level.value_before);
  }
  EXPECT_LT(report.levels[2].value_before, report.levels[1].value_before);
  ASSERT_FALSE(progress.empty());
  for (size_t i = 1; i < progress.size(); ++i) {
    EXPECT_EQ(progress[i].levels, 3);
    EXPECT_GE(progress[i].level, progress[i - 1].level);
    const bool same = progress[i].level == progress[i - 1].level;
    EXPECT_GE(progress[i].iteration, same ? progress[i - 1].iteration : 0);
  }
}

TEST_P(FfdTest, ObeysItsOptions) {
  const Pair pair = MakePair(3);
  FfdOptions options = Ffd(MetricKind::kSsd);
  options.levels = 1;
  options.iterations = 9;
  options.spacing_vox = 7.5;
  options.optimizer = DescentMethod::kConjugateGradient;
  absl::StatusOr<RegistrationResult> result = Run(pair, {options});
  ASSERT_OK(result) << result.status();
  ASSERT_EQ(result->stages[0].levels.size(), 1u);
  EXPECT_EQ(result->stages[0].levels[0].iterations, 9);
  EXPECT_EQ(result->stop_reason, StopReason::kIterationLimit);
  EXPECT_NEAR(result->transform.control_grid().geometry.spacing.y, 7.5 * 2.1, 1e-9);
  const double loose = MeanError(pair, result->transform);
  EXPECT_LT(loose, MeanError(pair, Transform(AffineMap::Identity())));
  // A heavy penalty leaves what it does not see: affine maps.
  options.bending_weight = 1e5;
  options.iterations = 100;
  result = Run(pair, {options});
  ASSERT_OK(result) << result.status();
  EXPECT_GT(MeanError(pair, result->transform), 0.8 * loose);
}

TEST_P(FfdTest, AffineThenFfd) {
  AffineMap affine = AffineMap::Identity();
  affine.m[0][0] = 1.08;
  affine.m[0][1] = 0.1;
  affine.m[1][0] = -0.07;
  affine.m[0][3] = 5;
  affine.m[2][3] = -4;
  const Pair pair = MakePair(4, false, false, affine);
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
  const RegistrationInput input{
      &fixed, &moving, nullptr, nullptr, {AffineOptions{MetricKind::kSsd}, Ffd(MetricKind::kSsd)}, std::nullopt};
  absl::StatusOr<RegistrationResult> result = RunInput(input);
  ASSERT_OK(result) << result.status();
  ASSERT_EQ(result->stages.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<AffineOptions>(result->stages[0].options));
  EXPECT_LT(MeanError(pair, result->transform), 0.2);
  EXPECT_FALSE(result->worse_than_start);
  EXPECT_GT(std::abs(result->transform.affine().m[0][0] - 1), 0.03);
}

TEST_P(FfdTest, StartsWhereTheMassIs) {
  Pair pair = MakePair(3);
  // A body in a flat surround, somewhere else.
  const auto vignette = [](const Geometry& g, std::vector<float>& values) {
    const AffineMap to_physical = IndexToPhysical(g);
    for (int64_t i = 0; i < g.voxels(); ++i) {
      const Vec3d p =
          to_physical({double(i % g.size.x), double(i / g.size.x % g.size.y), double(i / g.size.x / g.size.y)});
      values[i] *= static_cast<float>(1 / (1 + std::exp((std::sqrt(Dot(p, p)) - 28) / 1.5)));
    }
  };
  vignette(pair.fixed_grid, pair.fixed);
  vignette(pair.moving_grid, pair.moving);
  pair.moving_grid.origin = pair.moving_grid.origin + Vec3d{30, -25, 20};
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
  const RegistrationInput input{&fixed, &moving, nullptr, nullptr, {Ffd(MetricKind::kSsd)}, std::nullopt};
  absl::StatusOr<RegistrationResult> result = RunInput(input);
  ASSERT_OK(result) << result.status();
  EXPECT_NEAR(result->transform.affine().m[0][3], 30, 4);
  EXPECT_NEAR(result->transform.affine().m[1][3], -25, 4);
  EXPECT_FALSE(result->worse_than_start);
}

TEST_P(FfdTest, FfdGoesOnFromFfd) {
  const Pair pair = MakePair(5);
  FfdOptions coarse = Ffd(MetricKind::kSsd), fine = coarse;
  coarse.spacing_vox = 10;
  fine.levels = 1;
  fine.iterations = 60;
  absl::StatusOr<RegistrationResult> result = Run(pair, {coarse, fine});
  ASSERT_OK(result) << result.status();
  const LevelReport& first = result->stages[0].levels.back();
  const LevelReport& second = result->stages[1].levels.front();
  EXPECT_LT(second.value_before, 0.1 * result->stages[0].levels[0].value_before);
  EXPECT_LT(second.value_after, first.value_after);
  EXPECT_LT(MeanError(pair, result->transform), 0.25);
}

TEST_P(FfdTest, WarmStart) {
  const Pair pair = MakePair(5);
  FfdOptions options = Ffd(MetricKind::kSsd);
  const absl::StatusOr<RegistrationResult> cold = Run(pair, {options});
  ASSERT_OK(cold) << cold.status();
  const double cold_error = MeanError(pair, cold->transform);
  for (std::optional<double> spacing : {std::optional<double>(), std::optional(4.0), std::optional(1.0)}) {
    options.spacing_vox = spacing;
    const absl::StatusOr<RegistrationResult> warm = Run(pair, {options}, nullptr, &cold->transform);
    ASSERT_OK(warm) << warm.status();
    EXPECT_LT(MeanError(pair, warm->transform), cold_error + 0.05) << "spacing " << spacing.value_or(5);
    EXPECT_FALSE(warm->worse_than_start);
    EXPECT_LT(warm->stages[0].levels[0].value_before, 0.5 * cold->stages[0].levels[0].value_before);
  }
  // The next frame: a little farther.
  const Pair next = MakePair(5.5);
  options = Ffd(MetricKind::kSsd);
  const absl::StatusOr<RegistrationResult> again = Run(next, {options});
  const absl::StatusOr<RegistrationResult> followed = Run(next, {options}, nullptr, &cold->transform);
  ASSERT_OK(followed) << followed.status();
  EXPECT_LT(followed->stages[0].levels[0].value_before, 0.3 * again->stages[0].levels[0].value_before);
  EXPECT_LE(Iterations(*followed), Iterations(*again));
  EXPECT_LT(MeanError(next, followed->transform), 0.25);
  // Its affine part starts an affine stage.
  const absl::StatusOr<RegistrationResult> affine =
      Run(pair, {AffineOptions{MetricKind::kSsd}}, nullptr, &cold->transform);
  ASSERT_OK(affine) << affine.status();
  EXPECT_TRUE(affine->transform.is_affine());
}

TEST_P(FfdTest, MasksSelectWhatCounts) {
  // Garbage in a corner of the fixed image misleads it, unless the mask leaves it out.
  Pair pair = MakePair(4);
  const Int3 n = pair.fixed_grid.size;
  std::vector<float> mask(pair.fixed.size(), 1);
  const std::vector<float> noise = RandomFloats(mask.size(), 3, 0, 400);
  for (int z = 0; z < n.z; ++z)
    for (int y = 0; y < n.y; ++y)
      for (int x = 0; x < 15; ++x) {
        const size_t i = (static_cast<size_t>(z) * n.y + y) * n.x + x;
        pair.fixed[i] = noise[i];
        mask[i] = 0;
      }
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
  const PreparedImage fixed_mask = Prepare(mask, pair.fixed_grid);
  const std::vector<float> everything(pair.moving.size(), 1);
  const PreparedImage moving_mask = Prepare(everything, pair.moving_grid);
  RegistrationInput input{&fixed, &moving, &fixed_mask, &moving_mask, {Ffd(MetricKind::kSsd)}, AffineMap::Identity()};
  absl::StatusOr<RegistrationResult> result = RunInput(input);
  ASSERT_OK(result) << result.status();
  const double masked = MeanError(pair, result->transform, 16);
  EXPECT_LT(masked, 0.6);
  input.fixed_mask = input.moving_mask = nullptr;
  result = RunInput(input);
  ASSERT_OK(result) << result.status();
  EXPECT_GT(MeanError(pair, result->transform, 16), 1.3 * masked);
  const PreparedImage empty = Prepare(std::vector<float>(mask.size(), 0), pair.fixed_grid);
  input.fixed_mask = &empty;
  EXPECT_EQ(RunInput(input).status(),
            FieldError(absl::StatusCode::kFailedPrecondition, "fixed_mask", "selects no voxel"));
}

TEST_P(FfdTest, StopsAtACheckpointWithTheBestSoFar) {
  const Pair pair = MakePair(5);
  int all = 0;
  ASSERT_OK(Run(pair, {Ffd(MetricKind::kSsd)}, [&](const Progress&) {
    ++all;
    return Decision::kContinue;
  }));
  double last_error = MeanError(pair, Transform(AffineMap::Identity())) + 1e-6;
  for (int calls : {0, 1, 3, all / 3, 2 * all / 3, all - 1}) {
    int called = 0;
    absl::StatusOr<RegistrationResult> result = Run(pair, {Ffd(MetricKind::kSsd)}, [&](const Progress&) {
      return called++ < calls ? Decision::kContinue : Decision::kStop;
    });
    ASSERT_OK(result) << result.status();
    EXPECT_EQ(result->stop_reason, StopReason::kBudget);
    EXPECT_EQ(called, calls + 1);
    EXPECT_TRUE(result->transform.has_control_grid());
    EXPECT_FALSE(result->worse_than_start);
    const double error = MeanError(pair, result->transform);
    EXPECT_LT(error, last_error * 1.1) << calls;
    last_error = error;
  }
}

// Wherever time runs out, an ffd stage at the end gives a control grid: with u = 0, or the one it was to start from.
TEST_P(FfdTest, StopsBeforeItBeganWithItsStart) {
  const Pair pair = MakePair(5);
  const std::vector<StageOptions> stages = {RigidOptions{MetricKind::kSsd}, AffineOptions{MetricKind::kSsd},
                                            Ffd(MetricKind::kSsd)};
  for (int stage : {0, 1, 2}) {
    absl::StatusOr<RegistrationResult> result =
        Run(pair, stages, [&](const Progress& p) { return p.stage >= stage ? Decision::kStop : Decision::kContinue; });
    ASSERT_OK(result) << result.status();
    EXPECT_EQ(result->stop_reason, StopReason::kBudget);
    EXPECT_EQ(result->stages.size(), stage == 0 ? 2u : 3u);
    EXPECT_TRUE(std::holds_alternative<FfdOptions>(result->stages.back().options));
    ASSERT_TRUE(result->transform.has_control_grid());
    EXPECT_EQ(MeanError(pair, result->transform), MeanError(pair, Transform(result->transform.affine())));
    EXPECT_FALSE(result->worse_than_start);
  }
}

TEST_P(FfdTest, Cancels) {
  const Pair pair = MakePair(5);
  for (int calls : {0, 5}) {
    int called = 0;
    EXPECT_EQ(Run(pair, {Ffd(MetricKind::kSsd)},
                  [&](const Progress&) { return called++ < calls ? Decision::kContinue : Decision::kCancel; })
                  .status()
                  .code(),
              absl::StatusCode::kCancelled);
    EXPECT_EQ(called, calls + 1);
  }
}

TEST_P(FfdTest, DoesNotFold) {
  // Noise that only a fold could match, and nothing else against it.
  const Geometry grid{.size = {33, 30, 28}};
  const PreparedImage fixed = Prepare(RandomFloats(grid.voxels(), 1), grid);
  const PreparedImage moving = Prepare(RandomFloats(grid.voxels(), 2), grid);
  for (double jacobian_weight : {0.0, 0.1}) {
    FfdOptions options = Ffd(MetricKind::kSsd);
    options.spacing_vox = 4;
    options.bending_weight = 0;
    options.jacobian_weight = jacobian_weight;
    absl::StatusOr<RegistrationResult> result =
        RunInput({&fixed, &moving, nullptr, nullptr, {options}, AffineMap::Identity()});
    ASSERT_OK(result) << result.status();
    EXPECT_GT(MeasureJacobian(ctx(), result->transform, grid)->min, 0) << jacobian_weight;
    EXPECT_FALSE(result->worse_than_start);
  }
}

// A start that many rounds of smoothing cannot save.
TEST_P(FfdTest, UnfoldingEndsAtACheckpoint) {
  const Pair pair = MakePair(0);
  FfdOptions options = Ffd(MetricKind::kSsd);
  options.levels = 1;
  const Geometry grid = *MakeControlGrid(pair.fixed_grid, 5 * pair.fixed_grid.spacing);
  const std::vector<float> noise = RandomFloats(3 * grid.voxels(), 11, -900, 900);
  Buffer memory = *device().Allocate(noise.size() * sizeof(float), ctx().stream());
  ASSERT_OK(device().Copy(memory.as<float>(), noise.data(), noise.size() * sizeof(float), ctx().stream()));
  ASSERT_OK(device().Synchronize(ctx().stream()));
  const Transform folded(AffineMap::Identity(), std::move(memory), grid, pair.fixed_grid);
  int calls = 0;
  const absl::StatusOr<RegistrationResult> late = Run(
      pair, {options}, [&](const Progress&) { return ++calls, Decision::kStop; }, &folded);
  ASSERT_OK(late) << late.status();
  EXPECT_EQ(late->stop_reason, StopReason::kBudget);
  EXPECT_EQ(calls, 2);
  calls = 0;
  const auto cancel = [&](const Progress&) { return ++calls == 1 ? Decision::kStop : Decision::kCancel; };
  EXPECT_EQ(Run(pair, {options}, cancel, &folded).status().code(), absl::StatusCode::kCancelled);
}

TEST_P(FfdTest, AnImageIsNotWorseThanItself) {
  const Pair pair = MakePair(0);
  const PreparedImage image = Prepare(pair.fixed, pair.fixed_grid);
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc, MetricKind::kNgf}) {
    absl::StatusOr<RegistrationResult> result =
        RunInput({&image, &image, nullptr, nullptr, {Ffd(metric)}, std::nullopt});
    ASSERT_OK(result) << result.status();
    EXPECT_FALSE(result->worse_than_start);
    // Mutual information and gradient fields prefer a warp that sharpens what they see.
    const bool exact = metric == MetricKind::kSsd || metric == MetricKind::kLncc;
    EXPECT_LT(MeanError(pair, result->transform), exact ? 0.01 : 0.5) << int(metric);
    if (exact) {
      EXPECT_EQ(result->stop_reason, StopReason::kConverged) << int(metric);
    }
  }
}

TEST_P(FfdTest, RefusesWhatItCannotRegister) {
  const Geometry grid{.size = {40, 38, 36}};
  const PreparedImage image = Prepare(RandomFloats(grid.voxels(), 1), grid);
  const PreparedImage constant = Prepare(std::vector<float>(grid.voxels(), 5), grid);
  Geometry far_grid = grid;
  far_grid.origin = {500, 0, 0};
  const PreparedImage far = Prepare(RandomFloats(grid.voxels(), 2), far_grid);
  const auto error = [&](const PreparedImage& fixed, const PreparedImage& moving, std::vector<StageOptions> stages) {
    return RunInput({&fixed, &moving, nullptr, nullptr, std::move(stages), AffineMap::Identity()}).status();
  };
  const auto with = [&](const auto& change) {
    FfdOptions options = Ffd(MetricKind::kSsd);
    change(options);
    return error(image, image, {AffineOptions{}, options});
  };
  using testing::StartsWith;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto expect_fault = [](const absl::Status& status, absl::StatusCode code, const std::string& field) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(FieldOf(status), field) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(field + ": "));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double spacing : {nan, -1.0, 0.0, 0.5, 1e300, HUGE_VAL, 200.0}) {
    expect_fault(with([&](FfdOptions& o) { o.spacing_vox = spacing; }), kInvalid, "stages[1].spacing_vox");
  }
  for (double weight : {nan, -1.0, HUGE_VAL}) {
    expect_fault(with([&](FfdOptions& o) { o.bending_weight = weight; }), kInvalid, "stages[1].bending_weight");
    expect_fault(with([&](FfdOptions& o) { o.elasticity_weight = weight; }), kInvalid, "stages[1].elasticity_weight");
    expect_fault(with([&](FfdOptions& o) { o.jacobian_weight = weight; }), kInvalid, "stages[1].jacobian_weight");
  }
  for (int levels : {-1, 0, 17}) {
    expect_fault(with([&](FfdOptions& o) { o.levels = levels; }), kInvalid, "stages[1].levels");
  }
  for (int iterations : {-1, 0, 10001}) {
    expect_fault(with([&](FfdOptions& o) { o.iterations = iterations; }), kInvalid, "stages[1].iterations");
  }
  expect_fault(error(image, image, {Ffd(MetricKind::kSsd), AffineOptions{}}), kInvalid, "stages[1].method");
  EXPECT_EQ(error(constant, image, {Ffd(MetricKind::kNmi)}).message(), "fixed: the image is constant");
  EXPECT_EQ(error(image, constant, {Ffd(MetricKind::kLncc)}).message(), "moving: the image is constant");
  const PreparedImage few = Prepare(RandomFloats(63, 4), Geometry{.size = {9, 7, 1}});
  EXPECT_EQ(error(few, few, {Ffd(MetricKind::kNmi)}).message(),
            "fixed: nmi needs 64 voxels or more, as many as its bins; there are 63");
  std::vector<float> selected(grid.voxels(), 0);
  std::fill_n(selected.begin(), 63, 1.0f);
  const PreparedImage small = Prepare(selected, grid);
  EXPECT_EQ(RunInput({&image, &image, nullptr, &small, {Ffd(MetricKind::kNmi)}, AffineMap::Identity()}).status(),
            FieldError(absl::StatusCode::kFailedPrecondition, "moving_mask",
                       "nmi needs 64 voxels or more, as many as its bins; there are 63"));
  EXPECT_EQ(error(image, far, {Ffd(MetricKind::kSsd)}),
            absl::FailedPreconditionError("the images (masks) overlap by less than 10 %"));
  std::vector<float> dense(3 * grid.voxels(), 0);
  Buffer memory = *device().Allocate(dense.size() * sizeof(float), ctx().stream());
  ASSERT_OK(device().Copy(memory.as<float>(), dense.data(), dense.size() * sizeof(float), ctx().stream()));
  const Transform displacement(std::move(memory), grid);
  RegistrationInput input{&image, &image, nullptr, nullptr, {Ffd(MetricKind::kSsd)}, std::nullopt, &displacement};
  EXPECT_THAT(RunInput(input).status().ToString(), StartsWith("UNIMPLEMENTED: initial_transform: "));
  input.initial = AffineMap::Identity();
  EXPECT_EQ(RunInput(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(FfdTest, SmallAndThinImages) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{2, 1, 1}, Int3{3, 3, 1}, Int3{5, 4, 3}, Int3{8, 8, 8}, Int3{30, 28, 3},
                    Int3{9, 1, 1}, Int3{64, 60, 8}, Int3{70, 5, 1}}) {
    const Geometry grid = ObliqueGeometry(size);
    std::vector<float> values(grid.voxels());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7 + 2 * (i % 3));
    std::vector<float> other = values;
    for (size_t i = 0; i < values.size(); ++i) other[i] = 9 - values[(i + 1) % values.size()];
    const PreparedImage fixed = Prepare(values, grid), moving = Prepare(other, grid);
    for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc, MetricKind::kNgf}) {
      FfdOptions options = Ffd(metric);
      options.iterations = 20;
      absl::StatusOr<RegistrationResult> result =
          RunInput({&fixed, &moving, nullptr, nullptr, {options}, AffineMap::Identity()});
      if (result.ok()) {
        for (float v : ControlPoints(result->transform)) ASSERT_TRUE(std::isfinite(v)) << SizeString(grid);
        EXPECT_FALSE(result->worse_than_start) << SizeString(grid) << " metric " << int(metric);
      } else {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition)
            << SizeString(grid) << " metric " << int(metric) << " " << result.status();
      }
      const bool is_large = size == Int3{64, 60, 8} || size == Int3{8, 8, 8};
      EXPECT_TRUE(result.ok() || !is_large) << result.status();
    }
  }
}

// A frame moves a little from the one before.
TEST_P(FfdTest, TakesTwoLevelsAndFewIterationsFromAnotherRegistration) {
  const Pair before = MakePair(5), pair = MakePair(6);
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
    const absl::StatusOr<RegistrationResult> start = Run(before, {Ffd(metric)}), anew = Run(pair, {Ffd(metric)});
    ASSERT_OK(start) << start.status();
    ASSERT_OK(anew) << anew.status();
    ASSERT_GT(anew->stages[0].levels.size(), 2);
    const absl::StatusOr<RegistrationResult> next = Run(pair, {Ffd(metric)}, nullptr, &start->transform);
    ASSERT_OK(next) << next.status();
    EXPECT_EQ(next->stages[0].levels.size(), 2);
    EXPECT_LT(Iterations(*next), Iterations(*anew) / 2);
    EXPECT_LT(MeanError(pair, next->transform), 1.2 * MeanError(pair, anew->transform));
    FfdOptions all_levels = Ffd(metric);
    all_levels.levels = 3;
    const absl::StatusOr<RegistrationResult> asked = Run(pair, {all_levels}, nullptr, &start->transform);
    ASSERT_OK(asked) << asked.status();
    EXPECT_EQ(asked->stages[0].levels.size(), 3);
  }
}

TEST_P(FfdTest, BitIdentical) {
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc, MetricKind::kNgf}) {
    const Pair pair = MakePair(5);
    FfdOptions options = Ffd(metric);
    options.iterations = 15;
    const absl::StatusOr<RegistrationResult> first = Run(pair, {options}), second = Run(pair, {options});
    ASSERT_OK(first) << first.status();
    EXPECT_EQ(ControlPoints(first->transform), ControlPoints(second->transform));
  }
}

// Registrations on one device at the same time, whose kernels need different amounts of shared memory.
TEST_P(FfdTest, RegistrationsBesideEachOtherAreAsAlone) {
  const Pair pair = MakePair(5);
  const auto run = [&](double spacing_vox) {
    OwnedContext owned = *OwnedContext::Create(device(), kWorkspaceBytes);
    const ExecContext own = owned.context();
    const PreparedImage fixed =
        *PreparedImage::Prepare(own, pair.fixed.data(), PixelType::kFloat32, 1, 0, pair.fixed_grid);
    const PreparedImage moving =
        *PreparedImage::Prepare(own, pair.moving.data(), PixelType::kFloat32, 1, 0, pair.moving_grid);
    FfdOptions options = Ffd(MetricKind::kNmi);
    options.iterations = 15;
    options.spacing_vox = spacing_vox;
    const absl::StatusOr<RegistrationResult> result =
        Register(own, {&fixed, &moving, nullptr, nullptr, {options}, AffineMap::Identity()});
    if (!result.ok()) return std::vector<float>();
    const ConstFieldView grid = result->transform.control_grid();
    std::vector<float> points(3 * grid.geometry.voxels());
    const bool copied = device().Copy(points.data(), grid.data, points.size() * sizeof(float), own.stream()).ok() &&
                        device().Synchronize(own.stream()).ok();
    return copied ? points : std::vector<float>();
  };
  const std::vector<double> spacings = {2, 3, 5, 7};
  std::vector<std::vector<float>> alone, beside(spacings.size());
  for (const double spacing : spacings) alone.push_back(run(spacing));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < spacings.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int times = 0; times < 3; ++times) beside[i] = run(spacings[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < spacings.size(); ++i) {
    ASSERT_FALSE(alone[i].empty());
    EXPECT_EQ(beside[i], alone[i]) << spacings[i];
  }
}

TEST_P(FfdTest, AgreesWithTheCpu) {
  if (GetParam() == "cpu") GTEST_SKIP() << "compares another device with the CPU";
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNmi, MetricKind::kLncc, MetricKind::kNgf}) {
    const Pair pair = MakePair(5);
    const absl::StatusOr<RegistrationResult> here = Run(pair, {Ffd(metric)});
    ASSERT_OK(here) << here.status();
    OwnedContext cpu = *OwnedContext::Create(TestDevice("cpu"), kWorkspaceBytes);
    const ExecContext cpu_ctx = cpu.context();
    const PreparedImage fixed =
        *PreparedImage::Prepare(cpu_ctx, pair.fixed.data(), PixelType::kFloat32, 1, 0, pair.fixed_grid);
    const PreparedImage moving =
        *PreparedImage::Prepare(cpu_ctx, pair.moving.data(), PixelType::kFloat32, 1, 0, pair.moving_grid);
    const absl::StatusOr<RegistrationResult> there =
        Register(cpu_ctx, {&fixed, &moving, nullptr, nullptr, {Ffd(metric)}, AffineMap::Identity()});
    ASSERT_OK(there) << there.status();
    // Paths part, minima do not.
    const LevelReport& a = here->stages[0].levels.back();
    const LevelReport& b = there->stages[0].levels.back();
    EXPECT_NEAR(a.value_after, b.value_after, 0.02 * a.value_before + 1e-3) << "metric " << int(metric);
    const ConstFieldView grid = there->transform.control_grid();
    const std::vector<float> found = ControlPoints(here->transform);
    ASSERT_EQ(found.size(), 3 * grid.geometry.voxels());
    double difference = 0, size = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      difference += std::abs(found[i] - grid.data[i]);
      size += std::abs(grid.data[i]);
    }
    EXPECT_GT(size / found.size(), 1) << "metric " << int(metric);
    EXPECT_LT(difference, 0.1 * size) << "metric " << int(metric);
  }
}

// Half a voxel off the final transform, at most.
TEST_P(FfdTest, GivesItsTransformBeforeTheFinestLevel) {
  for (const bool is_2d : {false, true}) ExpectACoarseTransform(MakePair(5, is_2d), Ffd(MetricKind::kSsd), 0.8, 0.5);
}

TEST_P(FfdTest, GivesNoCoarseTransformWithoutACoarseLevel) {
  FfdOptions options = Ffd(MetricKind::kSsd);
  options.iterations = 5;
  ExpectNoCoarseTransform(MakePair(3), options);
  ExpectNoneOfAStoppedStage(MakePair(3), options);
}

}  // namespace
}  // namespace intrawarp
