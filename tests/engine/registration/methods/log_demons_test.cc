// SPDX-License-Identifier: Apache-2.0
// Log-demons registration of a textured body whose deformation is known.
#include "engine/registration/methods/log_demons.h"

#include <cmath>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/field_error.h"
#include "engine/quality/jacobian.h"
#include "engine/transform/vector_field.h"
#include "engine/transform/velocity.h"
#include "engine/transform/velocity_unfolding.h"
#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

Pair MakePair(double amplitude, bool is_2d = false, const AffineMap& affine = AffineMap::Identity()) {
  return MakeTexturedPair(Texture(23, is_2d), 2.4, amplitude, is_2d, affine);
}

struct Masks {
  std::vector<float> fixed, moving;
};

class LogDemonsTest : public TexturedPairTest {
 protected:
  absl::StatusOr<LogDemonsStageResult> Run(const Pair& pair, const LogDemonsOptions& options,
                                           CheckpointFn checkpoint = nullptr, const float* initial = nullptr,
                                           const Masks& masks = {}) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    std::optional<PreparedImage> fixed_mask, moving_mask;
    if (!masks.fixed.empty()) fixed_mask = Prepare(masks.fixed, pair.fixed_grid);
    if (!masks.moving.empty()) moving_mask = Prepare(masks.moving, pair.moving_grid);
    RegistrationImages images{&fixed, &moving, {}, {}};
    images.fixed_masks = *BuildMaskLevels(ctx(), "fixed_mask", fixed, {.mask = fixed_mask ? &*fixed_mask : nullptr});
    images.moving_masks =
        *BuildMaskLevels(ctx(), "moving_mask", moving, {.mask = moving_mask ? &*moving_mask : nullptr});
    // In an arena of exactly the size that is asked for.
    arenas_.push_back(*OwnedContext::Create(device(), LogDemonsWorkspaceBytes(fixed, moving)));
    return RunLogDemonsStage(arenas_.back().context(std::move(checkpoint)), images, options, 0, pair.affine,
                             {initial, pair.fixed_grid.size});
  }

  absl::StatusOr<RegistrationResult> RunPipeline(const Pair& pair, std::vector<StageOptions> stages,
                                                 const Transform* initial = nullptr,
                                                 CheckpointFn checkpoint = nullptr) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, std::move(stages), {}, initial};
    return RunInput(input, std::move(checkpoint));
  }

  // exp(factor v) - id in mm.
  std::vector<float> Field(const float* velocity, const Geometry& g, double factor) {
    float* u = Poisoned<float>(3 * g.voxels());
    EXPECT_OK(VelocityDisplacement(ctx(), velocity, factor, {u, g}));
    return Download(u, 3 * g.voxels());
  }

  using TexturedPairTest::MeanError;
  // The error of A(exp(v)(p)).
  double MeanError(const Pair& pair, const float* velocity, int margin = 5) {
    return MeanDistance(pair, Field(velocity, pair.fixed_grid, 1), margin, pair.affine);
  }

  JacobianStatistics Jacobian(const float* velocity, const Geometry& g) {
    Buffer u = *device().Allocate(3 * sizeof(float) * g.voxels(), ctx().stream());
    EXPECT_OK(VelocityDisplacement(ctx(), velocity, 1, {u.as<float>(), g}));
    return *MeasureJacobian(ctx(), Transform(std::move(u), g), g);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(LogDemonsTest);

LogDemonsOptions Options() {
  LogDemonsOptions options;
  options.fluid_sigma = 2;
  options.diffusion_sigma = 1;
  // The pairs are smooth: every gradient tells.
  options.weak_gradient = 0;
  return options;
}

TEST_P(LogDemonsTest, RecoversADeformation) {
  const Pair pair = MakePair(7);
  const std::vector<float> still(3 * pair.fixed_grid.voxels());
  const double before = MeanError(pair, Upload(still));
  ASSERT_GT(before, 2.5);
  for (const VelocityUpdate update : {VelocityUpdate::kAdd, VelocityUpdate::kCompose, VelocityUpdate::kBch}) {
    for (const bool symmetric : {false, true}) {
      LogDemonsOptions options = Options();
      options.update = update;
      options.symmetric = symmetric;
      const auto result = Run(pair, options);
      ASSERT_OK(result) << result.status();
      const float* v = result->velocity.as<float>();
      const double error = MeanError(pair, v);
      EXPECT_LT(error, 0.65) << static_cast<int>(update) << symmetric;
      RecordProperty("error_" + std::to_string(static_cast<int>(update)) + (symmetric ? "s" : ""),
                     std::to_string(error));
      EXPECT_GT(Jacobian(v, pair.fixed_grid).min, 0);
      ASSERT_GE(result->report.levels.size(), 2u);
      EXPECT_LT(result->report.levels.back().value_after, result->report.levels.front().value_before / 20);
    }
  }
}

TEST_P(LogDemonsTest, EachGradientServes) {
  const Pair pair = MakePair(4);
  for (const DemonsGradient gradient : {DemonsGradient::kSymmetric, DemonsGradient::kFixed, DemonsGradient::kWarped}) {
    LogDemonsOptions options = Options();
    options.gradient = gradient;
    const auto result = Run(pair, options);
    ASSERT_OK(result);
    EXPECT_LT(MeanError(pair, result->velocity.as<float>()), 0.35) << static_cast<int>(gradient);
  }
}

TEST_P(LogDemonsTest, RecoversADeformationInThePlane) {
  const Pair pair = MakePair(6, /*is_2d=*/true);
  const auto result = Run(pair, Options());
  ASSERT_OK(result);
  EXPECT_LT(MeanError(pair, result->velocity.as<float>()), 0.35);
  const std::vector<float> v = Download(result->velocity.as<float>(), 3 * pair.fixed_grid.voxels());
  for (size_t i = 2; i < v.size(); i += 3) ASSERT_EQ(v[i], 0);
}

// A velocity with an eighth of the voxels comes as near, and its interpolation lies on the image's grid.
TEST_P(LogDemonsTest, RecoversADeformationByAVelocityOnHalfTheGrid) {
  for (const bool is_2d : {false, true}) {
    const Pair pair = MakePair(6, is_2d);
    for (const VelocityUpdate update : {VelocityUpdate::kAdd, VelocityUpdate::kCompose, VelocityUpdate::kBch}) {
      for (const bool symmetric : {false, true}) {
        SCOPED_TRACE(testing::Message() << is_2d << static_cast<int>(update) << symmetric);
        LogDemonsOptions options = Options();
        options.update = update;
        options.symmetric = symmetric;
        const auto full = Run(pair, options);
        options.velocity_grid = VelocityGrid::kHalf;
        const auto half = Run(pair, options);
        ASSERT_OK(full) << full.status();
        ASSERT_OK(half) << half.status();
        EXPECT_LT(MeanError(pair, half->velocity.as<float>()), 0.05 + MeanError(pair, full->velocity.as<float>()));
        EXPECT_GT(Jacobian(half->velocity.as<float>(), pair.fixed_grid).min, 0);
        ASSERT_GE(half->report.levels.size(), 2u);
        EXPECT_EQ(half->report.levels.back().size, pair.fixed_grid.size);
        EXPECT_EQ(half->report.levels.front().value_before, full->report.levels.front().value_before);
        EXPECT_NE(half->report.levels.back().value_after, full->report.levels.back().value_after);
        const size_t n = 3 * pair.fixed_grid.voxels();
        EXPECT_EQ(Download(half->velocity.as<float>(), n), Download(Run(pair, options)->velocity.as<float>(), n));
      }
    }
  }
}

// Each coarser level that is large does the same: here the middle one of three.
TEST_P(LogDemonsTest, LargeCoarseLevelsHaveTheirVelocityOnHalfTheGrid) {
  Pair pair = MakePair(0, /*is_2d=*/true);
  pair.fixed_grid.size = {256, 64, 1};
  pair.moving_grid = pair.fixed_grid;
  const Texture texture(23, /*is_2d=*/true);
  const auto image = [&](double shift) {
    std::vector<float> voxels;
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { voxels.push_back(texture({p.x + shift, p.y, p.z})); });
    return voxels;
  };
  pair.fixed = image(0);
  pair.moving = image(-3);
  for (const bool symmetric : {false, true}) {
    SCOPED_TRACE(symmetric);
    LogDemonsOptions options = Options();
    options.symmetric = symmetric;
    options.levels = 3;
    options.finest_iterations = 1;
    const auto full = Run(pair, options);
    options.velocity_grid = VelocityGrid::kHalf;
    const auto half = Run(pair, options), again = Run(pair, options);
    ASSERT_OK(full) << full.status();
    ASSERT_OK(half) << half.status();
    ASSERT_OK(again) << again.status();
    const auto &of_full = full->report.levels, &of_half = half->report.levels;
    ASSERT_EQ(of_half.size(), 3u);
    EXPECT_EQ(of_half[0].value_after, of_full[0].value_after);
    EXPECT_NE(of_half[1].value_after, of_full[1].value_after);
    EXPECT_LT(of_half[1].value_after, 1.2 * of_full[1].value_after + 1e-4);
    const size_t n = 3 * pair.fixed_grid.voxels();
    EXPECT_EQ(Download(half->velocity.as<float>(), n), Download(again->velocity.as<float>(), n));
  }
}

