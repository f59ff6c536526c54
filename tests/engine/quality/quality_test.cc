// SPDX-License-Identifier: Apache-2.0
#include "engine/quality/quality.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "engine/quality/deformation_gate.h"
#include "engine/transform/control_grid.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// --- The reference: everything in float64, written as the definitions are ---

struct Image {
  std::vector<float> values;
  Geometry geometry;
};

int64_t Place(Int3 size, int x, int y, int z) { return (int64_t{z} * size.y + y) * size.x + x; }

template <typename Body>
void ForEachVoxel(Int3 size, const Body& body) {
  for (int z = 0; z < size.z; ++z)
    for (int y = 0; y < size.y; ++y)
      for (int x = 0; x < size.x; ++x) body(x, y, z);
}

bool Inside(Int3 size, Vec3d index) {
  for (int a = 0; a < 3; ++a)
    if (index[a] < -0.5 || index[a] > size[a] - 0.5) return false;
  return true;
}

double ReferenceSample(const std::vector<float>& data, Int3 size, Vec3d index, int components = 1, int component = 0) {
  int lower[3];
  double weight[3];
  for (int a = 0; a < 3; ++a) {
    const double clamped = std::clamp(index[a], 0.0, size[a] - 1.0);
    lower[a] = static_cast<int>(clamped);
    weight[a] = clamped - lower[a];
  }
  double sum = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double w = 1;
    int at[3];
    for (int a = 0; a < 3; ++a) {
      const bool upper = corner >> a & 1;
      w *= upper ? weight[a] : 1 - weight[a];
      at[a] = lower[a] + upper;
    }
    if (w != 0) sum += w * data[components * Place(size, at[0], at[1], at[2]) + component];
  }
  return sum;
}

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

AffineMap MeetingAffine(const Geometry& fixed, const Geometry& moving) {
  AffineMap a;
  const double m[3][3] = {{0.97, -0.21, 0.05}, {0.18, 1.04, -0.11}, {-0.02, 0.13, 0.92}};
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) a.m[r][c] = m[r][c];
  const Vec3d from = a.Linear(Center(fixed)), to = Center(moving);
  for (int r = 0; r < 3; ++r) a.m[r][3] = to[r] - from[r];
  return a;
}

class QualityTest : public DeviceTest {
 protected:
  PreparedImage Prepare(const Image& image) {
    absl::StatusOr<PreparedImage> prepared =
        PreparedImage::Prepare(ctx(), image.values.data(), PixelType::kFloat32, 1, 0, image.geometry);
    EXPECT_OK(prepared) << prepared.status();
    return *std::move(prepared);
  }
  ConstMaskView Mask(const std::vector<uint8_t>& mask, const Geometry& g) {
    return mask.empty() ? ConstMaskView{} : ConstMaskView{Upload(mask), g};
  }
  Transform MakeDisplacement(const std::vector<float>& values, const Geometry& domain) {
    Buffer memory = *device().Allocate(values.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), values.data(), values.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Transform(std::move(memory), domain);
  }
  Transform MakeSpline(const std::vector<float>& points, const Geometry& grid, const AffineMap& affine) {
    Buffer memory = *device().Allocate(points.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device().Copy(memory.as<float>(), points.data(), points.size() * sizeof(float), ctx().stream()));
    EXPECT_OK(device().Synchronize(ctx().stream()));
    return Transform(affine, std::move(memory), grid, std::nullopt);
  }
  SimilarityResult Measure(const Image& fixed, const Image& moving, const Transform& transform,
                           const std::vector<uint8_t>& fixed_mask = {}, const std::vector<uint8_t>& moving_mask = {}) {
    const PreparedImage f = Prepare(fixed), m = Prepare(moving);
    // Exactly as much workspace as is said to be needed, and none of it zero.
    OwnedContext owned =
        *OwnedContext::Create(device(), SimilarityWorkspaceBytes(fixed.geometry, transform.has_control_grid()));
    const ExecContext exact = owned.context();
    {
      ArenaScope scope(exact.arena());
      void* all = *exact.arena().AllocateBytes(exact.arena().capacity());
      EXPECT_OK(device().Fill(all, 0xff, exact.arena().capacity(), exact.stream()));
    }
    const absl::StatusOr<SimilarityResult> result =
        MeasureSimilarity(exact, f, m, Mask(fixed_mask, fixed.geometry), Mask(moving_mask, moving.geometry), transform);
    EXPECT_OK(result) << result.status();
    EXPECT_EQ(exact.arena().used(), 0u);
    return *result;
  }
};
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

