// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/sliding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/field_error.h"
#include "engine/quality/jacobian.h"
#include "engine/registration/methods/sliding_kernels.h"
#include "engine/transform/control_grid.h"
#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SlidingKernelsTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SlidingKernelsTest);

TEST_P(SlidingKernelsTest, CostsAreThoseOfTheDefinition) {
  for (const int voxels : {1, 255, 257, 5003}) {
    for (const bool has_mask : {false, true}) {
      const std::vector<float> fixed = RandomFloats(voxels, 1, -5, 5);
      std::vector<float> first = RandomFloats(voxels, 2, -5, 5), second = RandomFloats(voxels, 3, -5, 5);
      for (int i = 0; i < voxels; i += 7) first[i] = kNan;
      for (int i = 0; i < voxels; i += 5) second[i] = kNan;
      std::vector<uint8_t> mask(voxels);
      for (int i = 0; i < voxels; ++i) mask[i] = static_cast<uint8_t>(i * 37 % 256);
      const LayerImages images{Upload(fixed),  Upload(first), Upload(second), has_mask ? Upload(mask) : nullptr,
                               kWeightPerUnit, voxels};
      float *least = Poisoned<float>(voxels), *costs = Poisoned<float>(voxels);
      const ExecContext context = ctx();
      EXPECT_OK(INTRAWARP_DISPATCH(context, MeasureLeastResiduals, images, least));
      const LayerCosts task{images, 0.25f, 9, costs};
      EXPECT_OK(INTRAWARP_DISPATCH(context, MakeLayerCosts, task));
      const std::vector<float> got_least = Download(least, voxels), got = Download(costs, voxels);
      for (int i = 0; i < voxels; ++i) {
        const double weight = has_mask ? mask[i] / 255.0 : 1;
        const auto residual = [&](float warped) { return std::pow(double{fixed[i]} - warped, 2); };
        const bool has_first = !std::isnan(first[i]), has_second = !std::isnan(second[i]);
        const double a = has_first ? std::min(residual(first[i]) / 4, 9.0) : 9;
        const double b = has_second ? std::min(residual(second[i]) / 4, 9.0) : 9;
        EXPECT_NEAR(got[i], weight * (b - a), 1e-5) << i;
        double smaller = 0;
        if (has_first) smaller = residual(first[i]);
        if (has_second) smaller = has_first ? std::min(smaller, residual(second[i])) : residual(second[i]);
        EXPECT_NEAR(got_least[i], weight * smaller, 1e-4) << i;
      }
    }
  }
}

TEST_P(SlidingKernelsTest, EveryVoxelIsInTheMaskOfOneLayer) {
  const int voxels = 1031;
  const std::vector<float> share = RandomFloats(voxels, 4, 0, 1);
  std::vector<uint8_t> mask(voxels);
  for (int i = 0; i < voxels; ++i) mask[i] = static_cast<uint8_t>(i % 3);
  for (const bool has_mask : {false, true}) {
    for (const bool is_second : {false, true}) {
      uint8_t* out = Poisoned<uint8_t>(voxels);
      const LayerMask task{Upload(share), has_mask ? Upload(mask) : nullptr, is_second, voxels, out};
      const ExecContext context = ctx();
      EXPECT_OK(INTRAWARP_DISPATCH(context, MakeLayerMask, task));
      const std::vector<uint8_t> got = Download(out, voxels);
      for (int i = 0; i < voxels; ++i) {
        const int whole = has_mask ? mask[i] : 1;
        EXPECT_EQ(got[i], (share[i] > 0.5f) == is_second ? whole : 0) << i;
      }
    }
  }
}