// An image without a coarser level has its velocity on its own grid.
TEST_P(LogDemonsTest, HalfTheGridOfATinyImageIsTheGrid) {
  Pair pair;
  pair.fixed_grid.size = {15, 14, 9};
  pair.moving_grid = pair.fixed_grid;
  pair.fixed = RandomFloats(pair.fixed_grid.voxels(), 31, 0, 100);
  pair.moving = RandomFloats(pair.fixed_grid.voxels(), 32, 0, 100);
  LogDemonsOptions options = Options();
  const auto full = Run(pair, options);
  options.velocity_grid = VelocityGrid::kHalf;
  const auto half = Run(pair, options);
  ASSERT_OK(full) << full.status();
  ASSERT_OK(half) << half.status();
  const size_t n = 3 * pair.fixed_grid.voxels();
  EXPECT_EQ(Download(half->velocity.as<float>(), n), Download(full->velocity.as<float>(), n));
  EXPECT_EQ(std::get<LogDemonsOptions>(half->report.options).velocity_grid, VelocityGrid::kFull);
}

TEST_P(LogDemonsTest, KeepsTheAffineMap) {
  AffineMap affine = AffineMap::Identity();
  affine.m[0][0] = 1.04;
  affine.m[0][1] = 0.06;
  affine.m[1][2] = -0.05;
  affine.m[0][3] = 3;
  affine.m[2][3] = -4;
  const Pair pair = MakePair(5, /*is_2d=*/false, affine);
  const auto result = Run(pair, Options());
  ASSERT_OK(result);
  EXPECT_LT(MeanError(pair, result->velocity.as<float>()), 0.5);
}

