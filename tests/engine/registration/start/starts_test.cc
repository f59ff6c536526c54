// SPDX-License-Identifier: Apache-2.0
// The search of a start on bodies whose pose is known.
#include "engine/registration/start/starts.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "engine/quality/verdict.h"
#include "engine/registration/methods/affine.h"
#include "engine/registration/registration.h"
#include "engine/registration/start/body.h"
#include "engine/registration/start/rotations.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

// An ellipsoid with parts that no rotation and no reflection brings onto themselves, LPS mm about the origin; 2-D
// images see its plane z = 0.
double Anatomy(Vec3d p) {
  struct Part {
    Vec3d center, radius;
    double value;
  };
  static const Part parts[] = {
      {{0, 0, 0}, {50, 38, 44}, 60},   {{22, -8, 4}, {18, 15, 20}, 55}, {{-22, 12, -6}, {14, 15, 13}, -40},
      {{-10, -18, 10}, {9, 8, 9}, 70}, {{8, 20, -12}, {11, 8, 12}, 55}, {{0, 2, 24}, {14, 10, 8}, -35},
  };
  double sum = 0;
  for (const Part& part : parts) {
    const Vec3d d = p - part.center;
    const double r = std::hypot(d.x / part.radius.x, d.y / part.radius.y, d.z / part.radius.z);
    sum += part.value / (1 + std::exp((r - 1) * 9));
  }
  return sum;
}

// The same at every angle.
double Ball(Vec3d p) { return 80 / (1 + std::exp((std::sqrt(Dot(p, p)) - 30) / 3)); }

Quaternion RandomRotation(uint32_t seed, bool is_2d) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  Quaternion q{normal(engine), normal(engine), normal(engine), normal(engine)};
  if (is_2d) q.x = q.y = 0;
  const double s = 1 / std::sqrt(Dot(q, q));
  return {s * q.w, s * q.x, s * q.y, s * q.z};
}

AffineMap Shifted(AffineMap map, Vec3d shift) {
  for (int r = 0; r < 3; ++r) map.m[r][3] += shift[r];
  return map;
}

AffineMap Reflection(int axis) {
  AffineMap map = AffineMap::Identity();
  map.m[axis][axis] = -1;
  return map;
}

class StartsTest : public DeviceTest {
 protected:
  struct Pair {
    PreparedImage fixed, moving;
    AffineMap truth;
    RegistrationImages images() const { return {&fixed, &moving, masks(fixed), masks(moving)}; }
    static std::vector<MaskLevel> masks(const PreparedImage& image) {
      std::vector<MaskLevel> levels(image.levels().size());
      for (size_t i = 0; i < levels.size(); ++i) levels[i].count = image.levels()[i].volume.geometry.voxels();
      return levels;
    }
  };

  static Geometry Grid(Int3 size, Vec3d spacing) {
    Geometry grid{.size = size, .spacing = spacing};
    grid.origin = grid.origin - Center(grid);
    return grid;
  }
  template <typename Function>
  PreparedImage Sample(const Geometry& grid, const Function& value) {
    const AffineMap to_physical = IndexToPhysical(grid);
    std::vector<float> values;
    for (int z = 0; z < grid.size.z; ++z)
      for (int y = 0; y < grid.size.y; ++y)
        for (int x = 0; x < grid.size.x; ++x) {
          values.push_back(static_cast<float>(value(to_physical({double(x), double(y), double(z)}))));
        }
    return *PreparedImage::Prepare(ctx(), values.data(), PixelType::kFloat32, 1, 0, grid);
  }
  // fixed(x) = anatomy(truth(x)), moving(y) = anatomy(y), inverted for NGF.
  Pair MakePair(const AffineMap& truth, bool is_2d, bool inverted, double (*anatomy)(Vec3d) = Anatomy) {
    const Geometry fixed = Grid({61, 58, is_2d ? 1 : 54}, {2.25, 2.25, 2.5});
    const Geometry moving = Grid({66, 63, is_2d ? 1 : 60}, {2.1, 2.2, 2.2});
    return {Sample(fixed, [&](Vec3d p) { return anatomy(truth(p)); }),
            Sample(moving, [&](Vec3d p) { return inverted ? 300 - 2 * anatomy(p) : anatomy(p); }), truth};
  }
  // Mean distance from the truth over the body, in fixed voxels.
  double Error(const Pair& pair, const AffineMap& map) {
    const Body body = *ReadBody(ctx(), pair.fixed, 0, MaskLevel{});
    return MeanDistance(body.points, map, pair.truth) / pair.fixed.geometry().spacing.x;
  }
  StartSearch Search(const Pair& pair, MetricKind metric = MetricKind::kSsd) {
    absl::StatusOr<StartSearch> search = SearchStart(ctx(), pair.images(), metric);
    EXPECT_OK(search) << search.status();
    return search.ok() ? *std::move(search) : StartSearch{};
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(StartsTest);

TEST_P(StartsTest, FindsEveryRotation) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    for (const MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
      const AffineMap truth = Shifted(RotationMap(RandomRotation(seed, false)), {7, -5, 9});
      const Pair pair = MakePair(truth, false, metric == MetricKind::kNgf);
      const StartSearch search = Search(pair, metric);
      EXPECT_LT(Error(pair, search.found), 1) << "seed " << seed << " " << MetricName(metric);
      ASSERT_TRUE(search.report.margin.has_value());
      EXPECT_GT(*search.report.margin, kLeastStartMargin) << "seed " << seed << " " << MetricName(metric);
      EXPECT_LT(search.report.mirror_lead.value_or(0), 0) << "seed " << seed << " " << MetricName(metric);
      EXPECT_NE(search.kind, StartKind::kMirrored);
    }
  }
}