// u of a control grid and its derivatives along its index axes, by the definition: control points within two nodes.
Vec3d ReferenceSpline(const std::vector<float>& points, const Geometry& grid, Vec3d p, int derivative = -1) {
  const Vec3d index = PhysicalToIndex(grid)(p);
  for (int a = 0; a < 3; ++a) {
    const bool flat = grid.size[a] == 1;
    if (index[a] < (flat ? -0.5 : 1) || index[a] > (flat ? 0.5 : grid.size[a] - 2)) return {};
  }
  const auto weight = [&](int axis, int node) {
    const double x = index[axis] - node, a = std::abs(x), sign = x < 0 ? -1 : 1;
    if (grid.size[axis] == 1) return axis == derivative ? 0.0 : 1.0;
    if (axis == derivative) return a < 1 ? sign * (1.5 * a * a - 2 * a) : a < 2 ? -sign * (2 - a) * (2 - a) / 2 : 0;
    return a < 1 ? 2.0 / 3 - a * a + a * a * a / 2 : a < 2 ? std::pow(2 - a, 3) / 6 : 0;
  };
  Vec3d u;
  ForEachVoxel(grid.size, [&](int x, int y, int z) {
    const double w = weight(0, x) * weight(1, y) * weight(2, z);
    for (int c = 0; c < 3; ++c) u[c] += w * points[3 * Place(grid.size, x, y, z) + c];
  });
  return u;
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

// --- Jacobian ---

// det(grad T) by the definition: central differences of T at the voxels (one-sided at the faces).
double ReferenceJacobian(const std::function<Vec3d(Vec3d)>& transform, const Geometry& g, Int3 v) {
  AffineMap d = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) {
    Vec3d low{double(v.x), double(v.y), double(v.z)}, high = low;
    double steps = 2;
    if (g.size[a] == 1) {
      // Nothing is known across a plane; the transform is taken not to stretch it.
      for (int r = 0; r < 3; ++r) d.m[r][a] = g.direction[r][a] * g.spacing[a];
      continue;
    }
    v[a] > 0 ? low[a] -= 1 : steps -= 1;
    v[a] < g.size[a] - 1 ? high[a] += 1 : steps -= 1;
    const Vec3d difference = transform(IndexToPhysical(g)(high)) - transform(IndexToPhysical(g)(low));
    for (int r = 0; r < 3; ++r) d.m[r][a] = difference[r] / steps;
  }
  return Determinant(d) / Determinant(IndexToPhysical(g));
}

TEST_P(QualityTest, JacobianOfAnAffineMapIsItsDeterminant) {
  const Geometry g = ObliqueGeometry({5, 4, 3});
  AffineMap a = MeetingAffine(g, g);
  absl::StatusOr<JacobianStatistics> j = MeasureJacobian(ctx(), Transform(a), g);
  ASSERT_OK(j);
  EXPECT_EQ(j->min, Determinant(a));
  EXPECT_EQ(j->max, Determinant(a));
  EXPECT_EQ(j->nonpositive_fraction, 0);
  for (int c = 0; c < 4; ++c) a.m[0][c] *= -1;
  j = MeasureJacobian(ctx(), Transform(a), g);
  ASSERT_OK(j);
  EXPECT_LT(j->max, 0);
  EXPECT_EQ(j->nonpositive_fraction, 1);
}