TEST_P(LogDemonsTest, InverseComesFromTheNegativeVelocity) {
  const Pair pair = MakePair(7);
  const auto result = Run(pair, Options());
  ASSERT_OK(result);
  const Geometry& g = pair.fixed_grid;
  const size_t n = 3 * g.voxels();
  float* largest = Poisoned<float>(1);
  const float* v = result->velocity.as<float>();
  ASSERT_OK(LargestComponent(ctx(), v, g.size, largest));
  float *forward = Poisoned<float>(n), *inverse = Poisoned<float>(n), *both = Poisoned<float>(n);
  ASSERT_OK(ExponentiateVectorField(ctx(), v, g.size, 1, largest, kMaxSquarings, forward));
  ASSERT_OK(ExponentiateVectorField(ctx(), v, g.size, -1, largest, kMaxSquarings, inverse));
  ASSERT_OK(ComposeVectorFields(ctx(), forward, inverse, g.size, both));
  const std::vector<float> rest = Download(both, n);
  double sum = 0;
  int count = 0;
  size_t i = 0;
  ForEachPoint(g, [&](Vec3d, Int3 at) {
    const double d = std::hypot(rest[i], rest[i + 1], rest[i + 2]);
    i += 3;
    for (int a = 0; a < 3; ++a)
      if (at[a] < 5 || at[a] >= g.size[a] - 5) return;
    sum += d;
    ++count;
  });
  EXPECT_LT(sum / count, 0.05);
}

// The velocity is as rough as a diffusion sigma leaves it at all: the first step must not fold it.
TEST_P(LogDemonsTest, ExponentialOfARoughVelocityDoesNotFold) {
  Geometry g;
  g.size = {48, 44, 40};
  const size_t n = 3 * g.voxels();
  for (const double sigma : {1.0, 1.5, 2.0}) {
    float* v = Upload(RandomFloats(n, 31, -1, 1));
    ASSERT_OK(SmoothVectorField(ctx(), v, g.size, {sigma, sigma, sigma}, v));
    std::vector<float> velocity = Download(v, n);
    float peak = 0;
    for (float x : velocity) peak = std::max(peak, std::abs(x));
    for (float& x : velocity) x *= 2 * static_cast<float>(sigma) / peak;
    v = Upload(velocity);
    float* largest = Upload(std::vector<float>{2 * static_cast<float>(sigma)});
    float *forward = Poisoned<float>(n), *inverse = Poisoned<float>(n), *both = Poisoned<float>(n);
    ASSERT_OK(ExponentiateVectorField(ctx(), v, g.size, 1, largest, kMaxSquarings, forward));
    ASSERT_OK(ExponentiateVectorField(ctx(), v, g.size, -1, largest, kMaxSquarings, inverse));
    ASSERT_OK(ComposeVectorFields(ctx(), forward, inverse, g.size, both));
    const std::vector<float> rest = Download(both, n);
    double sum = 0;
    for (size_t i = 0; i < n; i += 3) sum += std::hypot(rest[i], rest[i + 1], rest[i + 2]);
    const double mean = sum / (n / 3), least = Jacobian(v, g).min;
    EXPECT_GT(least, 0) << sigma;
    EXPECT_LT(mean, 0.15) << sigma;
    RecordProperty("rough_" + std::to_string(sigma), std::to_string(mean) + " det " + std::to_string(least));
  }
}

TEST_P(LogDemonsTest, SymmetricModeNegatesWhenImagesAreExchanged) {
  Pair pair = MakePair(3);
  // On one grid, so that exchanging is exact.
  pair.moving_grid = pair.fixed_grid;
  pair.moving.clear();
  const Texture texture(23, false);
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { pair.moving.push_back(texture(p)); });
  Pair exchanged = pair;
  std::swap(exchanged.fixed, exchanged.moving);
  LogDemonsOptions options = Options();
  options.symmetric = true;
  options.update = VelocityUpdate::kAdd;
  options.tolerance = 0;
  options.iterations = 15;
  const auto forward = Run(pair, options), backward = Run(exchanged, options);
  ASSERT_OK(forward);
  ASSERT_OK(backward);
  const size_t n = 3 * pair.fixed_grid.voxels();
  const std::vector<float> a = Download(forward->velocity.as<float>(), n),
                           b = Download(backward->velocity.as<float>(), n);
  double largest = 0, difference = 0;
  for (size_t i = 0; i < n; ++i) {
    largest = std::max(largest, double{std::abs(a[i])});
    difference = std::max(difference, double{std::abs(a[i] + b[i])});
  }
  EXPECT_GT(largest, 0.8);
  EXPECT_LT(difference, 1e-3);
}

TEST_P(LogDemonsTest, IntensitiesAreMatched) {
  Pair pair = MakePair(5);
  for (float& v : pair.moving) v = 700 + 3.7f * v;
  LogDemonsOptions options = Options();
  const auto unmatched = Run(pair, options);
  options.match_intensities = true;
  const auto matched = Run(pair, options);
  ASSERT_OK(matched);
  ASSERT_OK(unmatched);
  EXPECT_LT(MeanError(pair, matched->velocity.as<float>()), 1);
  EXPECT_GT(MeanError(pair, unmatched->velocity.as<float>()), 2);
  options.velocity_grid = VelocityGrid::kHalf;
  const auto half = Run(pair, options);
  ASSERT_OK(half);
  EXPECT_LT(MeanError(pair, half->velocity.as<float>()), 1);
}

// Without a word a pipeline matches where gain or offset differ: 0.8 to 2, and 0.5 standard deviations. An affine stage
// before it leaves SSD then.
TEST_P(LogDemonsTest, APipelineMatchesIntensitiesThatDiffer) {
  for (const auto& [gain, offset] :
       {std::pair{0.5f, 0.0f}, {0.8f, 30.0f}, {1.25f, -40.0f}, {2.0f, 0.0f}, {1.0f, 25.0f}}) {
    Pair pair = MakePair(5);
    for (float& v : pair.moving) v = gain * v + offset;
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, {LogDemonsOptions()}, pair.affine};
    SCOPED_TRACE(gain);
    const absl::StatusOr<RegistrationResult> alone = RunInput(input);
    ASSERT_OK(alone) << alone.status();
    EXPECT_EQ(std::get<LogDemonsOptions>(alone->stages[0].options).match_intensities, true);
    EXPECT_LT(MeanError(pair, alone->transform), 1);
    EXPECT_FALSE(alone->worse_than_start);
    input.stages = {AffineOptions{.metric = MetricKind::kSsd}, LogDemonsOptions()};
    const absl::StatusOr<RegistrationResult> after_affine = RunInput(input);
    ASSERT_OK(after_affine) << after_affine.status();
    EXPECT_EQ(MetricOf(after_affine->stages[0].options), MetricKind::kNgf);
    EXPECT_LT(MeanError(pair, after_affine->transform), 1);
  }
}

