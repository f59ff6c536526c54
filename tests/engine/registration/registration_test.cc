// SPDX-License-Identifier: Apache-2.0
// Registration of images whose transform is known: an analytic body, sampled on both grids.
#include "engine/registration/registration.h"

#include <cmath>
#include <cstring>
#include <variant>

#include "engine/base/field_error.h"
#include "engine/registration/validate.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

// A smooth body of ellipsoids in a dark surround, LPS mm about the origin; 2-D images see its plane z = 0.
double Anatomy(Vec3d p) {
  struct Blob {
    Vec3d center, radius;
    double value;
  };
  static const Blob blobs[] = {
      {{0, 0, 0}, {52, 40, 46}, 60},   {{18, -6, 4}, {20, 16, 22}, 45}, {{-22, 8, -6}, {12, 15, 13}, -35},
      {{-6, -20, 12}, {9, 7, 8}, 70},  {{6, 22, -14}, {10, 8, 11}, 55}, {{-30, -10, 14}, {7, 9, 6}, 50},
      {{30, 12, -10}, {8, 6, 9}, -40}, {{0, 2, 24}, {14, 10, 7}, -25},  {{8, -4, -26}, {11, 12, 8}, 40},
  };
  double sum = 0;
  for (const Blob& b : blobs) {
    const Vec3d d = p - b.center;
    const double r = std::sqrt(d.x * d.x / (b.radius.x * b.radius.x) + d.y * d.y / (b.radius.y * b.radius.y) +
                               d.z * d.z / (b.radius.z * b.radius.z));
    sum += b.value / (1 + std::exp((r - 1) * 9));
  }
  return sum;
}

bool InBody(Vec3d p) { return p.x * p.x / (52 * 52) + p.y * p.y / (40 * 40) + p.z * p.z / (46 * 46) < 1; }

AffineMap RandomAffine(uint32_t seed, bool is_2d, bool rigid) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> u(-1, 1);
  AffineMap shape = AffineMap::Identity();
  if (!rigid) {
    for (int i = 0; i < 3; ++i) shape.m[i][i] = 1 + 0.15 * u(engine);
    shape.m[0][1] = 0.1 * u(engine);
    if (!is_2d) shape.m[0][2] = 0.1 * u(engine), shape.m[1][2] = 0.1 * u(engine);
  }
  if (is_2d) shape.m[2][2] = 1;
  Vec3d axis{u(engine), u(engine), u(engine)};
  if (is_2d) axis = {0, 0, 1};
  axis = (1 / std::sqrt(Dot(axis, axis))) * axis;
  const double angle = u(engine) * 20 * M_PI / 180, c = std::cos(angle), s = std::sin(angle);
  AffineMap turn;
  const double k[3][3] = {{0, -axis.z, axis.y}, {axis.z, 0, -axis.x}, {-axis.y, axis.x, 0}};
  for (int r = 0; r < 3; ++r)
    for (int q = 0; q < 3; ++q) turn.m[r][q] = (r == q ? c : 0) + (1 - c) * axis[r] * axis[q] + s * k[r][q];
  AffineMap a = Compose(turn, shape);
  for (int r = 0; r < (is_2d ? 2 : 3); ++r) a.m[r][3] = 30 * u(engine);
  return a;
}

struct Pair {
  Geometry fixed_grid, moving_grid;
  std::vector<float> fixed, moving;
  AffineMap truth;
};

// moving(y) = anatomy(y), fixed(x) = anatomy(T(x)); the grids are placed about the body.
Pair MakePair(Geometry f, Geometry m, const AffineMap& truth, bool inverted) {
  Pair pair;
  pair.truth = truth;
  const auto place = [](Geometry& g, Vec3d center) {
    const Vec3d c = Center(g);
    g.origin = g.origin + (center - c);
  };
  place(m, {0, 0, 0});
  const Vec3d body = Inverse(pair.truth)({0, 0, 0});
  place(f, {0.7 * body.x, 0.7 * body.y, f.is_2d() ? 0 : 0.7 * body.z});
  const auto sample = [&](const Geometry& g, const AffineMap& t) {
    std::vector<float> values;
    const AffineMap to_physical = IndexToPhysical(g);
    for (int z = 0; z < g.size.z; ++z)
      for (int y = 0; y < g.size.y; ++y)
        for (int x = 0; x < g.size.x; ++x) {
          values.push_back(static_cast<float>(Anatomy(t(to_physical({double(x), double(y), double(z)})))));
        }
    return values;
  };
  pair.fixed_grid = f;
  pair.moving_grid = m;
  pair.fixed = sample(f, pair.truth);
  pair.moving = sample(m, AffineMap::Identity());
  if (inverted) {
    for (float& v : pair.moving) v = 700 - 3.7f * v;
  }
  return pair;
}