TEST_P(QualityTest, JacobianOfADisplacementEqualsReference) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{2, 3, 2}, Int3{23, 19, 1}, Int3{37, 31, 17}}) {
    for (bool same_grid : {true, false}) {
      const Geometry fixed = ObliqueGeometry(size);
      Geometry domain = fixed;
      if (!same_grid) {
        // Shifted in its plane, so that a 2-D image meets it.
        domain = ObliqueGeometry({size.x + 1, size.y + 2, size.z}, true);
        domain.origin = domain.origin +
                        IndexToPhysical(fixed)({size.x / 2 + 0.23, size.y / 2 + 0.31, size.z / 2 + 0.0}) -
                        Center(domain);
        domain.spacing.z *= size.z > 1 ? 1.1 : 1;
      }
      const std::vector<float> u = RandomFloats(3 * domain.voxels(), 22, -0.8f, 0.8f);
      const auto transform = [&](Vec3d p) {
        const Vec3d index = PhysicalToIndex(domain)(p);
        // On its own grid a face's voxel is inside, whatever the rounding.
        if (!Inside(domain.size, index)) return p;
        Vec3d q = p;
        for (int c = 0; c < 3; ++c) q[c] += ReferenceSample(u, domain.size, index, 3, c);
        return q;
      };
      double low = 1e9, high = -1e9, nonpositive = 0;
      ForEachVoxel(size, [&](int x, int y, int z) {
        const double j = ReferenceJacobian(transform, fixed, {x, y, z});
        low = std::min(low, j);
        high = std::max(high, j);
        nonpositive += j <= 0;
      });
      OwnedContext owned = *OwnedContext::Create(device(), JacobianWorkspaceBytes(fixed));
      const absl::StatusOr<JacobianStatistics> result =
          MeasureJacobian(owned.context(), MakeDisplacement(u, domain), fixed);
      ASSERT_OK(result) << result.status();
      EXPECT_NEAR(result->min, low, 1e-4) << SizeString(fixed) << same_grid;
      EXPECT_NEAR(result->max, high, 1e-4) << SizeString(fixed) << same_grid;
      EXPECT_NEAR(result->nonpositive_fraction, nonpositive / fixed.voxels(), 1e-9);
      if (size.z == 17) {
        EXPECT_GT(nonpositive, 0);
      }
    }
  }
}

TEST_P(QualityTest, JacobianOfALinearDisplacementIsConstantUpToTheFaces) {
  const Geometry g = ObliqueGeometry({20, 18, 16}, true);
  const AffineMap a = MeetingAffine(g, g);
  std::vector<float> u;
  ForEachVoxel(g.size, [&](int x, int y, int z) {
    const Vec3d p = IndexToPhysical(g)({double(x), double(y), double(z)}), d = a(p) - p;
    u.insert(u.end(), {static_cast<float>(d.x), static_cast<float>(d.y), static_cast<float>(d.z)});
  });
  const absl::StatusOr<JacobianStatistics> j = MeasureJacobian(ctx(), MakeDisplacement(u, g), g);
  ASSERT_OK(j);
  EXPECT_NEAR(j->min, Determinant(a), 1e-5);
  EXPECT_NEAR(j->max, Determinant(a), 1e-5);
}

TEST_P(QualityTest, JacobianOfAControlGridIsExact) {
  for (bool flat : {false, true}) {
    const Geometry g = ObliqueGeometry({27, 21, flat ? 1 : 11});
    const Geometry grid = *MakeControlGrid(g, {5, 5, 9});
    const std::vector<float> points = RandomFloats(3 * grid.voxels(), 34, -14, 14);
    const AffineMap affine = MeetingAffine(g, g), to_index = PhysicalToIndex(grid);
    double low = 1e9, high = -1e9, nonpositive = 0;
    ForEachVoxel(g.size, [&](int x, int y, int z) {
      const Vec3d p = IndexToPhysical(g)({double(x), double(y), double(z)});
      AffineMap j = AffineMap::Identity();
      for (int a = 0; a < 3; ++a) {
        const Vec3d d = ReferenceSpline(points, grid, p, a);
        for (int r = 0; r < 3; ++r)
          for (int c = 0; c < 3; ++c) j.m[r][c] += d[r] * to_index.m[a][c];
      }
      const double determinant = Determinant(affine) * Determinant(j);
      low = std::min(low, determinant);
      high = std::max(high, determinant);
      nonpositive += determinant <= 0;
    });
    OwnedContext owned = *OwnedContext::Create(device(), JacobianWorkspaceBytes(g, /*has_control_grid=*/true));
    const absl::StatusOr<JacobianStatistics> result =
        MeasureJacobian(owned.context(), MakeSpline(points, grid, affine), g);
    ASSERT_OK(result) << result.status();
    EXPECT_NEAR(result->min, low, 1e-4 + 1e-5 * std::abs(low));
    EXPECT_NEAR(result->max, high, 1e-4 + 1e-5 * std::abs(high));
    EXPECT_NEAR(result->nonpositive_fraction, nonpositive / g.voxels(), 1e-9);
    EXPECT_GT(nonpositive, 0);
  }
}

