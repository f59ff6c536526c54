// SPDX-License-Identifier: Apache-2.0
// The relation of intensities against its definition, in float64.
#include "engine/registration/choose/intensity_relation.h"

#include <cmath>
#include <utility>

#include "tests/engine/registration/textured_pair.h"

namespace intrawarp {
namespace {

using testing::Eq;

std::vector<float> Ramp(int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i) / static_cast<float>(count - 1));
  return values;
}

template <typename Function>
std::vector<float> Mapped(const std::vector<float>& values, const Function& function) {
  std::vector<float> mapped;
  for (const float value : values) mapped.push_back(static_cast<float>(function(value)));
  return mapped;
}

// eta^2 of `of` by classes of `by`, and r^2, one line of the definition after the other.
struct Reference {
  double r = 0, eta2 = 0;
};
Reference ReferenceOf(const std::vector<float>& by, const std::vector<float>& of) {
  const double n = static_cast<double>(by.size());
  double mean_by = 0, mean_of = 0, low = by[0], high = by[0];
  for (size_t i = 0; i < by.size(); ++i) {
    mean_by += by[i] / n;
    mean_of += of[i] / n;
    low = std::min<double>(low, by[i]);
    high = std::max<double>(high, by[i]);
  }
  double sum_by = 0, sum_of = 0, sum_both = 0, within = 0;
  for (size_t i = 0; i < by.size(); ++i) {
    sum_by += std::pow(by[i] - mean_by, 2);
    sum_of += std::pow(of[i] - mean_of, 2);
    sum_both += (by[i] - mean_by) * (of[i] - mean_of);
  }
  const auto class_of = [&](float v) {
    return std::min(kIntensityClasses - 1, static_cast<int>((v - low) * (kIntensityClasses / (high - low))));
  };
  for (int k = 0; k < kIntensityClasses; ++k) {
    double count = 0, mean = 0;
    for (size_t i = 0; i < by.size(); ++i) {
      if (class_of(by[i]) == k) ++count, mean += of[i];
    }
    for (size_t i = 0; i < by.size(); ++i) {
      if (class_of(by[i]) == k) within += std::pow(of[i] - mean / count, 2);
    }
  }
  return {sum_both / std::sqrt(sum_by * sum_of), 1 - within / sum_of};
}

TEST(IntensityRelationTest, AgreesWithItsDefinition) {
  const std::vector<float> x = Ramp(501);
  for (const double noise : {0.0, 0.1, 1.0}) {
    const std::vector<float> random = RandomFloats(x.size(), 3, -1, 1);
    std::vector<float> y;
    for (size_t i = 0; i < x.size(); ++i) {
      y.push_back(static_cast<float>(std::sin(4 * x[i]) + 0.3 * x[i] + noise * random[i]));
    }
    const auto relation = RelationOf(x, y);
    ASSERT_TRUE(relation.has_value());
    const Reference forth = ReferenceOf(x, y), back = ReferenceOf(y, x);
    EXPECT_NEAR(relation->correlation, forth.r, 1e-9);
    EXPECT_NEAR(relation->correlation_ratio, std::max(forth.eta2, back.eta2), 1e-9);
    EXPECT_EQ(relation->samples, 501);
  }
}

TEST(IntensityRelationTest, TellsLinesFromOtherFunctions) {
  const std::vector<float> x = Ramp(2000);
  const auto rising = RelationOf(x, Mapped(x, [](double v) { return 900 * v + 40; }));
  EXPECT_NEAR(rising->correlation, 1, 1e-6);
  EXPECT_GT(rising->linearity(), 0.99);
  const auto falling = RelationOf(x, Mapped(x, [](double v) { return 7 - 3 * v; }));
  EXPECT_NEAR(falling->correlation, -1, 1e-6);
  EXPECT_GT(falling->linearity(), 0.99);
  const auto parabola = RelationOf(x, Mapped(x, [](double v) { return (v - 0.5) * (v - 0.5); }));
  EXPECT_NEAR(parabola->correlation, 0, 1e-3);
  EXPECT_GT(parabola->correlation_ratio, 0.99);
  // Noise lowers both, and their quotient hardly.
  const std::vector<float> noise = RandomFloats(x.size(), 5, -1, 1);
  std::vector<float> noisy = x;
  for (size_t i = 0; i < x.size(); ++i) noisy[i] += 0.5f * noise[i];
  EXPECT_LT(RelationOf(x, noisy)->correlation, 0.8);
  EXPECT_GT(RelationOf(x, noisy)->linearity(), 0.93);
  // A bend shows in little scatter, where the line explains nearly all, and is hidden by much.
  const auto bent = [&](float scatter) {
    std::vector<float> y = Mapped(x, [](double v) { return v + 0.5 * v * v; });
    for (size_t i = 0; i < y.size(); ++i) y[i] += scatter * noise[i];
    return *RelationOf(x, y);
  };
  EXPECT_GT(bent(0.02f).linearity(), 0.98);
  EXPECT_GT(bent(0.02f).lack_of_fit(), 1);
  EXPECT_LT(bent(0.5f).lack_of_fit(), 0.1);
  EXPECT_LT(RelationOf(x, noisy)->lack_of_fit(), 0.1);
}

// The range of the samples is not a float.
TEST(IntensityRelationTest, TakesTheLargestFloats) {
  const std::vector<float> x = Ramp(1000);
  for (const double largest : {1e38, 3e38, 3.4e38}) {
    const std::vector<float> wide = Mapped(x, [&](double v) { return (2 * v - 1) * largest; });
    const auto line = RelationOf(wide, x);
    ASSERT_TRUE(line.has_value());
    EXPECT_NEAR(line->correlation, 1, 1e-6);
    EXPECT_GT(line->linearity(), 0.99);
    EXPECT_LE(line->correlation_ratio, 1 + 1e-12);
    EXPECT_NEAR(RelationOf(wide, wide)->correlation_ratio, line->correlation_ratio, 1e-3);
  }
}