// Grids of different size, spacing and handedness.
Pair MakePair(uint32_t seed, bool is_2d, bool rigid, bool inverted) {
  Geometry f{.size = {72, 63, is_2d ? 1 : 58}, .spacing = {2.25, 2.25, 2.5}};
  Geometry m{.size = {77, 70, is_2d ? 1 : 66}, .spacing = {2, 2.2, 2.1}};
  m.direction[0][0] = -1;  // left-handed
  return MakePair(f, m, RandomAffine(seed, is_2d, rigid), inverted);
}

// Mean distance between found and true transform over the body's voxels, in fixed voxels.
double MeanErrorVoxels(const Pair& pair, const AffineMap& found) {
  const AffineMap to_physical = IndexToPhysical(pair.fixed_grid);
  double sum = 0;
  int count = 0;
  for (int z = 0; z < pair.fixed_grid.size.z; ++z)
    for (int y = 0; y < pair.fixed_grid.size.y; ++y)
      for (int x = 0; x < pair.fixed_grid.size.x; ++x) {
        const Vec3d p = to_physical({double(x), double(y), double(z)});
        if (!InBody(pair.truth(p))) continue;
        const Vec3d d = found(p) - pair.truth(p);
        sum += std::sqrt(Dot(d, d));
        ++count;
      }
  return sum / count / pair.fixed_grid.spacing.x;
}

class RegistrationTest : public DeviceTest {
 protected:
  PreparedImage Prepare(const std::vector<float>& values, const Geometry& grid) {
    absl::StatusOr<PreparedImage> image = PreparedImage::Prepare(ctx(), values.data(), PixelType::kFloat32, 1, 0, grid);
    EXPECT_OK(image) << image.status();
    return *std::move(image);
  }
  absl::StatusOr<RegistrationResult> Run(const Pair& pair, std::vector<StageOptions> stages,
                                         CheckpointFn checkpoint = nullptr) {
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    RegistrationInput input{&fixed, &moving, nullptr, nullptr, std::move(stages), std::nullopt};
    EXPECT_LE(RegistrationWorkspaceBytes(device(), input), static_cast<int64_t>(kWorkspaceBytes));
    return Register(ctx(std::move(checkpoint)), input);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(RegistrationTest);

TEST_P(RegistrationTest, RecoversRandomAffineMapsWithSsd) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    const Pair pair = MakePair(seed, false, false, false);
    absl::StatusOr<RegistrationResult> result = Run(pair, {AffineOptions{MetricKind::kSsd}});
    ASSERT_OK(result) << result.status();
    EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), 0.05) << "seed " << seed;
    EXPECT_EQ(result->stop_reason, StopReason::kConverged) << "seed " << seed;
    EXPECT_FALSE(result->worse_than_start);
    ASSERT_FALSE(result->stages[0].levels.empty());
    EXPECT_LE(result->stages[0].levels.back().value_after, result->stages[0].levels.back().value_before);
  }
}

TEST_P(RegistrationTest, RecoversRandomAffineMapsWithNgfOnInvertedIntensities) {
  for (uint32_t seed = 11; seed <= 16; ++seed) {
    const Pair pair = MakePair(seed, false, false, true);
    absl::StatusOr<RegistrationResult> result = Run(pair, {AffineOptions{MetricKind::kNgf}});
    ASSERT_OK(result) << result.status();
    EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), 0.3) << "seed " << seed;
  }
}

TEST_P(RegistrationTest, RecoversRandomMapsIn2d) {
  for (uint32_t seed = 21; seed <= 26; ++seed) {
    for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
      const Pair pair = MakePair(seed, true, false, metric == MetricKind::kNgf);
      absl::StatusOr<RegistrationResult> result = Run(pair, {AffineOptions{metric}});
      ASSERT_OK(result) << result.status();
      EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), metric == MetricKind::kSsd ? 0.05 : 0.3)
          << "seed " << seed;
      EXPECT_NEAR(std::abs(Determinant(result->transform.affine())), std::abs(Determinant(pair.truth)), 0.02);
    }
  }
}

// The same tissue has other intensities in the moving image, which neither rise nor fall with those of the fixed one.
void ChangeIntensities(Pair* pair) {
  for (float& v : pair->moving) v = 400 + 0.07f * (v - 85) * (v - 85);
}