// --- Verdict ---

std::vector<ReviewCause> Causes(const QualityReport& report, bool worse_than_start, bool converged) {
  const Ending ending = converged ? Ending::kConverged : Ending::kUnfinished;
  std::vector<ReviewCause> causes;
  for (const ReviewReason& reason : ReviewReasons(report, worse_than_start, ending)) causes.push_back(reason.cause);
  return causes;
}

TEST(ReviewReasonsTest, AStartWithoutAMarginAndMirroredImages) {
  QualityReport report;
  report.overlap = 1;
  report.start_margin = kLeastStartMargin;
  report.mirror_lead = kMostMirrorLead;
  EXPECT_THAT(Causes(report, false, true), ElementsAre());
  report.start_margin = 0.09;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  report.error = ErrorEstimate{.expected_mm = 1, .bound_mm = 6, .agreement = kCertainAgreement, .reach_mm = 6};
  EXPECT_THAT(Causes(report, false, true), IsEmpty());
  report.error->agreement = 0.7;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  // Blocks that agree, and would agree elsewhere as well.
  report.error->agreement = 1;
  report.error->bound_mm = 6.1;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  // Blocks that a deformation made agree say nothing about its start; its affine part does.
  report.error->bound_mm = 2;
  report.is_deformed = true;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  report.error->affine_agreement = 0.7;
  report.error->affine_bound_mm = 2;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  report.error->affine_agreement = kCertainAgreement;
  EXPECT_THAT(Causes(report, false, true), IsEmpty());
  report.error->affine_bound_mm = 6.1;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kAmbiguousStart));
  report.error.reset();
  report.mirror_lead = 0.03;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_EQ(reasons[0].value, 0.09);
  EXPECT_EQ(reasons[0].limit, kLeastStartMargin);
  EXPECT_EQ(reasons[1].cause, ReviewCause::kMirrored);
  EXPECT_EQ(reasons[1].value, 0.03);
  EXPECT_EQ(reasons[1].limit, kMostMirrorLead);
  EXPECT_STREQ(ReviewText(ReviewCause::kAmbiguousStart), "ambiguous start");
  EXPECT_STREQ(ReviewText(ReviewCause::kMirrored), "mirrored images");
}

TEST(ReviewReasonsTest, SaysWhyAPersonShouldLook) {
  QualityReport report;
  report.overlap = 0.9;
  EXPECT_THAT(Causes(report, false, true), IsEmpty());
  report.overlap = kLowOverlap;
  EXPECT_THAT(Causes(report, false, true), IsEmpty());
  report.overlap = 0.39;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kLowOverlap));
  report.overlap = NAN;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kLowOverlap));
  report.overlap = 1;
  EXPECT_THAT(Causes(report, true, true), ElementsAre(ReviewCause::kWorseThanStart));
  EXPECT_THAT(Causes(report, false, false), ElementsAre(ReviewCause::kNotConverged));
  report.jacobian.nonpositive_fraction = 1e-6;
  EXPECT_THAT(Causes(report, false, true), ElementsAre(ReviewCause::kFolding));
  report.overlap = 0;
  EXPECT_THAT(Causes(report, true, false), ElementsAre(ReviewCause::kWorseThanStart, ReviewCause::kFolding,
                                                       ReviewCause::kLowOverlap, ReviewCause::kNotConverged));
}