TEST(IntensityRelationTest, SaysNothingOfTooLittle) {
  const std::vector<float> x = Ramp(kLeastRelatedSamples), short_x = Ramp(kLeastRelatedSamples - 1);
  const std::vector<float> constant(x.size(), 4.0f);
  EXPECT_TRUE(RelationOf(x, x).has_value());
  EXPECT_THAT(RelationOf(short_x, short_x).has_value(), Eq(false));
  EXPECT_THAT(RelationOf(x, constant).has_value(), Eq(false));
  EXPECT_THAT(RelationOf(constant, x).has_value(), Eq(false));
}

class IntensityRelationOnDeviceTest : public TexturedPairTest {
 protected:
  // One level and no masks, but for `fixed_mask`, on the fixed image's finest level.
  static RegistrationImages Images(const PreparedImage& fixed, const PreparedImage& moving, ConstMaskView fixed_mask) {
    RegistrationImages images{&fixed, &moving, {}, {}};
    for (const PyramidLevel& level : fixed.levels()) {
      images.fixed_masks.push_back({{}, level.volume.geometry.voxels()});
    }
    for (const PyramidLevel& level : moving.levels()) {
      images.moving_masks.push_back({{}, level.volume.geometry.voxels()});
    }
    images.fixed_masks[0].mask = fixed_mask;
    return images;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(IntensityRelationOnDeviceTest);

// Moving voxels are at fixed ones after a shift by whole voxels, so that the samples are voxels.
TEST_P(IntensityRelationOnDeviceTest, SamplesWhereTheMapSaysAndTheMaskAllows) {
  for (const Int3 size : {Int3{33, 17, 21}, Int3{40, 33, 1}}) {
    const Geometry grid{.size = size, .spacing = {2, 1, 3}};
    const std::vector<float> f = RandomFloats(grid.voxels(), 1), m = RandomFloats(grid.voxels(), 2);
    std::vector<uint8_t> mask(grid.voxels());
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 != 0;
    AffineMap shift = AffineMap::Identity();
    shift.m[0][3] = 2 * 4;
    shift.m[1][3] = -2;
    std::vector<float> x, y;
    for (int k = 0; k < size.z; ++k) {
      for (int j = 0; j < size.y; ++j) {
        for (int i = 0; i < size.x; ++i) {
          const size_t at = (size_t(k) * size.y + j) * size.x + i;
          if (mask[at] == 0 || i + 4 >= size.x || j - 2 < 0) continue;
          x.push_back(f[at]);
          y.push_back(m[at - 2 * size.x + 4]);
        }
      }
    }
    const PreparedImage fixed = Prepare(f, grid), moving = Prepare(m, grid);
    const RegistrationImages images = Images(fixed, moving, {Upload(mask), grid});
    const auto measured = MeasureIntensityRelation(ctx(), images, shift);
    ASSERT_OK(measured.status());
    const auto expected = RelationOf(x, y);
    ASSERT_TRUE(measured->has_value());
    EXPECT_EQ((*measured)->samples, expected->samples);
    EXPECT_NEAR((*measured)->correlation, expected->correlation, 1e-6);
    EXPECT_NEAR((*measured)->correlation_ratio, expected->correlation_ratio, 1e-3);
    shift.m[0][3] = 1e4;
    EXPECT_FALSE(MeasureIntensityRelation(ctx(), images, shift)->has_value());
  }
}

// A moving image of far more voxels than the fixed one is read at a coarser level, where a checkerboard is constant.
TEST_P(IntensityRelationOnDeviceTest, BoundsTheMovingLevel) {
  const Geometry grid{.size = {20, 20, 20}};
  for (const auto& [size, is_small] : {std::pair{Int3{128, 128, 128}, true}, {Int3{130, 128, 128}, false}}) {
    const Geometry moving_grid{.size = size};
    std::vector<float> f(grid.voxels()), m;
    for (size_t i = 0; i < f.size(); ++i) f[i] = static_cast<float>(i % 2);
    for (int z = 0; z < size.z; ++z) {
      for (int y = 0; y < size.y; ++y) {
        for (int x = 0; x < size.x; ++x) m.push_back(static_cast<float>((x + y + z) % 2));
      }
    }
    const PreparedImage fixed = Prepare(f, grid), moving = Prepare(m, moving_grid);
    const auto measured = MeasureIntensityRelation(ctx(), Images(fixed, moving, {}), AffineMap::Identity());
    ASSERT_OK(measured.status());
    EXPECT_EQ(measured->has_value(), is_small);
  }
}

// A fixed image is never read at a level of more voxels, although its mask may select none at that of fewer.
TEST_P(IntensityRelationOnDeviceTest, SaysNothingWhereAMaskVanishes) {
  const Geometry grid{.size = {72, 66, 64}};
  const std::vector<float> f = RandomFloats(grid.voxels(), 1);
  const PreparedImage image = Prepare(f, grid);
  RegistrationImages images = Images(image, image, {});
  EXPECT_TRUE(MeasureIntensityRelation(ctx(), images, AffineMap::Identity())->has_value());
  for (std::vector<MaskLevel>* masks : {&images.fixed_masks, &images.moving_masks}) {
    const int64_t count = std::exchange((*masks)[1].count, 0);
    const auto measured = MeasureIntensityRelation(ctx(), images, AffineMap::Identity());
    ASSERT_OK(measured.status());
    EXPECT_FALSE(measured->has_value());
    (*masks)[1].count = count;
  }
}

}  // namespace
}  // namespace intrawarp