TEST_P(LogDemonsTest, WhoAsksForIntensitiesAsTheyAreGetsThem) {
  Pair pair = MakePair(2);
  for (float& v : pair.moving) v += 15;
  const absl::StatusOr<RegistrationResult> result =
      RunPipeline(pair, {AffineOptions{.metric = MetricKind::kSsd}, LogDemonsOptions{.match_intensities = false}});
  ASSERT_OK(result) << result.status();
  EXPECT_EQ(MetricOf(result->stages[0].options), MetricKind::kSsd);
  EXPECT_EQ(std::get<LogDemonsOptions>(result->stages[1].options).match_intensities, false);
}

// Images of equal gain, 5 mm and 12 mm apart, with noise in one of them: the same bits as without matching.
TEST_P(LogDemonsTest, APipelineLeavesIntensitiesOfEqualGain) {
  const std::vector<float> noise = RandomFloats(MakePair(5).fixed.size(), 3);
  for (const double amplitude : {0.0, 5.0, 12.0}) {
    Pair pair = MakePair(amplitude);
    for (size_t i = 0; i < pair.fixed.size(); ++i) pair.fixed[i] += 5 * (noise[i] - 0.5f);
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, {AffineOptions(), LogDemonsOptions()}, pair.affine};
    SCOPED_TRACE(amplitude);
    const absl::StatusOr<RegistrationResult> chosen = RunInput(input);
    input.stages[1] = LogDemonsOptions{.match_intensities = false};
    const absl::StatusOr<RegistrationResult> as_they_are = RunInput(input);
    ASSERT_OK(chosen) << chosen.status();
    ASSERT_OK(as_they_are) << as_they_are.status();
    EXPECT_EQ(std::get<LogDemonsOptions>(chosen->stages[1].options).match_intensities, false);
    EXPECT_EQ(MetricOf(chosen->stages[0].options), MetricKind::kSsd);
    EXPECT_EQ(FieldOn(pair, chosen->transform), FieldOn(pair, as_they_are->transform));
  }
}

TEST_P(LogDemonsTest, MaskedVoxelsDoNotCount) {
  Pair pair = MakePair(5);
  Masks masks;
  // Rubbish in a corner of each image.
  ForEachPoint(pair.fixed_grid, [&](Vec3d, Int3 v) { masks.fixed.push_back(v.x < 10 && v.y < 30 ? 0 : 1); });
  ForEachPoint(pair.moving_grid, [&](Vec3d, Int3 v) { masks.moving.push_back(v.z > 40 ? 0 : 1); });
  Pair spoiled = pair;
  for (size_t i = 0; i < masks.fixed.size(); ++i)
    if (masks.fixed[i] == 0) spoiled.fixed[i] = i % 7 * 60.0f;
  for (size_t i = 0; i < masks.moving.size(); ++i)
    if (masks.moving[i] == 0) spoiled.moving[i] = i % 5 * 60.0f;
  LogDemonsOptions options = Options();
  options.levels = 1;
  options.tolerance = 0;
  options.iterations = 60;
  const auto clean = Run(pair, options, nullptr, nullptr, masks),
             masked = Run(spoiled, options, nullptr, nullptr, masks), open = Run(spoiled, options);
  ASSERT_OK(clean);
  ASSERT_OK(masked);
  ASSERT_OK(open);
  const double masked_error = MeanError(pair, masked->velocity.as<float>(), 11);
  EXPECT_LT(masked_error, 0.5);
  EXPECT_NEAR(masked_error, MeanError(pair, clean->velocity.as<float>(), 11), 0.05);
  EXPECT_GT(MeanError(pair, open->velocity.as<float>(), 11), masked_error + 0.02);
}

TEST_P(LogDemonsTest, GoesOnFromAVelocity) {
  const Pair pair = MakePair(6);
  const auto first = Run(pair, Options());
  ASSERT_OK(first);
  LogDemonsOptions options = Options();
  options.levels = 1;
  options.iterations = 2;
  const auto warm = Run(pair, options, nullptr, first->velocity.as<float>()), cold = Run(pair, options);
  ASSERT_OK(warm);
  ASSERT_OK(cold);
  EXPECT_LT(MeanError(pair, warm->velocity.as<float>()), 0.55);
  EXPECT_GT(MeanError(pair, cold->velocity.as<float>()), 1);
  EXPECT_LT(warm->report.levels[0].value_before, cold->report.levels[0].value_before / 10);
}

TEST_P(LogDemonsTest, BeginsNearTheFinestLevelFromAVelocity) {
  const Pair pair = MakePair(6);
  const auto cold = Run(pair, Options());
  ASSERT_OK(cold);
  ASSERT_EQ(cold->report.levels.size(), 3u);
  const float* const initial = cold->velocity.as<float>();
  const auto warm = Run(pair, Options(), nullptr, initial);
  ASSERT_OK(warm);
  EXPECT_EQ(warm->report.levels.size(), 2u);
  EXPECT_LT(MeanError(pair, warm->velocity.as<float>()), 0.6);
  LogDemonsOptions all = Options();
  all.levels = 3;
  const auto asked = Run(pair, all, nullptr, initial);
  ASSERT_OK(asked);
  EXPECT_EQ(asked->report.levels.size(), 3u);
}