// A map with stated stretches between two rotations.
AffineMap Stretch(Vec3d stretches, bool mirrored) {
  const auto rotation = [](double angle, int axis) {
    AffineMap r = AffineMap::Identity();
    const int a = (axis + 1) % 3, b = (axis + 2) % 3;
    r.m[a][a] = r.m[b][b] = std::cos(angle);
    r.m[a][b] = -std::sin(angle);
    r.m[b][a] = std::sin(angle);
    return r;
  };
  AffineMap scale = AffineMap::Identity();
  for (int a = 0; a < 3; ++a) scale.m[a][a] = stretches[a];
  if (mirrored) scale.m[1][1] *= -1;
  const AffineMap before = Compose(rotation(0.7, 0), rotation(-1.9, 1));
  AffineMap after = Compose(rotation(2.4, 2), rotation(0.3, 1));
  after.m[0][3] = 300;
  return Compose(after, Compose(scale, before));
}

TEST(AffineShapeTest, StretchesAreTheSingularValues) {
  for (const Vec3d expected : {Vec3d{1, 1, 1}, Vec3d{0.01, 1, 1.5}, Vec3d{0.2, 0.5, 3}, Vec3d{0.9, 0.9, 40}}) {
    for (const bool mirrored : {false, true}) {
      const AffineShape shape = ShapeOf(Stretch(expected, mirrored));
      EXPECT_NEAR(shape.min_stretch, expected.x, 1e-7 * (1 + expected.z));
      EXPECT_NEAR(shape.max_stretch, expected.z, 1e-7 * (1 + expected.z));
      EXPECT_EQ(shape.mirrors, mirrored && expected.x > 0);
    }
  }
}

TEST(ReviewReasonsTest, AnAffineMapThatNoBodyNeedsIsForAPersonToSee) {
  QualityReport report;
  report.overlap = 1;
  AffineMap map = AffineMap::Identity();
  const auto judge = [&](double scale) {
    map.m[1][1] = scale;
    report.affine = ShapeOf(map);
    return ReviewReasons(report, false, Ending::kConverged);
  };
  EXPECT_THAT(judge(kLeastStretch), IsEmpty());
  EXPECT_THAT(judge(kMostStretch), IsEmpty());
  for (const double scale : {0.01, 0.49, 2.01, -1.0, 0.0}) {
    const std::vector<ReviewReason> reasons = judge(scale);
    ASSERT_EQ(reasons.size(), 1u) << scale;
    EXPECT_EQ(reasons[0].cause, ReviewCause::kImplausibleAffine);
    EXPECT_STREQ(ReviewText(reasons[0].cause), "implausible affine map");
  }
  EXPECT_NEAR(*judge(0.01)[0].value, 0.01, 1e-12);
  EXPECT_EQ(judge(0.01)[0].limit, kLeastStretch);
  EXPECT_EQ(judge(3)[0].limit, kMostStretch);
  EXPECT_EQ(judge(-1)[0].value, -1.0);
}

TEST(ReviewReasonsTest, SaysWhatItJudgedByWhat) {
  QualityReport report;
  report.overlap = 0.25;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, true, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_FALSE(reasons[0].value || reasons[0].limit);
  EXPECT_EQ(reasons[1].value, 0.25);
  EXPECT_EQ(reasons[1].limit, kLowOverlap);
  EXPECT_STREQ(ReviewText(reasons[1].cause), "low overlap");
}

QualityReport WithError(double expected_mm, double agreement) {
  QualityReport report;
  report.overlap = 1;
  report.error = ErrorEstimate{.expected_mm = expected_mm, .agreement = agreement, .chance = 0.1};
  return report;
}

TEST(ReviewReasonsTest, AnErrorAboveItsLimitIsForAPersonToSee) {
  EXPECT_THAT(ReviewReasons(WithError(5, 1), false, Ending::kConverged), IsEmpty());
  const std::vector<ReviewReason> reasons = ReviewReasons(WithError(5.1, 1), false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kErrorAboveLimit);
  EXPECT_EQ(reasons[0].value, 5.1);
  EXPECT_EQ(reasons[0].limit, kDefaultErrorLimitMm);
  EXPECT_THAT(ReviewReasons(WithError(5.1, 1), false, Ending::kConverged, 6), IsEmpty());
  EXPECT_EQ(ReviewReasons(WithError(NAN, 1), false, Ending::kConverged).size(), 1u);
}