// Intensities that a smooth gain of 0.7 to 1.3 multiplies, as that of a surface coil.
void ApplyGain(Pair* pair) {
  const AffineMap to_physical = IndexToPhysical(pair->moving_grid);
  const Int3 n = pair->moving_grid.size;
  for (int64_t i = 0; i < pair->moving_grid.voxels(); ++i) {
    const int64_t row = i / n.x, plane = row / n.y;
    const Vec3d p =
        to_physical({static_cast<double>(i % n.x), static_cast<double>(row % n.y), static_cast<double>(plane)});
    pair->moving[i] *= static_cast<float>(1 + 0.3 * std::sin(p.x / 30 + 0.5) * std::cos(p.y / 35 + p.z / 40));
  }
}

struct MetricCase {
  MetricKind metric;
  void (*change)(Pair*);
  double tolerance;  // voxels
};
constexpr MetricCase kMetricCases[] = {{MetricKind::kNmi, ChangeIntensities, 0.25},
                                       {MetricKind::kLncc, ApplyGain, 0.4}};

std::string Describe(const MetricCase& of, bool is_2d, uint32_t seed) {
  return std::string(MetricName(of.metric)) + (is_2d ? ", 2-D" : ", 3-D") + ", seed " + std::to_string(seed);
}

TEST_P(RegistrationTest, RecoversAffineMapsBetweenUnlikeIntensities) {
  for (const MetricCase& of : kMetricCases) {
    for (bool is_2d : {false, true}) {
      for (uint32_t seed = 41; seed <= 44; ++seed) {
        SCOPED_TRACE(Describe(of, is_2d, seed));
        Pair pair = MakePair(seed, is_2d, false, false);
        of.change(&pair);
        absl::StatusOr<RegistrationResult> result = Run(pair, {AffineOptions{of.metric}});
        ASSERT_OK(result) << result.status();
        EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), of.tolerance);
        EXPECT_FALSE(result->worse_than_start);
      }
    }
  }
}

TEST_P(RegistrationTest, RecoversRigidMapsBetweenUnlikeIntensities) {
  for (const MetricCase& of : kMetricCases) {
    for (bool is_2d : {false, true}) {
      for (uint32_t seed = 51; seed <= 54; ++seed) {
        SCOPED_TRACE(Describe(of, is_2d, seed));
        Pair pair = MakePair(seed, is_2d, true, false);
        of.change(&pair);
        absl::StatusOr<RegistrationResult> result = Run(pair, {RigidOptions{of.metric}});
        ASSERT_OK(result) << result.status();
        EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), of.tolerance);
        EXPECT_NEAR(std::abs(Determinant(result->transform.affine())), 1, 1e-9);
        // kNoProgress: the line search met the rounding of the sums before the tolerance on the step.
        EXPECT_TRUE(result->stop_reason == StopReason::kConverged || result->stop_reason == StopReason::kNoProgress);
      }
    }
  }
}

// A thin slab of few samples at the coarsest level, where a sheared map can have the lower NMI.
TEST_P(RegistrationTest, NmiOfFewSamplesDoesNotShearAnAffineMapAway) {
  const Geometry fixed{.size = {104, 92, 84}, .spacing = {1.5, 1.5, 1.7}};
  Geometry slab{.size = {100, 100, 18}, .spacing = {1.5, 1.5, 2.4}};
  slab.direction[0][0] = -1;
  for (uint32_t seed : {3, 10}) {
    Pair pair = MakePair(fixed, slab, RandomAffine(seed, false, true), false);
    ChangeIntensities(&pair);
    const PreparedImage f = Prepare(pair.fixed, pair.fixed_grid), m = Prepare(pair.moving, pair.moving_grid);
    const absl::StatusOr<RegistrationResult> result =
        Register(ctx(), {&f, &m, nullptr, nullptr, {AffineOptions{MetricKind::kNmi}}, AffineMap::Identity()});
    ASSERT_OK(result) << result.status();
    EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), 0.25) << "seed " << seed;
  }
}

// The memory that admission reserves is enough for every metric.
TEST_P(RegistrationTest, WorkspaceIsAsAnnounced) {
  const Pair pair = MakePair(60, false, true, false);
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
  for (const MetricTraits& traits : kMetricTable) {
    if (traits.kind == MetricKind::kMind) continue;
    const RegistrationInput input{
        &fixed, &moving, nullptr, nullptr, {RigidOptions{traits.kind, 2, 3}}, AffineMap::Identity()};
    OwnedContext owned = *OwnedContext::Create(device(), RegistrationWorkspaceBytes(device(), input));
    const absl::Status status = Register(owned.context(), input).status();
    EXPECT_TRUE(status.ok()) << traits.name << " " << status;
  }
}