TEST_P(StartsTest, FindsEveryRotationInThePlane) {
  for (uint32_t seed = 11; seed <= 18; ++seed) {
    for (const MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
      const AffineMap truth = Shifted(RotationMap(RandomRotation(seed, true)), {7, -5, 0});
      const Pair pair = MakePair(truth, true, metric == MetricKind::kNgf);
      const StartSearch search = Search(pair, metric);
      EXPECT_LT(Error(pair, search.found), 1) << "seed " << seed << " " << MetricName(metric);
      EXPECT_GT(search.report.margin.value_or(0), kLeastStartMargin) << "seed " << seed << " " << MetricName(metric);
    }
  }
}

TEST_P(StartsTest, ARegistrationGoesOnFromTheWinner) {
  const Pair pair = MakePair(Shifted(RotationMap(RandomRotation(3, false)), {4, 2, -6}), false, false);
  for (const StageOptions& stage : {StageOptions(RigidOptions{}), StageOptions(AffineOptions{})}) {
    const absl::StatusOr<RegistrationResult> result =
        Register(ctx(), {&pair.fixed, &pair.moving, nullptr, nullptr, {stage}, std::nullopt});
    ASSERT_OK(result) << result.status();
    EXPECT_LT(Error(pair, result->transform.affine()), 0.05);
    EXPECT_FALSE(result->worse_than_start);
    ASSERT_TRUE(result->starts.has_value());
    EXPECT_EQ(result->starts->candidates[0].kind, StartKind::kRotation);
  }
}

TEST_P(StartsTest, ADeformableStageStartsFromTheHeaderAsItStands) {
  const Pair straight = MakePair(Shifted(AffineMap::Identity(), {1, -1, 1}), false, false);
  const Pair turned = MakePair(RotationMap(RandomRotation(3, false)), false, false);
  const StageOptions stage = FfdOptions{.metric = MetricKind::kSsd, .levels = 1, .iterations = 1};
  const auto start = [&](const Pair& pair) {
    return Register(ctx(), {&pair.fixed, &pair.moving, nullptr, nullptr, {stage}, std::nullopt})->transform.affine();
  };
  const AffineMap header = start(straight), found = start(turned);
  const AffineMap identity = AffineMap::Identity();
  EXPECT_EQ(std::memcmp(&header, &identity, sizeof(header)), 0);
  EXPECT_LT(Error(turned, found), 1);
}

TEST_P(StartsTest, AGivenStartIsNotSearchedFor) {
  const Pair pair = MakePair(RotationMap(RandomRotation(3, false)), false, false);
  int calls = 0;
  const ExecContext counting = ctx([&](const Progress&) {
    ++calls;
    return Decision::kStop;
  });
  const absl::StatusOr<RegistrationResult> result =
      Register(counting, {&pair.fixed, &pair.moving, nullptr, nullptr, {RigidOptions{}}, AffineMap::Identity()});
  ASSERT_OK(result);
  EXPECT_FALSE(result->starts.has_value());
  EXPECT_EQ(calls, 1);
}

