// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/similarity.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/transform/control_grid.h"
#include "tests/engine/device_test.h"
#include "tests/engine/quality/quality_fixture.h"

namespace intrawarp::quality_test {
namespace {

// The pairs (fixed value, warped moving value) at the valid voxels, by place; and how many voxels the fixed mask has.
struct Pairs {
  Int3 size;
  std::vector<bool> valid;
  std::vector<double> f, m;
  int64_t selected = 0;
};

Pairs ReferencePairs(const Image& fixed, const Image& moving, const std::vector<uint8_t>& fixed_mask,
                     const std::vector<uint8_t>& moving_mask, const std::function<Vec3d(Vec3d)>& transform) {
  Pairs p;
  p.size = fixed.geometry.size;
  p.valid.resize(fixed.values.size());
  p.f.resize(fixed.values.size());
  p.m.resize(fixed.values.size());
  const AffineMap to_physical = IndexToPhysical(fixed.geometry), to_index = PhysicalToIndex(moving.geometry);
  const Int3 size = moving.geometry.size;
  ForEachVoxel(p.size, [&](int x, int y, int z) {
    const int64_t i = Place(p.size, x, y, z);
    if (!fixed_mask.empty() && fixed_mask[i] == 0) return;
    ++p.selected;
    Vec3d index = to_index(transform(to_physical({double(x), double(y), double(z)})));
    // A point within rounding of a voxel's centre counts as that centre.
    for (int a = 0; a < 3; ++a)
      if (std::abs(index[a] - std::round(index[a])) < 1e-9) index[a] = std::round(index[a]);
    if (!Inside(size, index)) return;
    if (!moving_mask.empty()) {
      Int3 nearest;
      for (int a = 0; a < 3; ++a) nearest[a] = std::clamp(static_cast<int>(std::floor(index[a] + 0.5)), 0, size[a] - 1);
      if (moving_mask[Place(size, nearest.x, nearest.y, nearest.z)] == 0) return;
    }
    p.valid[i] = true;
    p.f[i] = fixed.values[i];
    p.m[i] = ReferenceSample(moving.values, size, index);
  });
  return p;
}

double ReferenceSsim(const Pairs& p, double range) {
  const double c1 = std::pow(0.01 * range, 2), c2 = std::pow(0.03 * range, 2);
  double gauss[6];
  for (int t = 0; t <= 5; ++t) gauss[t] = std::exp(-t * t / (2 * 1.5 * 1.5));
  double total = 0;
  int64_t count = 0;
  ForEachVoxel(p.size, [&](int x, int y, int z) {
    if (!p.valid[Place(p.size, x, y, z)]) return;
    double w = 0, f = 0, m = 0;
    const auto window = [&](const auto& add) {
      for (int k = std::max(0, z - 5); k <= std::min(p.size.z - 1, z + 5); ++k) {
        for (int j = std::max(0, y - 5); j <= std::min(p.size.y - 1, y + 5); ++j) {
          for (int i = std::max(0, x - 5); i <= std::min(p.size.x - 1, x + 5); ++i) {
            const int64_t at = Place(p.size, i, j, k);
            if (p.valid[at])
              add(gauss[std::abs(i - x)] * gauss[std::abs(j - y)] * gauss[std::abs(k - z)], p.f[at], p.m[at]);
          }
        }
      }
    };
    window([&](double g, double a, double b) {
      w += g;
      f += g * a;
      m += g * b;
    });
    f /= w;
    m /= w;
    double ff = 0, mm = 0, fm = 0;
    window([&](double g, double a, double b) {
      ff += g * (a - f) * (a - f);
      mm += g * (b - m) * (b - m);
      fm += g * (a - f) * (b - m);
    });
    total += (2 * f * m + c1) * (2 * fm / w + c2) / ((f * f + m * m + c1) * (ff / w + mm / w + c2));
    ++count;
  });
  return total / count;
}

int ReferenceBin(double value, const std::vector<float>& image) {
  const auto [low, high] = std::minmax_element(image.begin(), image.end());
  return std::clamp(static_cast<int>(std::floor((value - *low) / (double{*high} - *low) * 64)), 0, 63);
}

double ReferenceNmi(const Pairs& p, const Image& fixed, const Image& moving) {
  std::vector<double> joint(64 * 64), of_fixed(64), of_moving(64);
  double n = 0;
  for (size_t i = 0; i < p.valid.size(); ++i) n += p.valid[i];
  for (size_t i = 0; i < p.valid.size(); ++i) {
    if (!p.valid[i]) continue;
    const int f = ReferenceBin(p.f[i], fixed.values), m = ReferenceBin(p.m[i], moving.values);
    joint[64 * f + m] += 1 / n;
    of_fixed[f] += 1 / n;
    of_moving[m] += 1 / n;
  }
  const auto entropy = [](const std::vector<double>& probabilities) {
    double sum = 0;
    for (double q : probabilities) sum -= q > 0 ? q * std::log(q) : 0;
    return sum;
  };
  return (entropy(of_fixed) + entropy(of_moving)) / entropy(joint);
}

SimilarityResult Reference(const Pairs& p, const Image& fixed, const Image& moving) {
  double n = 0, f = 0, m = 0, squared = 0, absolute = 0;
  for (size_t i = 0; i < p.valid.size(); ++i) {
    if (!p.valid[i]) continue;
    n += 1;
    f += p.f[i];
    m += p.m[i];
    squared += (p.f[i] - p.m[i]) * (p.f[i] - p.m[i]);
    absolute += std::abs(p.f[i] - p.m[i]);
  }
  double ff = 0, mm = 0, fm = 0;
  for (size_t i = 0; i < p.valid.size(); ++i) {
    if (!p.valid[i]) continue;
    ff += (p.f[i] - f / n) * (p.f[i] - f / n);
    mm += (p.m[i] - m / n) * (p.m[i] - m / n);
    fm += (p.f[i] - f / n) * (p.m[i] - m / n);
  }
  const auto [low, high] = std::minmax_element(fixed.values.begin(), fixed.values.end());
  SimilarityResult r;
  r.overlap = n / p.selected;
  r.similarity = {squared / n,
                  squared,
                  absolute / n,
                  fm / std::sqrt(ff * mm),
                  ReferenceNmi(p, fixed, moving),
                  ReferenceSsim(p, double{*high} - *low)};
  return r;
}

// --- Inputs ---

// Random, but with neighbours alike, and offset and scale of its own.
Image SmoothImage(const Geometry& g, uint32_t seed, double offset = 0, double scale = 1) {
  const std::vector<float> noise = RandomFloats(g.voxels() + 3, seed);
  Image image{{}, g};
  ForEachVoxel(g.size, [&](int x, int y, int z) {
    const double wave = std::sin(0.31 * x + noise[g.voxels()]) * std::cos(0.23 * y + noise[g.voxels() + 1]) *
                        std::sin(0.4 * z + 1 + noise[g.voxels() + 2]);
    image.values.push_back(static_cast<float>(offset + scale * (wave + 0.3 * noise[Place(g.size, x, y, z)])));
  });
  return image;
}

std::vector<uint8_t> RandomMask(const Geometry& g, uint32_t seed) {
  const std::vector<float> r = RandomFloats(g.voxels(), seed);
  std::vector<uint8_t> mask;
  for (float v : r) mask.push_back(v < 0.3f ? 0 : v < 0.6f ? 1 : 255);
  return mask;
}

INTRAWARP_INSTANTIATE_DEVICE_TEST(QualityTest);

// `warped`: how far a warped value may be off, as a fraction of the range; it moves values between bins, too.
void ExpectNear(const SimilarityResult& result, const SimilarityResult& expected, double warped, const Image& fixed) {
  const auto [low, high] = std::minmax_element(fixed.values.begin(), fixed.values.end());
  const double range = double{*high} - *low;
  EXPECT_DOUBLE_EQ(result.overlap, expected.overlap);
  const Similarity &s = result.similarity, &e = expected.similarity;
  ASSERT_TRUE(s.mse && s.sse && s.mae && s.ncc && s.nmi && s.ssim);
  EXPECT_NEAR(*s.mse / *e.mse, 1, 1e-8 + 10 * warped);
  EXPECT_NEAR(*s.sse / *e.sse, 1, 1e-8 + 10 * warped);
  EXPECT_NEAR(*s.mae / range, *e.mae / range, 1e-9 + warped);
  EXPECT_NEAR(*s.ncc, *e.ncc, 1e-8 + warped);
  EXPECT_NEAR(*s.nmi, *e.nmi, 1e-8 + (warped > 0 ? 2e-3 : 0));
  EXPECT_NEAR(*s.ssim, *e.ssim, 2e-5);
}

TEST_P(QualityTest, SimilarityOnOneGridEqualsReference) {
  // Sizes around the edges of tiles and windows, in the plane and in space.
  for (Int3 size : {Int3{2, 1, 1}, Int3{7, 5, 3}, Int3{33, 17, 12}, Int3{64, 16, 6}, Int3{32, 15, 37}, Int3{65, 33, 1},
                    Int3{130, 3, 1}, Int3{1, 40, 9}}) {
    SCOPED_TRACE(testing::PrintToString(size.x) + " " + testing::PrintToString(size.y));
    const Geometry g = ObliqueGeometry(size);
    const Image fixed = SmoothImage(g, 1), moving = SmoothImage(g, 2, 0.2, 1.3);
    const Pairs pairs = ReferencePairs(fixed, moving, {}, {}, [](Vec3d p) { return p; });
    ExpectNear(Measure(fixed, moving, Transform(AffineMap::Identity())), Reference(pairs, fixed, moving), 0, fixed);
  }
}

TEST_P(QualityTest, SimilarityRespectsMasks) {
  for (bool flat : {false, true}) {
    const Geometry g = ObliqueGeometry({41, 20, flat ? 1 : 13}, true);
    const Image fixed = SmoothImage(g, 3), moving = SmoothImage(g, 4);
    const std::vector<uint8_t> fixed_mask = RandomMask(g, 5), moving_mask = RandomMask(g, 6);
    const Pairs pairs = ReferencePairs(fixed, moving, fixed_mask, moving_mask, [](Vec3d p) { return p; });
    const SimilarityResult result = Measure(fixed, moving, Transform(AffineMap::Identity()), fixed_mask, moving_mask);
    ExpectNear(result, Reference(pairs, fixed, moving), 0, fixed);
    EXPECT_NEAR(result.overlap, 0.7, 0.05);
  }
}

TEST_P(QualityTest, SimilarityThroughAnAffineMapOfObliqueAndLeftHandedImages) {
  const Geometry fixed_grid = ObliqueGeometry({37, 29, 11}), moving_grid = ObliqueGeometry({31, 40, 9}, true);
  const Image fixed = SmoothImage(fixed_grid, 7), moving = SmoothImage(moving_grid, 8);
  const std::vector<uint8_t> moving_mask = RandomMask(moving_grid, 9);
  const AffineMap a = MeetingAffine(fixed_grid, moving_grid);
  for (const std::vector<uint8_t>& mask : {std::vector<uint8_t>(), moving_mask}) {
    const Pairs pairs = ReferencePairs(fixed, moving, {}, mask, a);
    const SimilarityResult expected = Reference(pairs, fixed, moving);
    ASSERT_GT(expected.overlap, 0.3);
    ASSERT_LT(expected.overlap, 0.99);
    ExpectNear(Measure(fixed, moving, Transform(a), {}, mask), expected, 1e-5, fixed);
  }
}

TEST_P(QualityTest, SimilarityThroughADisplacement) {
  const Geometry g = ObliqueGeometry({25, 22, 9}), domain = ObliqueGeometry({24, 20, 8});
  const Image fixed = SmoothImage(g, 10), moving = SmoothImage(g, 11);
  const std::vector<float> u = RandomFloats(3 * domain.voxels(), 12, -1, 1);
  const Pairs pairs = ReferencePairs(fixed, moving, {}, {}, [&](Vec3d p) {
    const Vec3d index = PhysicalToIndex(domain)(p);
    if (!Inside(domain.size, index)) return p;
    Vec3d q = p;
    for (int c = 0; c < 3; ++c) q[c] += ReferenceSample(u, domain.size, index, 3, c);
    return q;
  });
  ExpectNear(Measure(fixed, moving, MakeDisplacement(u, domain)), Reference(pairs, fixed, moving), 1e-5, fixed);
}

TEST_P(QualityTest, SimilarityThroughAControlGrid) {
  for (bool flat : {false, true}) {
    const Geometry g = ObliqueGeometry({25, 22, flat ? 1 : 9});
    const Geometry grid = *MakeControlGrid(g, {6, 5, 9});
    const Image fixed = SmoothImage(g, 30), moving = SmoothImage(g, 31);
    std::vector<float> points = RandomFloats(3 * grid.voxels(), 32, -1, 1);
    AffineMap affine = AffineMap::Identity();
    for (int r = 0; r < 3; ++r) affine.m[r][3] = 0.7 * g.direction[r][0];
    if (flat) {
      // In its plane.
      for (size_t i = 0; i < points.size(); i += 3)
        for (int r = 2; r >= 0; --r) points[i + r] = static_cast<float>(points[i] * g.direction[r][1]);
    }
    const std::vector<uint8_t> fixed_mask = RandomMask(g, 33);
    const Pairs pairs = ReferencePairs(fixed, moving, fixed_mask, {},
                                       [&](Vec3d p) { return affine(p + ReferenceSpline(points, grid, p)); });
    const SimilarityResult expected = Reference(pairs, fixed, moving);
    ASSERT_GT(expected.overlap, 0.5);
    ExpectNear(Measure(fixed, moving, MakeSpline(points, grid, affine), fixed_mask), expected, 1e-5, fixed);
  }
}

TEST_P(QualityTest, SsimKeepsItsPrecisionFarFromZero) {
  // Like CT with an offset: the variation is small beside the constant part.
  const Geometry g = ObliqueGeometry({30, 24, 10});
  for (double offset : {-1000.0, 3e4}) {
    const Image fixed = SmoothImage(g, 13, offset, 50), moving = SmoothImage(g, 14, offset, 60);
    const Pairs pairs = ReferencePairs(fixed, moving, {}, {}, [](Vec3d p) { return p; });
    ExpectNear(Measure(fixed, moving, Transform(AffineMap::Identity())), Reference(pairs, fixed, moving), 0, fixed);
  }
}

TEST_P(QualityTest, AnImageIsLikeItself) {
  const Image image = SmoothImage(ObliqueGeometry({40, 33, 12}), 15);
  const SimilarityResult r = Measure(image, image, Transform(AffineMap::Identity()));
  EXPECT_EQ(r.overlap, 1);
  // Sampling may round the last voxel of an axis.
  EXPECT_LT(*r.similarity.mse, 1e-14);
  EXPECT_LT(*r.similarity.mae, 1e-8);
  EXPECT_NEAR(*r.similarity.ncc, 1, 1e-12);
  EXPECT_NEAR(*r.similarity.nmi, 2, 1e-12);
  EXPECT_NEAR(*r.similarity.ssim, 1, 1e-6);
}

TEST_P(QualityTest, WithoutOverlapEverythingIsAbsent) {
  const Image image = SmoothImage(ObliqueGeometry({20, 12, 5}), 16);
  AffineMap away = AffineMap::Identity();
  away.m[0][3] = 1e4;
  const std::vector<uint8_t> none(image.values.size(), 0);
  for (const SimilarityResult& r :
       {Measure(image, image, Transform(away)), Measure(image, image, Transform(AffineMap::Identity()), none),
        Measure(image, image, Transform(AffineMap::Identity()), {}, none)}) {
    EXPECT_EQ(r.overlap, 0);
    const Similarity& s = r.similarity;
    EXPECT_FALSE(s.mse || s.sse || s.mae || s.ncc || s.nmi || s.ssim);
  }
}

TEST_P(QualityTest, WhatIsUndefinedForConstantImagesIsAbsent) {
  const Geometry g = ObliqueGeometry({20, 12, 5});
  const Image varied = SmoothImage(g, 17), constant{std::vector<float>(g.voxels(), 3.25f), g};
  const Transform identity(AffineMap::Identity());
  const Similarity fixed_constant = Measure(constant, varied, identity).similarity;
  EXPECT_TRUE(fixed_constant.mse && fixed_constant.sse && fixed_constant.mae);
  EXPECT_FALSE(fixed_constant.ncc || fixed_constant.nmi || fixed_constant.ssim);
  const Similarity moving_constant = Measure(varied, constant, identity).similarity;
  EXPECT_TRUE(moving_constant.mse && moving_constant.ssim);
  EXPECT_FALSE(moving_constant.ncc || moving_constant.nmi);
  EXPECT_LT(*moving_constant.ssim, 0.5);

  // Constant where the mask looks.
  Image corner = varied;
  std::vector<uint8_t> mask(g.voxels(), 0);
  for (int i = 0; i < 50; ++i) {
    corner.values[i] = 0.1f;
    mask[i] = 1;
  }
  const Similarity masked = Measure(corner, varied, identity, mask).similarity;
  EXPECT_TRUE(masked.mse && masked.ssim);
  EXPECT_FALSE(masked.ncc || masked.nmi);

  const Geometry single = ObliqueGeometry({1, 1, 1});
  const SimilarityResult one = Measure({{2.0f}, single}, {{5.0f}, single}, identity);
  EXPECT_EQ(one.overlap, 1);
  EXPECT_EQ(one.similarity.mse, 9);
  EXPECT_EQ(one.similarity.mae, 3);
  EXPECT_FALSE(one.similarity.ncc || one.similarity.nmi || one.similarity.ssim);
}

TEST_P(QualityTest, SimilarityIsBitIdenticalFromRunToRun) {
  // Several pieces and tiles on each axis.
  const Geometry g = ObliqueGeometry({100, 90, 40});
  const Image fixed = SmoothImage(g, 18), moving = SmoothImage(g, 19);
  const Transform transform(MeetingAffine(g, g));
  const Similarity first = Measure(fixed, moving, transform).similarity;
  for (int i = 0; i < 3; ++i) {
    const Similarity again = Measure(fixed, moving, transform).similarity;
    EXPECT_EQ(first.mse, again.mse);
    EXPECT_EQ(first.mae, again.mae);
    EXPECT_EQ(first.ncc, again.ncc);
    EXPECT_EQ(first.nmi, again.nmi);
    EXPECT_EQ(first.ssim, again.ssim);
  }
}

TEST_P(QualityTest, MaskMustLieOnItsImage) {
  const Image fixed = SmoothImage(ObliqueGeometry({20, 12, 5}), 20),
              moving = SmoothImage(ObliqueGeometry({9, 8, 7}), 21);
  const PreparedImage f = Prepare(fixed), m = Prepare(moving);
  const ConstMaskView of_fixed = Mask(std::vector<uint8_t>(fixed.values.size(), 1), fixed.geometry);
  const ConstMaskView of_moving = Mask(std::vector<uint8_t>(moving.values.size(), 1), moving.geometry);
  const Transform identity(AffineMap::Identity());
  const absl::Status a = MeasureSimilarity(ctx(), f, m, of_moving, {}, identity).status();
  EXPECT_EQ(a.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(a.message()), testing::StartsWith("fixed_mask: "));
  const absl::Status b = MeasureSimilarity(ctx(), f, m, of_fixed, of_fixed, identity).status();
  EXPECT_EQ(b.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(b.message()), testing::StartsWith("moving_mask: "));
}

}  // namespace
}  // namespace intrawarp::quality_test