TEST_P(SlidingKernelsTest, ANodeTakesTheLayerOfMostVoxelsAroundIt) {
  for (const Int3 size : {Int3{5, 4, 3}, {1, 6, 2}, {7, 5, 1}, {17, 1, 1}}) {
    Geometry g = ObliqueGeometry(size, false);
    const Geometry grid = *MakeControlGrid(g, g.spacing);
    SCOPED_TRACE(SizeString(g));
    const std::vector<float> share = RandomFloats(g.voxels(), 8, 0, 1);
    const std::vector<float> first = RandomFloats(3 * grid.voxels(), 9, -1, 0),
                             second = RandomFloats(3 * grid.voxels(), 10, 0.001f, 1);
    float* out = Poisoned<float>(3 * grid.voxels());
    const LayerMerge task{Upload(first), Upload(second), Upload(share), g.size, grid.size, out};
    const ExecContext context = ctx();
    EXPECT_OK(INTRAWARP_DISPATCH(context, MergeLayers, task));
    const std::vector<float> got = Download(out, 3 * grid.voxels());
    const AffineMap to_voxel = Compose(PhysicalToIndex(g), IndexToPhysical(grid));
    for (int64_t i = 0; i < grid.voxels(); ++i) {
      const Vec3d at =
          to_voxel({static_cast<double>(i % grid.size.x), static_cast<double>(i / grid.size.x % grid.size.y),
                    static_cast<double>(i / grid.size.x / grid.size.y)});
      int of_second = 0, of_first = 0;
      for (int corner = 0; corner < 8; ++corner) {
        Int3 voxel{};
        for (int a = 0; a < 3; ++a) {
          const double side = (corner >> a & 1) != 0 ? 0.5 : -0.5;
          voxel[a] = std::clamp(static_cast<int>(std::lround(at[a] + (g.size[a] > 1 ? side : 0))), 0, g.size[a] - 1);
        }
        const float s = share[(int64_t{voxel.z} * g.size.y + voxel.y) * g.size.x + voxel.x];
        ++(s > 0.5f ? of_second : of_first);
      }
      for (int c = 0; c < 3; ++c) EXPECT_EQ(got[3 * i + c], (of_second > of_first ? second : first)[3 * i + c]) << i;
    }
  }
}

TEST(TwoGroups, PutsLikeVectorsTogether) {
  std::vector<Vec3f> vectors;
  std::vector<float> weights;
  for (int i = 0; i < 90; ++i) {
    vectors.push_back(i % 3 == 0 ? Vec3f{0.1f * (i % 7), 0, 7.5f} : Vec3f{0, 0.1f * (i % 5), 0.2f});
    weights.push_back(1);
  }
  // Far away, without weight.
  vectors.push_back({100, 100, 100});
  weights.push_back(0);
  const std::optional<std::vector<bool>> groups = TwoGroups(vectors, weights, 2);
  ASSERT_TRUE(groups.has_value());
  for (int i = 0; i < 90; ++i) EXPECT_EQ((*groups)[i], i % 3 == 0) << i;
  EXPECT_FALSE(TwoGroups(vectors, weights, 9).has_value());
  EXPECT_FALSE(TwoGroups(std::vector<Vec3f>(5, Vec3f{1, 2, 3}), std::vector<float>(5, 1), 1).has_value());
  EXPECT_FALSE(TwoGroups(vectors, std::vector<float>(91, 0), 1).has_value());
}

// How far it is to the wall, mm.
double WallDistance(Vec3d p) {
  const double outside = std::max({-22 - p.x, p.x - 20, -18 - p.z, p.z - 19});
  return std::abs(outside);
}