// A probe of 40^3 voxels of 0.4 mm searches 1.2 mm: no error that it could see would be above 5 mm.
TEST(ReviewReasonsTest, AnErrorIsHeldAgainstTheReachOfItsJudge) {
  QualityReport report = WithError(0.6, 1);
  report.error->reach_mm = 1.2;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->expected_mm = 0.61;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kErrorAboveLimit);
  EXPECT_EQ(reasons[0].value, 0.61);
  EXPECT_NEAR(*reasons[0].limit, 0.6, 1e-12);
  // A reach beyond the limit changes nothing.
  report = WithError(5.1, 1);
  report.error->reach_mm = 12;
  EXPECT_EQ(ReviewReasons(report, false, Ending::kConverged).at(0).limit, kDefaultErrorLimitMm);
}

TEST(ReviewReasonsTest, FewerClearMatchesThanFixAMapAreForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.error->clear_matches = 4;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->clear_matches = 3.9;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kErrorUnknown);
  EXPECT_EQ(reasons[0].value, 3.9);
  EXPECT_EQ(reasons[0].limit, 4);
  report.error->fixing_points = 3;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
}

TEST(ReviewReasonsTest, ABoundFarAboveTheLimitIsForAPersonToSee) {
  QualityReport report = WithError(4.9, 1);
  report.error->bound_mm = 40;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->bound_mm = 44.8;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kBoundAboveLimit);
  EXPECT_EQ(reasons[0].value, 44.8);
  EXPECT_EQ(reasons[0].limit, 40);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "bound above the limit");
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged, 6), IsEmpty());
}

TEST(ReviewReasonsTest, ARegionThatMatchesByChanceIsForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.error->reach_mm = 9;
  report.error->worst_region_expected_mm = 9;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->worst_region_expected_mm = 9.5;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kSpatiallyUneven);
  EXPECT_EQ(reasons[0].value, 9.5);
  EXPECT_EQ(reasons[0].limit, 9);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "spatially uneven");
}

TEST(ReviewReasonsTest, ADeformationOfWhatIsNotSeenIsForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.error->visible_fraction = 0.6;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.is_deformed = true;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kPartlyVisible);
  EXPECT_EQ(reasons[0].value, 0.6);
  EXPECT_EQ(reasons[0].limit, kLeastVisible);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "partly visible");
  report.error->visible_fraction = kLeastVisible;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
}

TEST(ReviewReasonsTest, UnitsThatDifferAreForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.extent_ratio = kMostExtentRatio;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.extent_ratio = 1000;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kUnitsDiffer);
  EXPECT_EQ(reasons[0].value, 1000);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "units differ");
}

TEST(ReviewReasonsTest, ImagesThatAreNotCorrelatedAreForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  report.is_probed = true;
  report.after.ncc = -0.9;
  // Right for metrics of unlike intensities.
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.takes_like_intensities = true;
  for (const double ncc : {-0.9, 0.0, 0.09}) {
    report.after.ncc = ncc;
    const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
    ASSERT_EQ(reasons.size(), 1u) << ncc;
    EXPECT_EQ(reasons[0].cause, ReviewCause::kNotCorrelated);
    EXPECT_EQ(reasons[0].value, ncc);
    EXPECT_STREQ(ReviewText(reasons[0].cause), "not correlated");
  }
  report.after.ncc = kLeastCorrelation;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  // Undefined: one of the images is constant there.
  report.takes_like_intensities = false;
  report.after.ncc.reset();
  EXPECT_EQ(ReviewReasons(report, false, Ending::kConverged).at(0).cause, ReviewCause::kNotCorrelated);
}

TEST(ReviewReasonsTest, AgreementByChanceIsForAPersonToSee) {
  EXPECT_THAT(ReviewReasons(WithError(1, 0.14), false, Ending::kConverged), IsEmpty());
  const std::vector<ReviewReason> reasons = ReviewReasons(WithError(1, 0.12), false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kUnrelatedImages);
  EXPECT_EQ(reasons[0].value, 0.12);
  EXPECT_NEAR(*reasons[0].limit, 0.13, 1e-12);
  // If each of 9 independent blocks agrees by chance 0.1, two standard deviations more are 0.1 + 2 * 0.1.
  QualityReport few = WithError(1, 0.29);
  few.error->independent_blocks = 9;
  EXPECT_NEAR(*ReviewReasons(few, false, Ending::kConverged).at(0).limit, 0.3, 1e-12);
  few.error->agreement = 0.31;
  EXPECT_THAT(ReviewReasons(few, false, Ending::kConverged), IsEmpty());
}

