// SPDX-License-Identifier: Apache-2.0
// Methods under masks with weights: a region that says something false weighs little there.
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/registration/methods/method.h"
#include "gmock/gmock.h"
#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

using testing::FloatNear;
using testing::Pointwise;

// The byte of a mask at a point in LPS mm.
using ByteFn = std::function<uint8_t(Vec3d)>;

struct NamedStage {
  const char* name;
  StageOptions options;
};

std::vector<NamedStage> Stages() {
  LogDemonsOptions log_demons;
  log_demons.iterations = 30;
  return {{"affine ssd", AffineOptions{.metric = MetricKind::kSsd}},
          {"affine ngf", AffineOptions{.metric = MetricKind::kNgf}},
          {"affine nmi", AffineOptions{.metric = MetricKind::kNmi}},
          {"affine lncc", AffineOptions{.metric = MetricKind::kLncc}},
          {"log-demons", log_demons},
          {"search", SearchOptions{}}};
}

class WeightedMasksTest : public TexturedPairTest {
 protected:
  // A mask at every level of an image; none for an empty function.
  std::vector<MaskLevel> Levels(const PreparedImage& image, const ByteFn& byte, float weight_per_unit) {
    std::vector<MaskLevel> levels;
    for (const PyramidLevel& level : image.levels()) {
      const Geometry& grid = level.volume.geometry;
      MaskLevel mask{{}, grid.voxels()};
      if (byte) {
        std::vector<uint8_t> bytes;
        ForEachPoint(grid, [&](Vec3d p, Int3) { bytes.push_back(byte(p)); });
        mask.count = std::count_if(bytes.begin(), bytes.end(), [](uint8_t b) { return b != 0; });
        mask.mask = {Upload(bytes), grid, weight_per_unit};
      }
      levels.push_back(mask);
    }
    return levels;
  }