class SlidingTest : public TexturedPairTest {
 protected:
  // The part of the voxels that slide, among those beyond `least_x` mm.
  static double TrueFraction(const Pair& pair, double least_x) {
    int all = 0, sliding = 0;
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) {
      if (p.x <= least_x) return;
      ++all;
      sliding += IsInBlock(p);
    });
    return double(sliding) / all;
  }

  // The mean error in mm between 2 and 8 mm from the wall, off the faces.
  double ErrorAtWall(const Pair& pair, const Transform& transform) {
    const std::vector<float> field = FieldOn(pair, transform);
    const Geometry& g = pair.fixed_grid;
    double sum = 0;
    int count = 0;
    size_t i = 0;
    ForEachPoint(g, [&](Vec3d p, Int3 v) {
      const Vec3d error = p + Vec3d{field[i], field[i + 1], field[i + 2]} - SlidingTruth(p);
      i += 3;
      if (v.y < 7 || v.y >= g.size.y - 7 || WallDistance(p) < 2 || WallDistance(p) > 8) return;
      sum += std::sqrt(Dot(error, error));
      ++count;
    });
    return sum / count;
  }

  // On the voxels of the fixed image.
  double LeastJacobian(const Pair& pair, const Transform& transform) {
    OwnedContext owned = *OwnedContext::Create(device(), JacobianWorkspaceBytes(pair.fixed_grid, true));
    const absl::StatusOr<JacobianStatistics> jacobian = MeasureJacobian(owned.context(), transform, pair.fixed_grid);
    EXPECT_OK(jacobian) << jacobian.status();
    return jacobian.ok() ? jacobian->min : -1;
  }

  absl::StatusOr<RegistrationResult> Run(const Pair& pair, std::vector<StageOptions> stages,
                                         CheckpointFn checkpoint = nullptr) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    return RunInput({&fixed, &moving, nullptr, nullptr, std::move(stages), AffineMap::Identity()},
                    std::move(checkpoint));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SlidingTest);

FfdOptions Ffd(bool sliding) { return {.metric = MetricKind::kSsd, .spacing_vox = 10, .sliding = sliding}; }

TEST_P(SlidingTest, TheJumpAtTheWallIsSharp) {
  const Pair pair = MakeSlidingPair();
  const absl::StatusOr<RegistrationResult> plain = Run(pair, {SearchOptions{}, Ffd(false)}),
                                           sliding = Run(pair, {SearchOptions{}, Ffd(true)});
  ASSERT_OK(plain) << plain.status();
  ASSERT_OK(sliding) << sliding.status();
  const double smeared = ErrorAtWall(pair, plain->transform), sharp = ErrorAtWall(pair, sliding->transform);
  EXPECT_LT(sharp, 0.5 * smeared) << smeared << " -> " << sharp;
  EXPECT_LT(sharp, 1.2);
  EXPECT_TRUE(
      SameGrid(sliding->transform.control_grid().geometry, *MakeControlGrid(pair.fixed_grid, pair.fixed_grid.spacing)));
  EXPECT_TRUE(std::get<FfdOptions>(sliding->stages.back().options).sliding);
  const LevelReport& last = sliding->stages.back().levels.back();
  EXPECT_EQ(last.iterations, kSlidingRounds);
  EXPECT_LT(last.value_after, last.value_before);
  EXPECT_FALSE(sliding->worse_than_start);
  // The block, which moves more, is the second layer.
  for (const StageReport& stage : plain->stages) EXPECT_FALSE(stage.second_layer_fraction.has_value());
  EXPECT_FALSE(sliding->stages.front().second_layer_fraction.has_value());
  ASSERT_TRUE(sliding->stages.back().second_layer_fraction.has_value());
  EXPECT_NEAR(*sliding->stages.back().second_layer_fraction, TrueFraction(pair, -1e9), 0.05);
}

TEST_P(SlidingTest, TheSecondLayerIsAPartOfTheMask) {
  const Pair pair = MakeSlidingPair();
  std::vector<float> selected;
  // Without the tissue on one side of the block, whose part is larger then.
  ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) { selected.push_back(p.x > -22 ? 1.0f : 0.0f); });
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid),
                      mask = Prepare(selected, pair.fixed_grid);
  RegistrationInput input{&fixed, &moving, nullptr, nullptr, {SearchOptions{}, Ffd(true)}, AffineMap::Identity()};
  input.fixed_mask = &mask;
  const absl::StatusOr<RegistrationResult> sliding = RunInput(input);
  ASSERT_OK(sliding) << sliding.status();
  ASSERT_TRUE(sliding->stages.back().second_layer_fraction.has_value());
  EXPECT_NEAR(*sliding->stages.back().second_layer_fraction, TrueFraction(pair, -22), 0.05);
  EXPECT_GT(TrueFraction(pair, -22), TrueFraction(pair, -1e9) + 0.06);
}