TEST(ReviewReasonsTest, OutOfIterationsIsNoReasonWhereTheErrorIsSmall) {
  EXPECT_THAT(ReviewReasons(WithError(1, 1), false, Ending::kUnfinished), IsEmpty());
  EXPECT_EQ(ReviewReasons(WithError(1, 1), false, Ending::kCutShort)[0].cause, ReviewCause::kNotConverged);
  EXPECT_EQ(ReviewReasons(WithError(9, 1), false, Ending::kUnfinished).back().cause, ReviewCause::kNotConverged);
  // An estimate that is doubted excuses nothing.
  QualityReport doubted = WithError(1, 1);
  doubted.error->clear_matches = 1;
  EXPECT_EQ(ReviewReasons(doubted, false, Ending::kUnfinished).back().cause, ReviewCause::kNotConverged);
}

TEST(ReviewReasonsTest, ADeformationThatBeganAtNothingInCommonIsForAPersonToSee) {
  QualityReport report = WithError(1, 0.9);
  report.error->bound_mm = 7;
  report.error->reach_mm = 6;
  report.error->affine_agreement = 0.14;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.error->affine_agreement = 0.09;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kUnrelatedImages);
  EXPECT_EQ(reasons[0].value, 0.09);
  EXPECT_NEAR(*reasons[0].limit, 0.13, 1e-12);
  // Matches that are clear at the end are not an accident.
  report.error->bound_mm = 6;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
}

TEST(ReviewReasonsTest, ADeformationThatWasRejectedIsForAPersonToSeeUnlessTheAffinePartStandsByItself) {
  QualityReport report = WithError(1, kCertainAgreement);
  report.rejected_gain = -0.5;
  // The reason is told in any case.
  const auto expect = [&](bool needs_review) {
    const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
    ASSERT_FALSE(reasons.empty());
    EXPECT_EQ(reasons[0].cause, ReviewCause::kDeformationRejected);
    EXPECT_EQ(reasons[0].value, -0.5);
    EXPECT_EQ(reasons[0].limit, kLeastGain);
    EXPECT_EQ(reasons[0].is_told_only, !needs_review);
    EXPECT_EQ(NeedsReview(reasons), needs_review);
  };
  expect(false);
  report.error->agreement = 0.79;
  expect(true);
  report.error->agreement = 1;
  report.error->clear_matches = 12;
  expect(false);
  report.error->clear_matches = 11;
  expect(true);
  report.error->clear_matches = 100;
  report.error->expected_mm = 5.1;
  expect(true);
}

TEST(ReviewReasonsTest, ARejectedDeformationThatIsKeptIsForAPersonToSee) {
  QualityReport report = WithError(1, 1);
  EXPECT_FALSE(NeedsReview(ReviewReasons(report, false, Ending::kConverged)));
  report.rejected_gain = 0.1;
  report.keeps_rejected = true;
  EXPECT_TRUE(NeedsReview(ReviewReasons(report, false, Ending::kConverged)));
  EXPECT_EQ(ReviewReasons(report, false, Ending::kConverged).size(), 1u);
  // No better than the affine part, and kept.
  report.rejected_gain = 0.0;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_EQ(reasons[1].cause, ReviewCause::kNoGain);
  EXPECT_EQ(reasons[1].value, 0);
  EXPECT_EQ(reasons[1].limit, 0);
}

TEST(ReviewReasonsTest, AnErrorThatCannotBeEstimatedIsForAPersonToSee) {
  QualityReport report;
  report.overlap = 1;
  EXPECT_THAT(ReviewReasons(report, false, Ending::kConverged), IsEmpty());
  report.is_probed = true;
  report.after.ncc = 1;
  const std::vector<ReviewReason> reasons = ReviewReasons(report, false, Ending::kConverged);
  ASSERT_EQ(reasons.size(), 1u);
  EXPECT_EQ(reasons[0].cause, ReviewCause::kErrorUnknown);
  EXPECT_STREQ(ReviewText(reasons[0].cause), "error unknown");
}

}  // namespace
}  // namespace intrawarp