TEST_P(StartsTest, MirroredImagesAreRecognisedAndNeverReturned) {
  for (const bool is_2d : {false, true}) {
    for (int axis = 0; axis < (is_2d ? 2 : 3); ++axis) {
      const Pair pair = MakePair(Shifted(Reflection(axis), {3, -2, 0}), is_2d, false);
      const StartSearch search = Search(pair);
      EXPECT_GT(search.report.mirror_lead.value_or(0), 0.1) << "axis " << axis << " 2-D " << is_2d;
      EXPECT_NE(search.kind, StartKind::kMirrored);
      EXPECT_GT(Determinant(search.found), 0);
      const auto& candidates = search.report.candidates;
      ASSERT_FALSE(candidates.empty());
      EXPECT_NE(candidates.front().kind, StartKind::kMirrored);
      EXPECT_EQ(candidates.back().kind, StartKind::kMirrored);
    }
  }
}

// Landmarks that deny the images order the candidates, and take nothing from what the images say of mirroring.
TEST_P(StartsTest, WrongLandmarksHideNoMirroredImages) {
  const AffineMap truth = Shifted(Reflection(0), {3, -2, 0});
  const Pair pair = MakePair(truth, false, false);
  RegistrationImages images = pair.images();
  const auto off = [&](Vec3d p) { return Landmark{p, truth(p) + Vec3d{0, 60, 0}, 1}; };
  const std::vector<Landmark> landmarks = {off({10, 0, 0}), off({-10, 8, 0}), off({0, -9, 12})};
  const double before = Search(pair).report.mirror_lead.value_or(0);
  images.landmarks = landmarks;
  const absl::StatusOr<StartSearch> search = SearchStart(ctx(), images, MetricKind::kSsd);
  ASSERT_OK(search);
  EXPECT_GT(before, 0.1);
  EXPECT_GT(search->report.mirror_lead.value_or(0), 0.1);
}

TEST_P(StartsTest, AWrongLandmarkDoesNotMakeTheHeaderWin) {
  const AffineMap truth = Shifted(RotationMap(RandomRotation(3, false)), {4, 2, -6});
  const Pair pair = MakePair(truth, false, false);
  const std::vector<Landmark> landmark = {{{5, 0, 0}, truth({5, 0, 0}) + Vec3d{0, 0, 150}, 1}};
  RegistrationImages images = pair.images();
  images.landmarks = landmark;
  const absl::StatusOr<StartSearch> search = SearchStart(ctx(), images, MetricKind::kSsd);
  ASSERT_OK(search);
  EXPECT_EQ(search->kind, StartKind::kRotation);
}

// A wrong landmark far from the centre, where a turn moves it most, loses to images that leave nothing open.
TEST_P(StartsTest, AWrongLandmarkFarOutDoesNotHideTheTrueRotation) {
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    const AffineMap truth = Shifted(RotationMap(RandomRotation(seed, false)), {4, 2, -6});
    const Pair pair = MakePair(truth, false, false);
    const std::vector<Landmark> landmark = {{{40, 0, 0}, truth({40, 0, 0}) + Vec3d{20, -60, 30}, 1}};
    RegistrationImages images = pair.images();
    images.landmarks = landmark;
    const absl::StatusOr<StartSearch> search = SearchStart(ctx(), images, MetricKind::kSsd);
    ASSERT_OK(search);
    EXPECT_LT(Error(pair, search->found), 1) << "seed " << seed;
  }
}