// Both images vary, but not where they overlap.
TEST_P(RegistrationTest, SaysWhenAnImageIsConstantWhereTheyOverlap) {
  const Geometry grid{.size = {16, 16, 16}};
  std::vector<float> values(grid.voxels(), 0), selected(grid.voxels(), 0);
  for (int i = 0; i < 16 * 16; ++i) values[i * 16 + 15] = 1;
  for (int i = 0; i < 16 * 16; ++i)
    for (int x = 0; x < 10; ++x) selected[i * 16 + x] = 1;
  const PreparedImage image = Prepare(values, grid), mask = Prepare(selected, grid);
  for (MetricKind metric : {MetricKind::kNmi, MetricKind::kLncc}) {
    const RegistrationInput input{&image, &image, &mask, nullptr, {AffineOptions{metric}}, AffineMap::Identity()};
    const absl::Status status = Register(ctx(), input).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("constant where the images (masks) overlap"));
  }
}

TEST_P(RegistrationTest, RigidFindsARigidMapAndStaysRigid) {
  for (uint32_t seed = 31; seed <= 34; ++seed) {
    for (bool is_2d : {false, true}) {
      const Pair pair = MakePair(seed, is_2d, true, false);
      absl::StatusOr<RegistrationResult> result = Run(pair, {RigidOptions{MetricKind::kSsd}});
      ASSERT_OK(result) << result.status();
      EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), 0.05) << "seed " << seed;
      for (int a = 0; a < 3; ++a)
        for (int b = 0; b < 3; ++b) {
          double dot = 0;
          for (int r = 0; r < 3; ++r) dot += result->transform.affine().m[r][a] * result->transform.affine().m[r][b];
          EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-9);
        }
    }
  }
}

TEST_P(RegistrationTest, IsBitIdenticalWhenRunAgain) {
  const Pair pair = MakePair(3, false, false, false);
  for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc}) {
    const AffineMap first = Run(pair, {AffineOptions{metric}})->transform.affine();
    const AffineMap second = Run(pair, {AffineOptions{metric}})->transform.affine();
    EXPECT_EQ(std::memcmp(&first, &second, sizeof(first)), 0);
  }
}

TEST_P(RegistrationTest, AgreesWithTheCpu) {
  if (device().kind() == DeviceKind::kCpu) GTEST_SKIP() << "compares another device with the CPU";
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
      const Pair pair = MakePair(seed, false, false, metric == MetricKind::kNgf);
      const AffineMap here = Run(pair, {AffineOptions{metric}})->transform.affine();
      OwnedContext cpu = *OwnedContext::Create(TestDevice("cpu"), kWorkspaceBytes);
      const ExecContext cpu_ctx = cpu.context();
      const PreparedImage fixed =
          *PreparedImage::Prepare(cpu_ctx, pair.fixed.data(), PixelType::kFloat32, 1, 0, pair.fixed_grid);
      const PreparedImage moving =
          *PreparedImage::Prepare(cpu_ctx, pair.moving.data(), PixelType::kFloat32, 1, 0, pair.moving_grid);
      const AffineMap there =
          Register(cpu_ctx, {&fixed, &moving, nullptr, nullptr, {AffineOptions{metric}}, std::nullopt})
              ->transform.affine();
      Pair as_truth = pair;
      as_truth.truth = there;
      EXPECT_LT(MeanErrorVoxels(as_truth, here), 1e-3) << "seed " << seed;
    }
  }
}

TEST_P(RegistrationTest, AgreesWithTheCpuBetweenUnlikeIntensities) {
  if (device().kind() == DeviceKind::kCpu) GTEST_SKIP() << "compares another device with the CPU";
  for (const MetricCase& of : kMetricCases) {
    Pair pair = MakePair(61, false, true, false);
    of.change(&pair);
    const AffineMap here = Run(pair, {RigidOptions{of.metric}})->transform.affine();
    OwnedContext cpu = *OwnedContext::Create(TestDevice("cpu"), kWorkspaceBytes);
    const ExecContext cpu_ctx = cpu.context();
    const PreparedImage fixed =
        *PreparedImage::Prepare(cpu_ctx, pair.fixed.data(), PixelType::kFloat32, 1, 0, pair.fixed_grid);
    const PreparedImage moving =
        *PreparedImage::Prepare(cpu_ctx, pair.moving.data(), PixelType::kFloat32, 1, 0, pair.moving_grid);
    pair.truth = Register(cpu_ctx, {&fixed, &moving, nullptr, nullptr, {RigidOptions{of.metric}}, std::nullopt})
                     ->transform.affine();
    EXPECT_LT(MeanErrorVoxels(pair, here), 5e-3) << MetricName(of.metric);
  }
}