TEST_P(SlidingTest, ItsResultDoesNotFold) {
  const Pair pair = MakeSlidingPair();
  const absl::StatusOr<RegistrationResult> sliding = Run(pair, {SearchOptions{}, Ffd(true)});
  ASSERT_OK(sliding) << sliding.status();
  EXPECT_GT(LeastJacobian(pair, sliding->transform), 0);
}

// Layers that move apart by many voxels: of images of different things, and where the moving image ends.
TEST_P(SlidingTest, LayersFarApartAreJoinedWithoutAFold) {
  Pair unlike = MakeTexturedPair(Texture(42, false), 2, 3, false, AffineMap::Identity());
  unlike.moving = MakeTexturedPair(Texture(53, false), 2, 0, false, AffineMap::Identity()).moving;
  Pair cut = MakeSlidingPair();
  for (size_t i = 0; i < cut.moving.size(); ++i) {
    if (static_cast<int>(i) % cut.moving_grid.size.x > 0.6 * cut.moving_grid.size.x) cut.moving[i] = 1000;
  }
  for (const Pair& pair : {unlike, cut}) {
    const absl::StatusOr<RegistrationResult> sliding = Run(pair, {SearchOptions{}, Ffd(true)});
    ASSERT_OK(sliding) << sliding.status();
    EXPECT_GT(*sliding->stages.back().second_layer_fraction, 0);
    EXPECT_GT(LeastJacobian(pair, sliding->transform), 0);
  }
}

TEST_P(SlidingTest, RunsGiveTheSameBits) {
  const Pair pair = MakeSlidingPair();
  const absl::StatusOr<RegistrationResult> first = Run(pair, {Ffd(true)}), second = Run(pair, {Ffd(true)});
  ASSERT_OK(first) << first.status();
  ASSERT_OK(second) << second.status();
  EXPECT_EQ(FieldOn(pair, first->transform), FieldOn(pair, second->transform));
}

// Where nothing moves, ffd by itself gives the same result, bit for bit.
TEST_P(SlidingTest, WithoutAnythingThatSlidesItIsAnOrdinaryStage) {
  const Pair pair = MakeTexturedPair(Texture(12, false), 2, 0.2, false, AffineMap::Identity());
  const absl::StatusOr<RegistrationResult> plain = Run(pair, {Ffd(false)}), sliding = Run(pair, {Ffd(true)});
  ASSERT_OK(plain) << plain.status();
  ASSERT_OK(sliding) << sliding.status();
  EXPECT_EQ(FieldOn(pair, plain->transform), FieldOn(pair, sliding->transform));
  EXPECT_FALSE(sliding->worse_than_start);
  EXPECT_FALSE(plain->stages.back().second_layer_fraction.has_value());
  EXPECT_EQ(sliding->stages.back().second_layer_fraction, 0);
}