TEST_P(StartsTest, RunsFromSeveralStartsAreTheRunsFromEach) {
  const Pair pair = MakePair(AffineMap::Identity(), false, false);
  const RegistrationImages images = pair.images();
  for (const MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf}) {
    const AffineLevel level{images, metric, CoarsestAffineLevel(images)};
    std::vector<AffineMap> starts;
    for (uint32_t seed = 1; seed <= 5; ++seed) starts.push_back(RotationMap(RandomRotation(seed, false)));
    starts.push_back(Shifted(AffineMap::Identity(), {1000, 0, 0}));
    const absl::StatusOr<RigidRuns> together = RunRigidLevel(ctx(), level, starts, 30, {});
    ASSERT_OK(together);
    ASSERT_EQ(together->runs.size(), starts.size());
    for (size_t i = 0; i < starts.size(); ++i) {
      const absl::StatusOr<RigidRuns> alone = RunRigidLevel(ctx(), level, {starts[i]}, 30, {});
      ASSERT_OK(alone);
      const RigidRun &one = alone->runs[0], &same = together->runs[i];
      EXPECT_EQ(std::memcmp(&one.map, &same.map, sizeof(one.map)), 0) << MetricName(metric) << " start " << i;
      EXPECT_EQ(one.value.value, same.value.value) << MetricName(metric) << " start " << i;
      EXPECT_EQ(one.evaluations, same.evaluations) << MetricName(metric) << " start " << i;
    }
    EXPECT_FALSE(together->runs.back().value.value.has_value());
  }
}

// A body that looks the same at every angle: the landmarks say which it is.
TEST_P(StartsTest, LandmarksDecideWhatTheImagesLeaveOpen) {
  const AffineMap truth = RotationMap(RandomRotation(5, false));
  const Pair pair = MakePair(AffineMap::Identity(), false, false, Ball);
  std::vector<Landmark> landmarks;
  for (const Vec3d p : {Vec3d{25, 0, 0}, Vec3d{0, 25, 0}, Vec3d{0, 0, 25}}) landmarks.push_back({p, truth(p), 1});
  RegistrationImages images = pair.images();
  images.landmarks = landmarks;
  const absl::StatusOr<StartSearch> search = SearchStart(ctx(), images, MetricKind::kSsd);
  ASSERT_OK(search);
  EXPECT_LT(LandmarkTerm(landmarks, search->found), 0.5 * LandmarkTerm(landmarks, AffineMap::Identity()));
}

TEST_P(StartsTest, MirroredImagesOfAPlaneAcrossTheAxesAreRecognised) {
  // The plane of y and z, which a reflection of x leaves as it is.
  Geometry grid{.size = {61, 58, 1}, .spacing = {2.25, 2.25, 2.5}};
  const double sagittal[3][3] = {{0, 0, 1}, {1, 0, 0}, {0, 1, 0}};
  std::memcpy(grid.direction, sagittal, sizeof(sagittal));
  grid.origin = grid.origin - Center(grid);
  const Pair pair{Sample(grid, Anatomy),
                  Sample(grid,
                         [](Vec3d p) {
                           return Anatomy({p.x, p.y, -p.z});
                         }),
                  AffineMap::Identity()};
  const StartSearch search = Search(pair);
  EXPECT_GT(search.report.mirror_lead.value_or(0), 0.1);
  EXPECT_NE(search.kind, StartKind::kMirrored);
}

TEST_P(StartsTest, ABallHasNoMarginAndKeepsTheHeader) {
  // A speck makes the image other than its rotations, by too little to decide.
  const auto ball = +[](Vec3d p) { return Ball(p) + Ball({8 * (p.x - 24), 8 * p.y, 8 * p.z}) / 40; };
  const Pair pair = MakePair(AffineMap::Identity(), false, false, ball);
  const StartSearch search = Search(pair);
  EXPECT_LT(search.report.margin.value_or(0), kLeastStartMargin);
  EXPECT_EQ(search.kind, StartKind::kHeader);
}

TEST_P(StartsTest, CandidatesComeInOrderAndApart) {
  const Pair pair = MakePair(RotationMap(RandomRotation(5, false)), false, false);
  const StartSearch search = Search(pair);
  const auto& candidates = search.report.candidates;
  ASSERT_GT(candidates.size(), 2u);
  const Body body = *ReadBody(ctx(), pair.fixed, 0, MaskLevel{});
  for (size_t i = 0; i < candidates.size(); ++i) {
    EXPECT_GE(candidates[i].overlap, 0);
    EXPECT_LE(candidates[i].overlap, 1);
    const bool is_mirrored = candidates[i].kind == StartKind::kMirrored;
    EXPECT_EQ(Determinant(candidates[i].end) < 0, is_mirrored);
    EXPECT_EQ(Determinant(candidates[i].start) < 0, is_mirrored);
    for (size_t j = 0; j < i; ++j) {
      if ((candidates[j].kind == StartKind::kMirrored) != is_mirrored) continue;
      EXPECT_GT(MeanDistance(body.points, candidates[i].end, candidates[j].end), 4.5);
      const bool is_ordered = j == 0 || candidates[j].score_after <= candidates[i].score_after;
      EXPECT_TRUE(is_ordered) << i << " after " << j;
    }
  }
  EXPECT_GT(search.report.evaluations, 100);
  EXPECT_LT(search.report.evaluations, 4000);
}