TEST_P(RegistrationTest, StagesFollowEachOther) {
  const Pair pair = MakePair(5, false, false, false);
  absl::StatusOr<RegistrationResult> result =
      Run(pair, {RigidOptions{MetricKind::kSsd}, AffineOptions{MetricKind::kSsd, 2}});
  ASSERT_OK(result);
  ASSERT_EQ(result->stages.size(), 2u);
  EXPECT_EQ(result->stages[1].levels.size(), 2u);
  const auto& rigid = std::get<RigidOptions>(result->stages[0].options);
  EXPECT_EQ(rigid.metric, MetricKind::kSsd);
  EXPECT_EQ(rigid.levels, static_cast<int>(result->stages[0].levels.size()));
  EXPECT_EQ(rigid.iterations, 50);
  EXPECT_EQ(std::get<AffineOptions>(result->stages[1].options).levels, 2);
  EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), 0.05);
}

TEST_P(RegistrationTest, MasksSelectWhatCounts) {
  // Garbage in a corner of the fixed image misleads it, unless the mask leaves it out.
  Pair pair = MakePair(6, false, false, false);
  std::vector<float> mask(pair.fixed.size(), 1);
  const Int3 n = pair.fixed_grid.size;
  for (int z = 0; z < n.z / 2; ++z)
    for (int y = 0; y < n.y / 3; ++y)
      for (int x = 0; x < n.x; ++x) {
        const size_t i = (static_cast<size_t>(z) * n.y + y) * n.x + x;
        pair.fixed[i] = 400;
        mask[i] = 0;
      }
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
  const PreparedImage fixed_mask = Prepare(mask, pair.fixed_grid);
  AffineMap start = pair.truth;
  for (int r = 0; r < 3; ++r) start.m[r][3] += 6;
  RegistrationInput input{&fixed, &moving, &fixed_mask, nullptr, {AffineOptions{MetricKind::kSsd}}, start};
  absl::StatusOr<RegistrationResult> result = Register(ctx(), input);
  ASSERT_OK(result) << result.status();
  EXPECT_LT(MeanErrorVoxels(pair, result->transform.affine()), 0.1);
  const PreparedImage empty = Prepare(std::vector<float>(mask.size(), 0), pair.fixed_grid);
  input.fixed_mask = &empty;
  EXPECT_EQ(Register(ctx(), input).status().message(), "fixed_mask: selects no voxel");
  const PreparedImage elsewhere = Prepare(std::vector<float>(8, 1), Geometry{.size = {2, 2, 2}});
  input.fixed_mask = &elsewhere;
  EXPECT_EQ(Register(ctx(), input).status().code(), absl::StatusCode::kInvalidArgument);
}

// Weights of 0 and 1 are a mask, in exactly the workspace that is said to be enough.
TEST_P(RegistrationTest, WeightsSelectWhatCounts) {
  Pair pair = MakePair(6, false, false, false);
  std::vector<float> weights(pair.fixed.size(), 1);
  const Int3 n = pair.fixed_grid.size;
  for (int z = 0; z < n.z / 2; ++z)
    for (int y = 0; y < n.y / 3; ++y)
      for (int x = 0; x < n.x; ++x) {
        const size_t i = (static_cast<size_t>(z) * n.y + y) * n.x + x;
        pair.fixed[i] = 400;
        weights[i] = 0;
      }
  const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
  const PreparedImage fixed_weight = Prepare(weights, pair.fixed_grid);
  const PreparedImage moving_weight = Prepare(std::vector<float>(pair.moving.size(), 1), pair.moving_grid);
  AffineMap start = pair.truth;
  for (int r = 0; r < 3; ++r) start.m[r][3] += 6;
  RegistrationInput input{&fixed, &moving, nullptr, nullptr, {AffineOptions{MetricKind::kSsd}}, start};
  input.fixed_weight = &fixed_weight;
  input.moving_weight = &moving_weight;
  const auto run = [&] {
    OwnedContext owned = *OwnedContext::Create(device(), RegistrationWorkspaceBytes(device(), input));
    return Register(owned.context(), input);
  };
  const absl::StatusOr<RegistrationResult> weighed = run();
  ASSERT_OK(weighed) << weighed.status();
  EXPECT_LT(MeanErrorVoxels(pair, weighed->transform.affine()), 0.1);
  input.fixed_weight = input.moving_weight = nullptr;
  input.fixed_mask = &fixed_weight;
  const absl::StatusOr<RegistrationResult> masked = run();
  ASSERT_OK(masked) << masked.status();
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 4; ++c)
      EXPECT_NEAR(weighed->transform.affine().m[r][c], masked->transform.affine().m[r][c], 1e-3);
  const PreparedImage none = Prepare(std::vector<float>(weights.size(), 0), pair.fixed_grid);
  input.fixed_weight = &none;
  EXPECT_EQ(Register(ctx(), input).status().message(), "fixed_weight: selects no voxel");
  // Each selects something, but no voxel is selected by both.
  for (float& weight : weights) weight = 1 - weight;
  const PreparedImage others = Prepare(weights, pair.fixed_grid);
  input.fixed_weight = &others;
  EXPECT_EQ(Register(ctx(), input).status().message(), "fixed_mask: selects no voxel");
}