TEST_P(LogDemonsTest, MomentumTakesFewerIterations) {
  const Pair pair = MakePair(6);
  LogDemonsOptions options = Options();
  options.iterations = 20;
  const auto plain = Run(pair, options);
  options.momentum = 0.9;
  const auto quick = Run(pair, options), again = Run(pair, options);
  ASSERT_OK(plain);
  ASSERT_OK(quick);
  ASSERT_OK(again);
  EXPECT_LT(quick->report.levels.back().value_after, 0.9 * plain->report.levels.back().value_after);
  EXPECT_LT(MeanError(pair, quick->velocity.as<float>()), MeanError(pair, plain->velocity.as<float>()));
  const size_t n = 3 * pair.fixed_grid.voxels();
  EXPECT_EQ(Download(quick->velocity.as<float>(), n), Download(again->velocity.as<float>(), n));
}

TEST_P(LogDemonsTest, TheFinestLevelHasALimitOfItsOwn) {
  const Pair pair = MakePair(6);
  LogDemonsOptions options = Options();
  options.iterations = 9;
  options.tolerance = 0;
  options.finest_iterations = 4;
  const auto run = Run(pair, options);
  ASSERT_OK(run);
  const auto& levels = run->report.levels;
  ASSERT_GE(levels.size(), 2u);
  for (size_t i = 0; i + 1 < levels.size(); ++i) EXPECT_EQ(levels[i].iterations, 9) << i;
  EXPECT_EQ(levels.back().iterations, 4);
}

TEST_P(LogDemonsTest, LargeImagesHaveMoreLevelsFromAVelocity) {
  for (const auto& [width, levels] : {std::pair(255, 2u), {256, 3u}, {512, 4u}}) {
    Pair pair = MakePair(0, /*is_2d=*/true);
    pair.fixed_grid.size = {width, 80, 1};
    pair.moving_grid = pair.fixed_grid;
    pair.fixed.assign(pair.fixed_grid.voxels(), 0);
    for (size_t v = 0; v < pair.fixed.size(); ++v) pair.fixed[v] = static_cast<float>(std::sin(0.1 * (v % width)));
    pair.moving = pair.fixed;
    LogDemonsOptions options;
    options.iterations = options.levels = 1;
    const auto first = Run(pair, options);
    ASSERT_OK(first);
    options.levels.reset();
    const auto warm = Run(pair, options, nullptr, first->velocity.as<float>());
    ASSERT_OK(warm);
    EXPECT_EQ(warm->report.levels.size(), levels) << width;
    const auto by_default = Run(pair, LogDemonsOptions(), nullptr, first->velocity.as<float>());
    ASSERT_OK(by_default);
    EXPECT_EQ(std::get<LogDemonsOptions>(by_default->report.options).finest_iterations, levels > 2 ? 10 : 15) << width;
  }
}

TEST_P(LogDemonsTest, EffortDependsOnTheStart) {
  const Pair pair = MakePair(6);
  const auto cold = Run(pair, LogDemonsOptions());
  ASSERT_OK(cold);
  const auto& at_first = std::get<LogDemonsOptions>(cold->report.options);
  EXPECT_EQ(at_first.iterations, 100);
  EXPECT_EQ(at_first.momentum, 0);
  EXPECT_EQ(at_first.velocity_grid, VelocityGrid::kFull);
  const auto warm = Run(pair, LogDemonsOptions(), nullptr, cold->velocity.as<float>());
  ASSERT_OK(warm);
  const auto& then = std::get<LogDemonsOptions>(warm->report.options);
  EXPECT_EQ(then.iterations, 30);
  EXPECT_EQ(then.momentum, 0.9);
  EXPECT_EQ(then.velocity_grid, LogDemonsOptions::kWarmVelocityGrid);
  EXPECT_EQ(then.finest_iterations, 15);
  EXPECT_EQ(at_first.finest_iterations, 100);
  LogDemonsOptions given;
  given.iterations = 7;
  given.momentum = 0.5;
  given.velocity_grid = VelocityGrid::kHalf;
  const auto asked = Run(pair, given, nullptr, cold->velocity.as<float>());
  ASSERT_OK(asked);
  EXPECT_EQ(std::get<LogDemonsOptions>(asked->report.options).iterations, 7);
  EXPECT_EQ(std::get<LogDemonsOptions>(asked->report.options).finest_iterations, 7);
  EXPECT_EQ(std::get<LogDemonsOptions>(asked->report.options).momentum, 0.5);
  EXPECT_EQ(std::get<LogDemonsOptions>(asked->report.options).velocity_grid, VelocityGrid::kHalf);
}

TEST_P(LogDemonsTest, IsBitIdentical) {
  const Pair pair = MakePair(5);
  const auto first = Run(pair, Options()), second = Run(pair, Options());
  ASSERT_OK(first);
  ASSERT_OK(second);
  const size_t n = 3 * pair.fixed_grid.voxels();
  EXPECT_EQ(Download(first->velocity.as<float>(), n), Download(second->velocity.as<float>(), n));
}