TEST_P(SlidingTest, ABudgetGivesAControlGridAtAnyTime) {
  const Pair pair = MakeSlidingPair();
  for (const int checks : {0, 3, 12, 25}) {
    int left = checks;
    const absl::StatusOr<RegistrationResult> stopped = Run(pair, {SearchOptions{}, Ffd(true)}, [&](const Progress&) {
      return left-- > 0 ? Decision::kContinue : Decision::kStop;
    });
    ASSERT_OK(stopped) << stopped.status();
    EXPECT_EQ(stopped->stop_reason, StopReason::kBudget) << checks;
    EXPECT_TRUE(stopped->transform.has_control_grid());
    if (checks > 0) continue;
    EXPECT_EQ(stopped->stages.back().second_layer_fraction, 0);
  }
  // Without a search, when the deformation before the layers is there already.
  int before_layers = 0;
  ASSERT_OK(Run(pair, {Ffd(false)}, [&](const Progress&) {
    ++before_layers;
    return Decision::kContinue;
  }));
  const absl::StatusOr<RegistrationResult> stopped = Run(
      pair, {Ffd(true)}, [&](const Progress&) { return before_layers-- > 0 ? Decision::kContinue : Decision::kStop; });
  ASSERT_OK(stopped);
  EXPECT_EQ(stopped->stop_reason, StopReason::kBudget);
  EXPECT_EQ(stopped->stages.back().second_layer_fraction, 0);
  EXPECT_EQ(Run(pair, {Ffd(true)}, [](const Progress&) { return Decision::kCancel; }).status().code(),
            absl::StatusCode::kCancelled);
}

// Between the steps of the assignment of voxels: only whole rounds count.
TEST_P(SlidingTest, ABudgetEndsAnAssignment) {
  const Pair pair = MakeSlidingPair();
  const Geometry merged = *MakeControlGrid(pair.fixed_grid, pair.fixed_grid.spacing);
  const std::vector<std::pair<int, Decision>> ends = {
      {0, Decision::kCancel}, {0, Decision::kStop}, {1, Decision::kStop}};
  for (const auto& [whole_rounds, decision] : ends) {
    int assignments = 0, asked_again = 0;
    bool is_over = false;
    const auto checkpoint = [&](const Progress& progress) {
      asked_again += is_over;
      const bool assigns = progress.stage == 1 && progress.levels == 1;
      assignments += assigns && progress.iteration == 0;
      is_over = is_over || (assigns && assignments > whole_rounds && progress.iteration >= 60);
      return is_over ? decision : Decision::kContinue;
    };
    const absl::StatusOr<RegistrationResult> ended = Run(pair, {SearchOptions{}, Ffd(true)}, checkpoint);
    EXPECT_TRUE(is_over);
    if (decision == Decision::kCancel) {
      EXPECT_EQ(ended.status().code(), absl::StatusCode::kCancelled);
      EXPECT_EQ(asked_again, 0);
      continue;
    }
    ASSERT_OK(ended) << ended.status();
    EXPECT_EQ(ended->stop_reason, StopReason::kBudget);
    EXPECT_EQ(SameGrid(ended->transform.control_grid().geometry, merged), whole_rounds > 0);
    if (whole_rounds > 0) {
      EXPECT_EQ(ended->stages.back().levels.back().iterations, whole_rounds);
    }
  }
}

TEST_P(SlidingTest, WhatIsNotThereIsRefused) {
  const Pair pair = MakeSlidingPair();
  FfdOptions options = Ffd(true);
  for (const std::optional<MetricKind> metric :
       {std::optional<MetricKind>(), std::optional(MetricKind::kNmi), std::optional(MetricKind::kLncc)}) {
    options.metric = metric;
    const absl::Status status = Run(pair, {options}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), testing::HasSubstr("sliding"));
  }
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
  RegistrationInput input{&fixed, &moving, nullptr, nullptr, {Ffd(true)}, AffineMap::Identity()};
  const PreparedImage weight = Prepare(std::vector<float>(pair.moving.size(), 0.5f), pair.moving_grid);
  RegistrationInput with_landmarks = input, with_mask = input, with_weight = input, with_missing_tissue = input;
  with_landmarks.landmarks = {{{0, 0, 0}, {1, 0, 0}, 1}};
  with_mask.moving_mask = &moving;
  with_weight.moving_weight = &weight;
  with_missing_tissue.find_missing_tissue = true;
  for (const RegistrationInput& refused : {with_landmarks, with_mask, with_weight, with_missing_tissue}) {
    EXPECT_EQ(ValidateRegistration(refused).code(), absl::StatusCode::kUnimplemented);
  }
}

}  // namespace
}  // namespace intrawarp