TEST_P(RegistrationTest, RefusesWhatAreNoWeights) {
  const Geometry grid{.size = {20, 18, 16}};
  const PreparedImage image = Prepare(RandomFloats(grid.voxels(), 1), grid);
  const PreparedImage weight = Prepare(RandomFloats(grid.voxels(), 2), grid);
  const PreparedImage below = Prepare(RandomFloats(grid.voxels(), 3, -0.1f, 1), grid);
  const PreparedImage above = Prepare(RandomFloats(grid.voxels(), 4, 0, 1.1f), grid);
  const PreparedImage elsewhere = Prepare(std::vector<float>(8, 1), Geometry{.size = {2, 2, 2}});
  const auto error = [&](const PreparedImage* fixed_weight, const PreparedImage* moving_weight) {
    RegistrationInput input{&image, &image, nullptr, nullptr, {AffineOptions{}}, {}};
    input.fixed_weight = fixed_weight;
    input.moving_weight = moving_weight;
    return ValidateRegistration(input);
  };
  EXPECT_OK(error(&weight, &weight));
  for (const PreparedImage* wrong : {&below, &above, &elsewhere}) {
    for (bool is_fixed : {true, false}) {
      const absl::Status status = is_fixed ? error(wrong, &weight) : error(&weight, wrong);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(FieldOf(status), is_fixed ? "fixed_weight" : "moving_weight") << status;
    }
  }
  EXPECT_THAT(error(&below, nullptr).message(), testing::HasSubstr("must be 0 to 1"));
}