  absl::StatusOr<StageResult> Run(const Pair& pair, const StageOptions& stage, const ByteFn& fixed_byte,
                                  const ByteFn& moving_byte, float weight_per_unit) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    const RegistrationImages images{&fixed, &moving, Levels(fixed, fixed_byte, weight_per_unit),
                                    Levels(moving, moving_byte, weight_per_unit)};
    const StageOptions options = Resolved(stage, pair.fixed_grid);
    const Method& method = MethodOf(options);
    // In an arena of exactly the size that is asked for.
    arenas_.push_back(*OwnedContext::Create(device(), method.workspace_bytes(device(), fixed, moving, options)));
    return method.run(arenas_.back().context(), {.images = images, .options = options});
  }

  // The mean distance to the truth in voxels where `counts`, off the faces.
  double Error(const Pair& pair, const Transform& transform, const std::function<bool(Vec3d)>& counts) {
    const std::vector<float> field = FieldOn(pair, transform);
    const Geometry& g = pair.fixed_grid;
    double sum = 0;
    int count = 0;
    size_t i = 0;
    ForEachPoint(g, [&](Vec3d p, Int3 v) {
      const Vec3d d = p + Vec3d{field[i], field[i + 1], field[i + 2]} - pair.Truth(p);
      i += 3;
      for (int a = 0; a < 3; ++a)
        if (g.size[a] > 1 && (v[a] < 6 || v[a] >= g.size[a] - 6)) return;
      if (!counts(p)) return;
      sum += std::sqrt(Dot(d, d));
      ++count;
    });
    return sum / count / g.spacing.x;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(WeightedMasksTest);

// The part of space that is false, and what is well away from it.
bool IsFalse(Vec3d p) { return p.x > 12; }
bool IsAway(Vec3d p) { return p.x < 0; }
// From 0 to 1, without an edge.
double Falseness(Vec3d p) { return std::clamp((p.x - 12) / 8, 0.0, 1.0); }

AffineMap Shift(double x, double y, double z) {
  AffineMap map = AffineMap::Identity();
  map.m[0][3] = x;
  map.m[1][3] = y;
  map.m[2][3] = z;
  return map;
}

// A pair whose images are related by a small motion, and whose fixed image (or moving image) shows another place on
// the false side.
Pair FalsePair(const StageOptions& stage, bool is_2d, bool in_fixed) {
  const bool is_affine = std::holds_alternative<AffineOptions>(stage);
  const AffineMap motion = Shift(3, -2, is_2d ? 0 : 2);
  const Texture texture(23, is_2d);
  Pair pair = MakeTexturedPair(texture, 2.2, is_affine ? 0 : 3, is_2d,
                               is_affine || std::holds_alternative<SearchOptions>(stage) ? motion : Shift(0, 0, 0));
  const Vec3d moved{4, 9, is_2d ? 0.0 : -7.0};
  size_t i = 0;
  if (in_fixed) {
    ForEachPoint(pair.fixed_grid, [&](Vec3d p, Int3) {
      pair.fixed[i++] = static_cast<float>(texture(pair.Truth(p) + Falseness(p) * moved));
    });
  } else {
    ForEachPoint(pair.moving_grid,
                 [&](Vec3d p, Int3) { pair.moving[i++] = static_cast<float>(texture(p + Falseness(p) * moved)); });
  }
  return pair;
}

// With a weight of 0.02 on the false side, the other is as with a mask that leaves the false side out. Without either
// an affine map is pulled away from the truth everywhere, while deformations are wrong near the false side only.
TEST_P(WeightedMasksTest, WhatWeighsLittleSaysLittle) {
  const ByteFn mask = [](Vec3d p) { return IsFalse(p) ? 0 : 1; };
  const ByteFn weights = [](Vec3d p) { return IsFalse(p) ? 5 : 255; };
  for (const NamedStage& stage : Stages()) {
    double sum_of_soft = 0, sum_of_open = 0;
    for (const bool is_2d : {false, true}) {
      for (const bool in_fixed : {true, false}) {
        SCOPED_TRACE(std::string(stage.name) + (is_2d ? " 2-D" : " 3-D") + (in_fixed ? " fixed" : " moving"));
        const Pair pair = FalsePair(stage.options, is_2d, in_fixed);
        const auto run = [&](const ByteFn& byte, float weight_per_unit) {
          return Run(pair, stage.options, in_fixed ? byte : ByteFn(), in_fixed ? ByteFn() : byte, weight_per_unit);
        };
        const auto hard = run(mask, 1), soft = run(weights, kWeightPerUnit), open = run(nullptr, 1);
        ASSERT_OK(hard) << hard.status();
        ASSERT_OK(soft) << soft.status();
        ASSERT_OK(open) << open.status();
        const double of_hard = Error(pair, hard->transform, IsAway), of_soft = Error(pair, soft->transform, IsAway),
                     of_open = Error(pair, open->transform, IsAway);
        RecordProperty(stage.name, testing::PrintToString(std::vector<double>{of_hard, of_soft, of_open}));
        EXPECT_LT(of_soft, of_hard + 0.15) << of_hard << " " << of_soft << " " << of_open;
        sum_of_soft += of_soft;
        sum_of_open += of_open;
      }
    }
    if (std::holds_alternative<AffineOptions>(stage.options)) {
      EXPECT_LT(sum_of_soft, 0.5 * sum_of_open) << stage.name;
    }
  }
}

// Bytes of 255 are a mask that is set. Rounding, and how Gauss-Newton judges a step, differ a little.
TEST_P(WeightedMasksTest, WeightsOfOneAreAMask) {
  const ByteFn mask = [](Vec3d p) { return IsFalse(p) ? 0 : 1; };
  const ByteFn weights = [](Vec3d p) { return IsFalse(p) ? 0 : 255; };
  for (const NamedStage& stage : Stages()) {
    for (const bool is_2d : {false, true}) {
      SCOPED_TRACE(std::string(stage.name) + (is_2d ? " 2-D" : " 3-D"));
      const Pair pair = FalsePair(stage.options, is_2d, true);
      const auto hard = Run(pair, stage.options, mask, mask, 1),
                 soft = Run(pair, stage.options, weights, weights, kWeightPerUnit);
      ASSERT_OK(hard) << hard.status();
      ASSERT_OK(soft) << soft.status();
      EXPECT_THAT(FieldOn(pair, soft->transform), Pointwise(FloatNear(0.02f), FieldOn(pair, hard->transform)));
    }
  }
}

}  // namespace
}  // namespace intrawarp