TEST_P(StartsTest, LittleOverlapDoesNotWin) {
  // Both images hold the body; the moving one is cut to its half, and beyond the cut there is nothing to disagree with.
  const AffineMap truth = Shifted(AffineMap::Identity(), {4, 3, -2});
  const Geometry fixed = Grid({61, 58, 54}, {2.25, 2.25, 2.5});
  Geometry half = Grid({40, 63, 60}, {2.1, 2.2, 2.2});
  half.origin.x = -20;
  const Pair pair{Sample(fixed, [&](Vec3d p) { return Anatomy(truth(p)); }), Sample(half, Anatomy), truth};
  const StartSearch search = Search(pair);
  EXPECT_LT(Error(pair, search.found), 1);
  ASSERT_FALSE(search.report.candidates.empty());
  EXPECT_GT(search.report.candidates[0].overlap, 0.9);
}

TEST_P(StartsTest, StopsAndCancels) {
  const Pair pair = MakePair(RotationMap(RandomRotation(5, false)), false, false);
  int checkpoints = 0;
  const ExecContext counting = ctx([&checkpoints](const Progress&) {
    ++checkpoints;
    return Decision::kContinue;
  });
  ASSERT_OK(SearchStart(counting, pair.images(), MetricKind::kSsd));
  ASSERT_GT(checkpoints, 10);
  for (const int after : {0, 1, 5, checkpoints / 2, checkpoints - 1}) {
    int calls = 0;
    const auto decide = [&](Decision decision) {
      calls = 0;
      return ctx(
          [&calls, after, decision](const Progress&) { return calls++ < after ? Decision::kContinue : decision; });
    };
    const absl::StatusOr<StartSearch> stopped = SearchStart(decide(Decision::kStop), pair.images(), MetricKind::kSsd);
    ASSERT_OK(stopped) << stopped.status();
    EXPECT_EQ(calls, after + 1);
    EXPECT_GT(Determinant(stopped->found), 0);
    EXPECT_EQ(SearchStart(decide(Decision::kCancel), pair.images(), MetricKind::kSsd).status().code(),
              absl::StatusCode::kCancelled);
  }
}

TEST_P(StartsTest, IsBitIdenticalWhenRunAgain) {
  const Pair pair = MakePair(RotationMap(RandomRotation(6, false)), false, false);
  const StartSearch first = Search(pair), second = Search(pair);
  EXPECT_EQ(std::memcmp(&first.found, &second.found, sizeof(AffineMap)), 0);
  EXPECT_EQ(first.report.margin, second.report.margin);
  EXPECT_EQ(first.report.mirror_lead, second.report.mirror_lead);
  EXPECT_EQ(first.report.evaluations, second.report.evaluations);
}

TEST_P(StartsTest, SmallAndFlatImages) {
  for (const Int3 size : {Int3{1, 1, 1}, Int3{2, 1, 1}, Int3{3, 3, 1}, Int3{2, 3, 4}, Int3{5, 4, 3}, Int3{9, 40, 8}}) {
    const Geometry grid{.size = size};
    std::vector<float> values(grid.voxels());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * i % 7);
    const PreparedImage image = *PreparedImage::Prepare(ctx(), values.data(), PixelType::kFloat32, 1, 0, grid);
    const RegistrationImages images{&image, &image, Pair::masks(image), Pair::masks(image)};
    for (const MetricKind metric : {MetricKind::kSsd, MetricKind::kNgf, MetricKind::kNmi}) {
      const absl::StatusOr<StartSearch> search = SearchStart(ctx(), images, metric);
      ASSERT_OK(search) << search.status();
      for (const auto& row : search->found.m)
        for (const double entry : row) EXPECT_TRUE(std::isfinite(entry));
    }
  }
}

}  // namespace
}  // namespace intrawarp