TEST_P(RegistrationTest, StopsAndCancelsAtACheckpoint) {
  const Pair pair = MakePair(7, false, false, false);
  int calls = 0;
  absl::StatusOr<RegistrationResult> stopped = Run(pair, {AffineOptions{MetricKind::kSsd}}, [&](const Progress&) {
    return ++calls > 3 ? Decision::kStop : Decision::kContinue;
  });
  ASSERT_OK(stopped) << stopped.status();
  EXPECT_EQ(stopped->stop_reason, StopReason::kBudget);
  // The search of a start stops there, and the stage asks once more.
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(Run(pair, {AffineOptions{}}, [](const Progress&) { return Decision::kCancel; }).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_P(RegistrationTest, RefusesWhatItCannotRegister) {
  const Geometry grid{.size = {20, 18, 16}};
  const PreparedImage image = Prepare(RandomFloats(grid.voxels(), 1), grid);
  const PreparedImage constant = Prepare(std::vector<float>(grid.voxels(), 5), grid);
  Geometry far_grid = grid;
  far_grid.origin = {500, 0, 0};
  const PreparedImage far = Prepare(RandomFloats(grid.voxels(), 2), far_grid);
  const Geometry plane{.size = {20, 18, 1}};
  const PreparedImage flat = Prepare(RandomFloats(plane.voxels(), 3), plane);
  const std::vector<StageOptions> stages = {AffineOptions{}};
  const auto error = [&](const RegistrationInput& input) { return Register(ctx(), input).status(); };

  EXPECT_EQ(error({&constant, &image, nullptr, nullptr, stages, {}}).message(), "fixed: the image is constant");
  EXPECT_EQ(error({&image, &constant, nullptr, nullptr, stages, {}}).message(), "moving: the image is constant");
  EXPECT_EQ(error({&image, &far, nullptr, nullptr, stages, AffineMap::Identity()}).code(),
            absl::StatusCode::kFailedPrecondition);
  const absl::Status reversed = error({&image, &flat, nullptr, nullptr, stages, {}});
  EXPECT_EQ(reversed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FieldOf(reversed), "moving");
  EXPECT_EQ(error({&image, &image, nullptr, nullptr, {}, {}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error({&image, &image, nullptr, nullptr, {AffineOptions{MetricKind::kSsd, 99}}, {}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error({&image, &image, nullptr, nullptr, stages, AffineMap{}}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(RegistrationTest, ErrorsNameTheirField) {
  const Geometry grid{.size = {20, 18, 16}};
  const PreparedImage image = Prepare(RandomFloats(grid.voxels(), 1), grid);
  const PreparedImage elsewhere = Prepare(std::vector<float>(8, 1), Geometry{.size = {2, 2, 2}});
  const PreparedImage constant = Prepare(std::vector<float>(grid.voxels(), 5), grid);
  const auto field = [](const RegistrationInput& input) { return FieldOf(ValidateRegistration(input)); };
  const std::vector<StageOptions> stages = {AffineOptions{}};
  EXPECT_EQ(field({&image, &image, nullptr, nullptr, {}, {}}), "stages");
  EXPECT_EQ(field({&image, &image, nullptr, nullptr, {AffineOptions{}, AffineOptions{.levels = 0}}, {}}),
            "stages[1].levels");
  EXPECT_EQ(field({&image, &image, &elsewhere, nullptr, stages, {}}), "fixed_mask");
  EXPECT_EQ(field({&image, &image, nullptr, &elsewhere, stages, {}}), "moving_mask");
  EXPECT_EQ(field({&constant, &image, nullptr, nullptr, stages, {}}), "fixed");
  EXPECT_EQ(field({&image, &constant, nullptr, nullptr, stages, {}}), "moving");
  EXPECT_EQ(field({&image, &image, nullptr, nullptr, stages, AffineMap{}}), "initial");
  EXPECT_EQ(field({&image, &image, nullptr, nullptr, stages, {}}), "");
}

TEST_P(RegistrationTest, SmallestImages) {
  for (Int3 size : {Int3{1, 1, 1}, Int3{2, 1, 1}, Int3{3, 3, 1}, Int3{2, 3, 4}, Int3{5, 4, 3}}) {
    const Geometry grid{.size = size};
    std::vector<float> values(grid.voxels());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 3);
    const PreparedImage image = Prepare(values, grid);
    for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc}) {
      absl::StatusOr<RegistrationResult> result =
          Register(ctx(), {&image, &image, nullptr, nullptr, {AffineOptions{metric}}, AffineMap::Identity()});
      if (result.ok()) {
        for (const auto& row : result->transform.affine().m)
          for (double v : row) EXPECT_TRUE(std::isfinite(v));
      } else {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition) << result.status();
      }
    }
  }
}

TEST_P(RegistrationTest, ARegistrationThatStartsAtItsResultIsNotWorse) {
  for (uint32_t seed = 41; seed <= 44; ++seed) {
    for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
      const Pair pair = MakePair(seed, false, false, metric == MetricKind::kNgf);
      const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
      RegistrationInput input{&fixed, &moving, nullptr, nullptr, {AffineOptions{metric}}, std::nullopt};
      for (int again = 0; again < 4; ++again) {
        absl::StatusOr<RegistrationResult> result = Register(ctx(), input);
        ASSERT_OK(result) << result.status();
        EXPECT_FALSE(result->worse_than_start) << "seed " << seed << " run " << again;
        input.initial = result->transform.affine();
      }
    }
  }
}

TEST_P(RegistrationTest, AnImageIsNotWorseThanItself) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Geometry grid = ObliqueGeometry({40, 37, 33}, seed % 2 == 0);
    grid.origin = {-170.3 - seed, 211.7, 1000.1 * seed};
    std::vector<float> values;
    const AffineMap to_physical = IndexToPhysical(grid);
    for (int z = 0; z < 33; ++z)
      for (int y = 0; y < 37; ++y)
        for (int x = 0; x < 40; ++x) {
          values.push_back(static_cast<float>(Anatomy(to_physical({double(x), double(y), double(z)}) - Center(grid))));
        }
    const PreparedImage image = Prepare(values, grid);
    for (MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi, MetricKind::kLncc}) {
      absl::StatusOr<RegistrationResult> result =
          Register(ctx(), {&image, &image, nullptr, nullptr, {AffineOptions{metric}}, std::nullopt});
      ASSERT_OK(result) << result.status();
      EXPECT_FALSE(result->worse_than_start) << "seed " << seed;
      EXPECT_EQ(result->stop_reason, StopReason::kConverged) << "seed " << seed;
    }
  }
}

TEST_P(RegistrationTest, ASmallMaskDoesNotLetCoarseLevelsRunAway) {
  for (uint32_t seed = 51; seed <= 56; ++seed) {
    const Pair pair = MakePair(seed, false, false, false);
    const AffineMap to_physical = IndexToPhysical(pair.fixed_grid);
    std::vector<float> mask;
    // A ball of 15 mm about a blob.
    for (int z = 0; z < pair.fixed_grid.size.z; ++z)
      for (int y = 0; y < pair.fixed_grid.size.y; ++y)
        for (int x = 0; x < pair.fixed_grid.size.x; ++x) {
          const Vec3d d = pair.truth(to_physical({double(x), double(y), double(z)})) - Vec3d{-6, -20, 12};
          mask.push_back(Dot(d, d) < 15 * 15 ? 1 : 0);
        }
    const PreparedImage fixed = Prepare(pair.fixed, pair.fixed_grid), moving = Prepare(pair.moving, pair.moving_grid);
    const PreparedImage fixed_mask = Prepare(mask, pair.fixed_grid);
    AffineMap start = pair.truth;
    for (int r = 0; r < 3; ++r) start.m[r][3] += 2;
    absl::StatusOr<RegistrationResult> result =
        Register(ctx(), {&fixed, &moving, &fixed_mask, nullptr, {AffineOptions{MetricKind::kSsd}}, start});
    ASSERT_OK(result) << result.status();
    const Vec3d center = Inverse(pair.truth)({-6, -20, 12}),
                d = result->transform.affine()(center) - Vec3d{-6, -20, 12};
    EXPECT_LT(std::sqrt(Dot(d, d)), 0.5) << "seed " << seed;
  }
}

TEST_P(RegistrationTest, RigidDoesNotDependOnTheUnitOfLength) {
  const Pair pair = MakePair(31, false, true, false);
  for (double scale : {0.01, 100.0}) {
    Pair scaled = pair;
    for (Geometry* g : {&scaled.fixed_grid, &scaled.moving_grid}) {
      g->spacing = scale * g->spacing;
      g->origin = scale * g->origin;
    }
    absl::StatusOr<RegistrationResult> result = Run(scaled, {RigidOptions{MetricKind::kSsd}});
    ASSERT_OK(result) << result.status();
    EXPECT_EQ(result->stop_reason, StopReason::kConverged);
    AffineMap found = result->transform.affine();
    for (int r = 0; r < 3; ++r) found.m[r][3] /= scale;
    EXPECT_LT(MeanErrorVoxels(pair, found), 0.05) << "scale " << scale;
  }
}

TEST_P(RegistrationTest, NgfOnFewVoxels) {
  const auto register_itself = [&](Int3 size) {
    const Geometry grid{.size = size};
    const PreparedImage image = Prepare(RandomFloats(grid.voxels(), 7), grid);
    const RegistrationInput input{
        &image, &image, nullptr, nullptr, {AffineOptions{MetricKind::kNgf}}, AffineMap::Identity()};
    return Register(ctx(), input);
  };
  // One interior voxel of 27: all that there can be, so it is not a lack of overlap.
  for (Int3 size : {Int3{3, 3, 3}, Int3{3, 4, 3}, Int3{40, 30, 3}, Int3{4, 3, 1}}) {
    const auto result = register_itself(size);
    EXPECT_OK(result) << result.status();
  }
  EXPECT_EQ(register_itself({20, 20, 2}).status(),
            FieldError(absl::StatusCode::kFailedPrecondition, "fixed",
                       "ngf needs gradients, and an axis of two voxels (20x20x2) has none"));
}

TEST_P(RegistrationTest, SaysWhenThereIsNoGradientWhereTheImagesOverlap) {
  const Geometry grid{.size = {16, 16, 16}};
  std::vector<float> values(grid.voxels(), 0), mask(grid.voxels(), 0);
  for (int i = 0; i < 16 * 16; ++i) values[i * 16 + 15] = 1;
  for (int i = 0; i < 16 * 16; ++i)
    for (int x = 0; x < 10; ++x) mask[i * 16 + x] = 1;
  const PreparedImage image = Prepare(values, grid), flat = Prepare(mask, grid);
  const RegistrationInput input{
      &image, &image, &flat, nullptr, {AffineOptions{MetricKind::kNgf}}, AffineMap::Identity()};
  EXPECT_EQ(Register(ctx(), input).status(),
            FieldError(absl::StatusCode::kFailedPrecondition, "fixed",
                       "no gradients where the images (masks) overlap, which ngf needs"));
}

TEST_P(RegistrationTest, SaysWhenSumsOverflow) {
  const Geometry grid{.size = {20, 18, 16}};
  const PreparedImage image = Prepare(RandomFloats(grid.voxels(), 9, 0, 1e25f), grid);
  const RegistrationInput input{
      &image, &image, nullptr, nullptr, {AffineOptions{MetricKind::kNgf}}, AffineMap::Identity()};
  EXPECT_EQ(Register(ctx(), input).status().message(),
            "fixed, moving: intensities so large (or small) that sums are not finite");
}

TEST_P(RegistrationTest, PlanesOfInexactDirectionsAreParallel) {
  Geometry grid{.size = {40, 30, 1}};
  for (int r = 0; r < 3; ++r) grid.direction[r][r] = 0.9997;
  ASSERT_OK(ValidateGeometry(grid));
  const PreparedImage image = Prepare(RandomFloats(grid.voxels(), 7), grid);
  EXPECT_OK(ValidateRegistration({&image, &image, nullptr, nullptr, {AffineOptions{}}, std::nullopt}));
}

}  // namespace
}  // namespace intrawarp