TEST_P(LogDemonsTest, StopsAtTheCheckpoint) {
  const Pair pair = MakePair(5);
  const auto at_once = Run(pair, Options(), [](const Progress&) { return Decision::kStop; });
  ASSERT_OK(at_once);
  EXPECT_EQ(at_once->report.stop_reason, StopReason::kBudget);
  for (float v : Download(at_once->velocity.as<float>(), 3 * pair.fixed_grid.voxels())) ASSERT_EQ(v, 0);
  // At the end of the coarsest level: its velocity, on the finest grid.
  const auto coarse =
      Run(pair, Options(), [](const Progress& p) { return p.level > 0 ? Decision::kStop : Decision::kContinue; });
  ASSERT_OK(coarse);
  EXPECT_EQ(coarse->report.stop_reason, StopReason::kBudget);
  EXPECT_EQ(coarse->report.levels.size(), 1u);
  EXPECT_LT(MeanError(pair, coarse->velocity.as<float>()), 1.7);
  EXPECT_EQ(Run(pair, Options(), [](const Progress&) { return Decision::kCancel; }).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_P(LogDemonsTest, RefusesImagesApart) {
  Pair pair = MakePair(0);
  pair.affine.m[0][3] = 500;
  EXPECT_EQ(Run(pair, Options()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(LogDemonsTest, RefusesOptionsOutOfRange) {
  const auto code = [](const auto& change) {
    LogDemonsOptions options;
    change(options);
    return ValidateLogDemons(options).code();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](LogDemonsOptions&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.fluid_sigma = -1; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.diffusion_sigma = NAN; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.max_step = 0; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.iterations = 0; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.levels = 0; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.finest_iterations = 0; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.finest_iterations = kMaxIterations + 1; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.tolerance = 2; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.weak_gradient = -1; }), kInvalid);
  EXPECT_EQ(code([](LogDemonsOptions& o) { o.momentum = 1; }), kInvalid);
}

// --- As a stage of the pipeline ---

TEST_P(LogDemonsTest, PipelineDoesNotFold) {
  Pair pair = MakePair(6);
  const std::vector<float> a = RandomFloats(pair.fixed.size(), 23, -60, 60),
                           b = RandomFloats(pair.moving.size(), 24, -60, 60);
  for (size_t i = 0; i < a.size(); ++i) pair.fixed[i] += a[i];
  for (size_t i = 0; i < b.size(); ++i) pair.moving[i] += b[i];
  LogDemonsOptions options = Options();
  options.fluid_sigma = 0.5;
  options.diffusion_sigma = 0;
  const auto rough = Run(pair, options);
  ASSERT_OK(rough);
  EXPECT_LT(Jacobian(rough->velocity.as<float>(), pair.fixed_grid).min, 0);
  const auto result = RunPipeline(pair, {options});
  ASSERT_OK(result);
  EXPECT_GT(MeasureJacobian(ctx(), result->transform, pair.fixed_grid)->min, 0);
}

// The images of two scanners: the moving one inverted, gained, and with structures that the other lacks.
Pair MakeUnlikePair(bool is_2d) {
  Pair pair = MakePair(6, is_2d);
  const Texture other(91, is_2d);
  size_t i = 0;
  ForEachPoint(pair.moving_grid, [&](Vec3d p, Int3) {
    pair.moving[i] = static_cast<float>(300 - 1.2 * pair.moving[i] + 0.5 * other(p));
    ++i;
  });
  return pair;
}

// The forces between such images carry voxels that are neighbours so far apart that samples of the flow fold.
TEST_P(LogDemonsTest, PipelineDoesNotFoldOnUnlikeIntensities) {
  std::vector<LogDemonsOptions> all(7);
  all[0].max_step = 10;
  all[1].fluid_sigma = 0;
  all[2].diffusion_sigma = 0;
  all[3].momentum = 0.99;
  all[4].match_intensities = true;
  all[5].update = VelocityUpdate::kBch;
  all[6].velocity_grid = VelocityGrid::kHalf;
  for (const bool is_2d : {false, true}) {
    const Pair pair = MakeUnlikePair(is_2d);
    int64_t without_remedy = 0;
    for (size_t k = 0; k < all.size(); ++k) {
      SCOPED_TRACE(testing::Message() << "options " << k << (is_2d ? ", 2-D" : ""));
      const auto rough = Run(pair, all[k]);
      ASSERT_OK(rough) << rough.status();
      Buffer u = *device().Allocate(3 * sizeof(float) * pair.fixed_grid.voxels(), ctx().stream());
      ASSERT_OK(VelocityDisplacement(ctx(), rough->velocity.as<float>(), 1, {u.as<float>(), pair.fixed_grid}));
      const int64_t n = *CountFoldedCells(ctx(), {u.as<float>(), pair.fixed_grid});
      without_remedy += n;
      const auto result = RunPipeline(pair, {all[k]});
      ASSERT_OK(result) << result.status();
      const Transform& t = result->transform;
      EXPECT_EQ(*CountFoldedCells(ctx(), t.displacement()), 0);
      EXPECT_EQ(*CountFoldedCells(ctx(), t.backward()), 0);
      EXPECT_GT(MeasureJacobian(ctx(), t, pair.fixed_grid)->min, 0);
    }
    EXPECT_GT(without_remedy, 100);
  }
}

TEST_P(LogDemonsTest, PipelineEndsWithAVelocity) {
  AffineMap affine = AffineMap::Identity();
  affine.m[0][0] = 1.04;
  affine.m[0][1] = 0.05;
  affine.m[1][3] = 6;
  const Pair pair = MakePair(6, false, affine);
  const auto alone = RunPipeline(MakePair(6), {Options()}), both = RunPipeline(pair, {AffineOptions{}, Options()});
  for (const auto* result : {&alone, &both}) {
    ASSERT_OK(*result) << result->status();
    const Transform& transform = (*result)->transform;
    ASSERT_TRUE(transform.has_velocity());
    EXPECT_TRUE(SameGrid(*transform.domain(), pair.fixed_grid));
    EXPECT_LT(MeanError(result == &alone ? MakePair(6) : pair, transform), 0.6);
    EXPECT_GT(MeasureJacobian(ctx(), transform, pair.fixed_grid)->min, 0);
    EXPECT_LT(MeasureInverseConsistency(ctx(), transform)->mean_mm, 0.05 * pair.fixed_grid.spacing.x);
    EXPECT_FALSE((*result)->worse_than_start);
    const StageReport& report = (*result)->stages.back();
    EXPECT_TRUE(std::holds_alternative<LogDemonsOptions>(report.options));
    EXPECT_GE(report.levels.size(), 2u);
  }
  EXPECT_EQ(both->stages.size(), 2u);
}

// The options that a report echoes give the same result when they are asked for again.
TEST_P(LogDemonsTest, PipelineReportsItsOptionsAsResolved) {
  const Pair pair = MakePair(5);
  const auto first = RunPipeline(pair, {LogDemonsOptions{}});
  ASSERT_OK(first) << first.status();
  const auto& options = std::get<LogDemonsOptions>(first->stages[0].options);
  EXPECT_EQ(options.levels, static_cast<int>(first->stages[0].levels.size()));
  EXPECT_EQ(options.iterations, 100);
  EXPECT_EQ(options.fluid_sigma, 2);
  const auto second = RunPipeline(pair, {options});
  ASSERT_OK(second) << second.status();
  const size_t n = 3 * pair.fixed_grid.voxels();
  EXPECT_EQ(Download(first->transform.velocity().data, n), Download(second->transform.velocity().data, n));
}

TEST_P(LogDemonsTest, PipelineGoesOnFromAVelocityOfAnotherGrid) {
  const Pair pair = MakePair(6);
  LogDemonsOptions few = Options();
  few.levels = 1;
  few.iterations = 2;
  const auto first = RunPipeline(pair, {Options()});
  ASSERT_OK(first);
  const auto cold = RunPipeline(pair, {few}), warm = RunPipeline(pair, {few}, &first->transform);
  ASSERT_OK(cold);
  ASSERT_OK(warm) << warm.status();
  EXPECT_LT(MeanError(pair, warm->transform), 0.55);
  EXPECT_GT(MeanError(pair, cold->transform), 1);
  EXPECT_LT(warm->stages[0].levels[0].value_before, cold->stages[0].levels[0].value_before / 10);

  // The next frame has other voxels.
  Pair next = pair;
  next.fixed_grid.size = {37, 39, 33};
  next.fixed_grid.spacing = {2.3, 2.2, 2.6};
  CenterAtOrigin(next.fixed_grid);
  next.fixed.clear();
  const Texture texture(23, false);
  ForEachPoint(next.fixed_grid, [&](Vec3d p, Int3) { next.fixed.push_back(texture(next.Truth(p))); });
  const auto other = RunPipeline(next, {few}, &first->transform);
  ASSERT_OK(other) << other.status();
  EXPECT_LT(MeanError(next, other->transform), 0.6);
}

TEST_P(LogDemonsTest, PipelineWithoutTimeGivesItsStart) {
  const Pair pair = MakePair(5);
  const auto stop = [](const Progress&) { return Decision::kStop; };
  const auto cold = RunPipeline(pair, {AffineOptions{}, Options()}, nullptr, stop);
  ASSERT_OK(cold) << cold.status();
  EXPECT_EQ(cold->stop_reason, StopReason::kBudget);
  ASSERT_TRUE(cold->transform.has_velocity());
  const auto first = RunPipeline(pair, {Options()});
  ASSERT_OK(first);
  const auto warm = RunPipeline(pair, {Options()}, &first->transform, stop);
  ASSERT_OK(warm);
  EXPECT_LT(MeanError(pair, warm->transform), 0.6);
  EXPECT_EQ(RunPipeline(pair, {Options()}, nullptr, [](const Progress&) { return Decision::kCancel; }).status().code(),
            absl::StatusCode::kCancelled);
}

// A body that is in place on a faint ramp that is not, by as much in one direction as in the other: the ramp's force is
// about 50 voxels long, and leads to other bodies beside the fixed image.
Pair MakeMisleadingPair() {
  Pair pair;
  pair.fixed_grid.size = {64, 24, 24};
  pair.moving_grid.size = {200, 24, 24};
  CenterAtOrigin(pair.fixed_grid);
  CenterAtOrigin(pair.moving_grid);
  const auto common = [](Vec3d p) {
    const Vec3d from_body = p - Vec3d{8, 0, 0};
    return 200 * std::exp(-Dot(from_body, from_body) / 30) + 0.02 * p.x;
  };
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { pair.fixed.push_back(static_cast<float>(common(p))); });
  ForEachPoint(pair.moving_grid, [&](Vec3d p, Int3) {
    const double beside = std::abs(p.x) - 70, other = 900 * std::exp(-beside * beside / 100);
    pair.moving.push_back(static_cast<float>(common(p) + (p.x < 0 ? 1 : -1) + other));
  });
  return pair;
}

// The value before the last update does not speak for the result.
TEST_P(LogDemonsTest, PipelineCutShortKnowsThatItIsWorse) {
  LogDemonsOptions stage = Options();
  stage.levels = 1;
  stage.fluid_sigma = 6;
  stage.max_step = 100;
  const Transform start(AffineMap::Identity());
  const auto after_one = [](const Progress& p) { return p.iteration > 0 ? Decision::kStop : Decision::kContinue; };
  const auto cut = RunPipeline(MakeMisleadingPair(), {stage}, &start, after_one);
  ASSERT_OK(cut) << cut.status();
  EXPECT_EQ(cut->stop_reason, StopReason::kBudget);
  EXPECT_TRUE(cut->worse_than_start);
}

// Nor does the value of intensities that were not matched speak for the start.
TEST_P(LogDemonsTest, PipelineThatMatchesIntensitiesKnowsThatItIsWorse) {
  LogDemonsOptions stage = Options();
  stage.levels = 1;
  stage.iterations = 1;
  stage.fluid_sigma = 6;
  stage.max_step = 100;
  stage.match_intensities = true;
  const Transform start(AffineMap::Identity());
  Pair pair = MakeMisleadingPair();
  for (float& v : pair.moving) v = 700 + 3.7f * v;
  const auto worse = RunPipeline(pair, {stage}, &start);
  ASSERT_OK(worse) << worse.status();
  EXPECT_TRUE(worse->worse_than_start);

  pair = MakePair(5);
  for (float& v : pair.moving) v = 700 + 3.7f * v;
  stage = Options();
  stage.match_intensities = true;
  const auto better = RunPipeline(pair, {stage}, &start);
  ASSERT_OK(better) << better.status();
  EXPECT_FALSE(better->worse_than_start);
}

TEST_P(LogDemonsTest, PipelineIsBitIdentical) {
  const Pair pair = MakePair(5);
  const auto first = RunPipeline(pair, {Options()}), second = RunPipeline(pair, {Options()});
  ASSERT_OK(first);
  ASSERT_OK(second);
  const size_t n = 3 * pair.fixed_grid.voxels();
  EXPECT_EQ(Download(first->transform.velocity().data, n), Download(second->transform.velocity().data, n));
  EXPECT_EQ(Download(first->transform.backward().data, n), Download(second->transform.backward().data, n));
}

TEST_P(LogDemonsTest, AgreesWithTheCpu) {
  if (GetParam() == "cpu") GTEST_SKIP() << "compares another device with the CPU";
  const Pair pair = MakePair(5);
  const Geometry& g = pair.fixed_grid;
  OwnedContext cpu = *OwnedContext::Create(TestDevice("cpu"), size_t{64} << 20);
  const ExecContext cpu_ctx = cpu.context();
  const PreparedImage fixed = *PreparedImage::Prepare(cpu_ctx, pair.fixed.data(), PixelType::kFloat32, 1, 0, g);
  const PreparedImage moving =
      *PreparedImage::Prepare(cpu_ctx, pair.moving.data(), PixelType::kFloat32, 1, 0, pair.moving_grid);
  for (const VelocityUpdate update : {VelocityUpdate::kAdd, VelocityUpdate::kCompose, VelocityUpdate::kBch}) {
    for (const bool symmetric : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(update) << " " << symmetric);
      LogDemonsOptions stage = Options();
      stage.update = update;
      stage.symmetric = symmetric;
      stage.iterations = 8;  // ended by their number on both devices
      const auto here = RunPipeline(pair, {stage});
      const auto there = Register(cpu_ctx, {&fixed, &moving, nullptr, nullptr, {stage}, std::nullopt});
      ASSERT_OK(here) << here.status();
      ASSERT_OK(there) << there.status();
      ASSERT_EQ(here->stages[0].levels.size(), there->stages[0].levels.size());
      for (size_t i = 0; i < here->stages[0].levels.size(); ++i) {
        const LevelReport &a = here->stages[0].levels[i], &b = there->stages[0].levels[i];
        EXPECT_EQ(a.iterations, b.iterations);
        EXPECT_NEAR(a.value_before, b.value_before, 1e-3 * b.value_before);
        EXPECT_NEAR(a.value_after, b.value_after, 1e-3 * b.value_before);
      }
      const std::vector<float> v = Download(here->transform.velocity().data, 3 * g.voxels());
      const float* const expected = there->transform.velocity().data;
      double sum = 0, size = 0;
      for (size_t i = 0; i < v.size(); ++i) {
        sum += std::abs(v[i] - expected[i]);
        size += std::abs(expected[i]);
      }
      EXPECT_GT(size / v.size(), 1);
      EXPECT_LT(sum, 2e-3 * size);
    }
  }
}

TEST_P(LogDemonsTest, PipelineNamesTheOptionAtFault) {
  const Pair pair = MakePair(3);
  const auto message = [&](std::vector<StageOptions> stages, const Transform* initial = nullptr) {
    return std::string(RunPipeline(pair, std::move(stages), initial).status().message());
  };
  LogDemonsOptions stage = Options();
  stage.max_step = 0;
  EXPECT_EQ(message({stage}), "stages[0].max_step: 0 is not in [0.001, 100]");
  EXPECT_EQ(FieldOf(RunPipeline(pair, {stage}).status()), "stages[0].max_step");
  EXPECT_EQ(message({Options(), AffineOptions{}}),
            "stages[1].method: must be the method of the stage before, which is deformable");
  const auto velocity = RunPipeline(pair, {Options()});
  ASSERT_OK(velocity);
  EXPECT_EQ(message({FfdOptions{}}, &velocity->transform).substr(0, 18), "initial_transform:");
}

// Half a voxel off the final transform, at most.
TEST_P(LogDemonsTest, GivesItsTransformBeforeTheFinestLevel) {
  for (const VelocityGrid grid : {VelocityGrid::kFull, VelocityGrid::kHalf}) {
    LogDemonsOptions options = Options();
    options.velocity_grid = grid;
    for (const bool is_2d : {false, true}) ExpectACoarseTransform(MakePair(5, is_2d), options, 0.8, 0.5);
  }
}

TEST_P(LogDemonsTest, GivesNoCoarseTransformWithoutACoarseLevel) {
  LogDemonsOptions options = Options();
  options.iterations = 5;
  ExpectNoCoarseTransform(MakePair(3), options);
  ExpectNoneOfAStoppedStage(MakePair(3), options);
}

// A stage that starts from a velocity runs two levels, like the frames of a session.
TEST_P(LogDemonsTest, GivesACoarseTransformWhenItStartsFromAVelocity) {
  const Pair pair = MakePair(5);
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
  RegistrationInput input{&fixed, &moving, nullptr, nullptr, {Options()}, AffineMap::Identity()};
  const absl::StatusOr<RegistrationResult> first = RunInput(input);
  ASSERT_OK(first) << first.status();
  input.initial.reset();
  input.initial_transform = &first->transform;
  CoarseSeen seen;
  const absl::StatusOr<RegistrationResult> warm = RunWithHook(pair, input, &seen);
  ASSERT_OK(warm) << warm.status();
  EXPECT_EQ(seen.calls, 1);
  EXPECT_LT(seen.error, MeanError(pair, warm->transform) + 0.5);
}

}  // namespace
}  // namespace intrawarp
