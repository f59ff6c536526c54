// SPDX-License-Identifier: Apache-2.0
// Good and bad pairs, registered as a server does it: a bad result is for review, a good one is ok.
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/phantom/phantom.h"
#include "engine/quality/deformation_gate.h"
#include "server/registration/registration_job.h"
#include "tests/engine/device_test.h"

namespace intrawarp::server {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

phantom::PhantomOptions Options(uint32_t seed, double amplitude_mm, bool inverted = false) {
  phantom::PhantomOptions options;
  options.size = {64, 64, 48};
  options.spacing = {5, 5, 5};
  options.seed = seed;
  options.amplitude_mm = amplitude_mm;
  options.invert_intensities = inverted;
  return options;
}

class VerdictTest : public DeviceTest {
 protected:
  PreparedImage Prepare(const io::HostVolume& v) {
    return *PreparedImage::Prepare(ctx(), v.pixels.data(), v.pixel_type, v.rescale_slope, v.rescale_intercept,
                                   v.geometry);
  }
  PreparedImage Prepare(const std::vector<float>& voxels, const Geometry& grid) {
    return *PreparedImage::Prepare(ctx(), voxels.data(), PixelType::kFloat32, 1, 0, grid);
  }
  absl::StatusOr<RegistrationOutcome> Try(const PreparedImage& fixed, const PreparedImage& moving,
                                          std::vector<StageOptions> stages,
                                          double error_limit_mm = kDefaultErrorLimitMm, bool automatic = false,
                                          bool keep = false) {
    RegistrationInput input;
    input.automatic = automatic;
    input.keep_deformation = keep;
    input.fixed = &fixed;
    input.moving = &moving;
    input.stages = std::move(stages);
    return TryInput(input, Scrutiny::kFull, error_limit_mm);
  }
  absl::StatusOr<RegistrationOutcome> TryInput(const RegistrationInput& input, Scrutiny scrutiny,
                                               double error_limit_mm = kDefaultErrorLimitMm) {
    // An outcome's transform is freed in the order of its context's stream.
    contexts_.push_back(*OwnedContext::Create(device(), static_cast<size_t>(RegistrationJobBytes(device(), input))));
    JobControl control(seams_, std::nullopt);
    RegistrationTask task{input, [](int64_t) { return std::make_shared<Grant>(); }, std::nullopt, false, std::nullopt};
    task.error_limit_mm = error_limit_mm;
    task.scrutiny = scrutiny;
    LatencyBreakdown latency;
    return RunRegistration(contexts_.back().context(), task, control, latency);
  }
  RegistrationOutcome Run(const PreparedImage& fixed, const PreparedImage& moving, std::vector<StageOptions> stages,
                          double error_limit_mm = kDefaultErrorLimitMm, bool keep = false) {
    absl::StatusOr<RegistrationOutcome> outcome =
        Try(fixed, moving, std::move(stages), error_limit_mm, /*automatic=*/false, keep);
    EXPECT_OK(outcome.status()) << outcome.status();
    return *std::move(outcome);
  }

  RegistrationOutcome RunAutomatically(const PreparedImage& fixed, const PreparedImage& moving) {
    absl::StatusOr<RegistrationOutcome> outcome =
        Try(fixed, moving, AutomaticStages(), kDefaultErrorLimitMm, /*automatic=*/true);
    EXPECT_OK(outcome.status()) << outcome.status();
    return *std::move(outcome);
  }

  // Where the fixed landmarks of a phantom are taken.
  std::vector<Vec3d> Mapped(const phantom::Phantom& made, const RegistrationOutcome& outcome) {
    std::vector<double> points;
    for (const Vec3d& p : made.fixed_landmarks) points.insert(points.end(), {p.x, p.y, p.z});
    EXPECT_OK(MapPoints(ctx(), outcome.result.transform, false, absl::MakeSpan(points)));
    std::vector<Vec3d> mapped;
    for (size_t i = 0; i < points.size(); i += 3) mapped.push_back({points[i], points[i + 1], points[i + 2]});
    return mapped;
  }

  const Seams seams_ = SystemSeams();
  std::vector<OwnedContext> contexts_;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(VerdictTest);

const StageOptions kSsd = AffineOptions{.metric = MetricKind::kSsd};
const StageOptions kNgf = AffineOptions{.metric = MetricKind::kNgf};

// The reasons for review.
std::vector<ReviewCause> Causes(const RegistrationOutcome& outcome) {
  std::vector<ReviewCause> causes;
  for (const ReviewReason& reason : outcome.quality.review_reasons) {
    if (!reason.is_told_only) causes.push_back(reason.cause);
  }
  EXPECT_EQ(NeedsReview(outcome.quality.review_reasons), !causes.empty());
  return causes;
}

// The reasons that are only told.
std::vector<ReviewCause> Told(const RegistrationOutcome& outcome) {
  std::vector<ReviewCause> causes;
  for (const ReviewReason& reason : outcome.quality.review_reasons) {
    if (reason.is_told_only) causes.push_back(reason.cause);
  }
  return causes;
}

// The mean length of T(p) - truth over the body.
double MeanError(const phantom::Phantom& made, const std::vector<Vec3d>& mapped) {
  double sum = 0;
  for (size_t i = 0; i < mapped.size(); ++i) {
    const Vec3d d = mapped[i] - made.moving_landmarks[i];
    sum += std::sqrt(Dot(d, d)) / static_cast<double>(mapped.size());
  }
  return sum;
}

TEST_P(VerdictTest, GoodResultsAreOk) {
  const phantom::Phantom still = *phantom::MakePhantom(Options(1, 0)), moved = *phantom::MakePhantom(Options(2, 20)),
                         inverted = *phantom::MakePhantom(Options(3, 15, true));
  const FfdOptions ffd{.metric = MetricKind::kNmi};
  EXPECT_THAT(Causes(Run(Prepare(still.fixed), Prepare(still.moving), {kSsd})), IsEmpty());
  EXPECT_THAT(Causes(Run(Prepare(moved.fixed), Prepare(moved.moving), {kSsd, LogDemonsOptions()})), IsEmpty());
  const RegistrationOutcome nmi = Run(Prepare(inverted.fixed), Prepare(inverted.moving), {kNgf, ffd});
  EXPECT_THAT(Causes(nmi), IsEmpty());
  ASSERT_TRUE(nmi.quality.error.has_value());
  EXPECT_GT(nmi.quality.error->agreement, 0.8);
  EXPECT_GT(*nmi.quality.error->affine_expected_mm, nmi.quality.error->expected_mm);
  EXPECT_GT(*nmi.quality.error->deformation_mm, 1);
}

// A patient who moved by 30 mm and turned by 20 degrees between two frames of a session, 80 mm at the skin. A frame
// goes on from the one before: an affine stage finds the patient again; without one a deformation turns the body,
// wherever it shows structure, and shears what lies between.
TEST_P(VerdictTest, AFrameAfterAJumpIsRightOrForReview) {
  phantom::PhantomOptions before = Options(4, 10), after = before;
  const double c = std::cos(20 * M_PI / 180), s = std::sin(20 * M_PI / 180);
  after.affine = AffineMap{{{c, -s, 0, 20}, {s, c, 0, -20}, {0, 0, 1, 10}}};
  const phantom::Phantom first = *phantom::MakePhantom(before), second = *phantom::MakePhantom(after);
  const PreparedImage moving = Prepare(first.moving), frame = Prepare(first.fixed), jumped = Prepare(second.fixed);
  const FfdOptions nmi{.metric = MetricKind::kNmi}, mind{.metric = MetricKind::kMind};
  for (const std::vector<StageOptions>& stages : {std::vector<StageOptions>{LogDemonsOptions()},
                                                  {kSsd, LogDemonsOptions()},
                                                  {nmi},
                                                  {kNgf, nmi},
                                                  {SearchOptions(), mind}}) {
    std::string name;
    for (const StageOptions& stage : stages) absl::StrAppend(&name, MethodName(stage), " ");
    SCOPED_TRACE(name);
    RegistrationInput input{&frame, &moving, nullptr, nullptr, stages, AffineMap::Identity()};
    const absl::StatusOr<RegistrationOutcome> good = TryInput(input, Scrutiny::kFull);
    ASSERT_OK(good.status()) << good.status();
    EXPECT_LT(MeanError(first, Mapped(first, *good)), 3);
    EXPECT_THAT(Causes(*good), IsEmpty());
    input.fixed = &jumped;
    input.initial.reset();
    input.initial_transform = &good->result.transform;
    const absl::StatusOr<RegistrationOutcome> next = TryInput(input, Scrutiny::kFrame);
    ASSERT_OK(next.status()) << next.status();
    const double error = MeanError(second, Mapped(second, *next));
    if (std::holds_alternative<AffineOptions>(stages[0])) {
      EXPECT_LT(error, 2);
      EXPECT_THAT(Causes(*next), IsEmpty());
      EXPECT_FALSE(next->quality.turn_degrees.has_value());
    } else {
      EXPECT_GT(error, 3);
      EXPECT_THAT(Causes(*next), Contains(ReviewCause::kTurned));
    }
  }
}

TEST_P(VerdictTest, NoiseIsForReview) {
  Geometry grid;
  grid.size = {48, 44, 40};
  const PreparedImage fixed = Prepare(RandomFloats(grid.voxels(), 1), grid),
                      moving = Prepare(RandomFloats(grid.voxels(), 2), grid);
  EXPECT_THAT(Causes(Run(fixed, moving, {kSsd})), Not(IsEmpty()));
  EXPECT_THAT(Causes(Run(fixed, moving, {kSsd, FfdOptions{.levels = 1, .iterations = 20}})), Not(IsEmpty()));
}

TEST_P(VerdictTest, UnrelatedImagesAreForReview) {
  const phantom::Phantom made = *phantom::MakePhantom(Options(1, 0));
  const PreparedImage fixed = Prepare(made.fixed);
  // A body of another build: its axes are exchanged.
  std::vector<float> other(made.moving.geometry.voxels());
  const std::vector<float> voxels = io::ToFloat(made.moving);
  const Int3 n = made.moving.geometry.size;
  for (int64_t i = 0; i < static_cast<int64_t>(other.size()); ++i) {
    const int x = static_cast<int>(i % n.x), y = static_cast<int>(i / n.x % n.y), z = static_cast<int>(i / n.x / n.y);
    other[i] = voxels[(int64_t{x * n.z / n.x} * n.y + y) * n.x + z * n.x / n.z];
  }
  const PreparedImage moving = Prepare(other, made.moving.geometry);
  EXPECT_THAT(Causes(Run(fixed, moving, {kSsd})), Contains(ReviewCause::kErrorAboveLimit));
  EXPECT_THAT(Causes(Run(fixed, moving, {kNgf})), Contains(ReviewCause::kErrorAboveLimit));
}

// --- Small fields of view ---

// Sums of bells within one outline, or of finer structure without one; a seed gives a scene of its own.
struct Scene {
  int side = 40;
  double field_mm = 16;
  uint32_t seed = 1;
  bool has_texture = false;
  bool has_outline = true;
};

Geometry CubeOf(const Scene& scene) {
  Geometry grid;
  grid.size = {scene.side, scene.side, scene.side};
  const double spacing = scene.field_mm / scene.side;
  grid.spacing = {spacing, spacing, spacing};
  return grid;
}

// Voxels of the scene at map(p), p and the map in sides of the field.
std::vector<float> Draw(const Scene& scene, const std::function<Vec3d(Vec3d)>& map) {
  std::mt19937 engine(scene.seed);
  const auto uniform = [&engine](double low, double high) { return low + (high - low) * engine() * 0x1p-32; };
  struct Bell {
    Vec3d centre;
    double width, height;
  };
  std::vector<Bell> bells;
  const double low = scene.has_texture ? 0.02 : 0.05, high = scene.has_texture ? 0.05 : 0.15;
  for (int i = 0; i < (scene.has_texture ? 300 : 14); ++i) {
    const Vec3d centre{uniform(0.1, 0.9), uniform(0.1, 0.9), uniform(0.1, 0.9)};
    bells.push_back({centre, uniform(low, high), uniform(-0.8, 0.8)});
  }
  std::normal_distribution<double> noise(0, 1);
  std::vector<float> voxels;
  for (int i = 0; i < scene.side * scene.side * scene.side; ++i) {
    const double n = scene.side;
    const Vec3d p = map(
        {(i % scene.side + 0.5) / n, (i / scene.side % scene.side + 0.5) / n, (i / scene.side / scene.side + 0.5) / n});
    double value = 1;
    for (const Bell& bell : bells) {
      const Vec3d d = p - bell.centre;
      const double square = Dot(d, d) / (bell.width * bell.width);
      if (square < 30) value += bell.height * std::exp(-0.5 * square);
    }
    const Vec3d d = p - Vec3d{0.5, 0.5, 0.5};
    if (scene.has_outline) value /= 1 + std::exp((std::sqrt(Dot(d, d)) - 0.4) / 0.01);
    voxels.push_back(static_cast<float>(100 * value + noise(engine)));
  }
  return voxels;
}

std::vector<float> Draw(const Scene& scene) {
  return Draw(scene, [](Vec3d p) { return p; });
}

// The fields of a temporal bone, of an ultrasound probe, and of a level of the spine.
TEST_P(VerdictTest, UnrelatedImagesOfASmallFieldAreForReview) {
  const FfdOptions nmi{.metric = MetricKind::kNmi};
  const std::vector<std::vector<StageOptions>> ways = {{RigidOptions()}, {kNgf, nmi}, {kSsd, LogDemonsOptions()}};
  for (const Scene& scene : {Scene{28, 16, 11}, Scene{28, 28, 13}, Scene{32, 60, 15}, Scene{28, 16, 17, true, false}}) {
    Scene other = scene;
    other.seed += 100;
    const Geometry grid = CubeOf(scene);
    const PreparedImage fixed = Prepare(Draw(scene), grid), moving = Prepare(Draw(other), grid);
    for (const std::vector<StageOptions>& stages : ways) {
      EXPECT_THAT(Causes(Run(fixed, moving, stages)), Not(IsEmpty())) << scene.field_mm << " mm, seed " << scene.seed;
    }
    EXPECT_THAT(Causes(RunAutomatically(fixed, moving)), Not(IsEmpty())) << scene.field_mm << " mm, " << scene.seed;
  }
}

TEST_P(VerdictTest, GoodResultsOfASmallFieldAreOk) {
  for (const double field_mm : {16.0, 60.0}) {
    const Scene scene{40, field_mm, 21, true, false};
    const Geometry grid = CubeOf(scene);
    const auto shifted = [](Vec3d p) { return p + Vec3d{0.04, -0.03, 0.02}; };
    const PreparedImage fixed = Prepare(Draw(scene, shifted), grid), moving = Prepare(Draw(scene), grid);
    EXPECT_THAT(Causes(Run(fixed, moving, {kSsd})), IsEmpty());
    EXPECT_THAT(Causes(RunAutomatically(fixed, moving)), IsEmpty());
  }
}

TEST_P(VerdictTest, AHeaderInMetresIsForReview) {
  const Scene scene{32, 120, 31, true, false};
  Geometry in_metres = CubeOf(scene);
  in_metres.spacing = 0.001 * in_metres.spacing;
  const std::vector<float> voxels = Draw(scene);
  const PreparedImage fixed = Prepare(voxels, in_metres), moving = Prepare(voxels, CubeOf(scene));
  for (const StageOptions& stage : {StageOptions(RigidOptions()), kSsd, kNgf}) {
    const absl::StatusOr<RegistrationOutcome> one = Try(fixed, moving, {stage}), other = Try(moving, fixed, {stage});
    for (const absl::StatusOr<RegistrationOutcome>* outcome : {&one, &other}) {
      if (!outcome->ok()) continue;
      EXPECT_THAT(Causes(**outcome), Contains(ReviewCause::kUnitsDiffer));
    }
    EXPECT_TRUE(one.ok() || other.ok()) << one.status();
  }
}

// Where the fixed image is black the deformable stage has nothing to hold the tissue by.
TEST_P(VerdictTest, AHalfVisibleImageIsRightOrForReview) {
  const phantom::Phantom made = *phantom::MakePhantom(Options(7, 25));
  std::vector<float> shadowed = io::ToFloat(made.fixed);
  const Int3 n = made.fixed.geometry.size;
  for (int64_t i = 0; i < static_cast<int64_t>(shadowed.size()); ++i) {
    if (i % n.x < n.x / 2) shadowed[i] = -1000;
  }
  const PreparedImage fixed = Prepare(shadowed, made.fixed.geometry), moving = Prepare(made.moving);
  const RegistrationOutcome outcome = Run(fixed, moving, {kSsd, LogDemonsOptions()});
  ASSERT_TRUE(outcome.quality.error.has_value());
  EXPECT_LT(outcome.quality.error->visible_fraction, 0.8);
  EXPECT_THAT(Causes(outcome), Not(IsEmpty()));
}

TEST_P(VerdictTest, ImagesWithoutStructureAreForReview) {
  const Scene scene{32, 100, 41};
  const Geometry grid = CubeOf(scene);
  const PreparedImage constant = Prepare(std::vector<float>(grid.voxels(), 7.0f), grid),
                      other = Prepare(Draw(scene), grid);
  for (const auto& [fixed, moving] : {std::pair(&constant, &constant), {&constant, &other}, {&other, &constant}}) {
    const absl::StatusOr<RegistrationOutcome> outcome = Try(*fixed, *moving, {kSsd});
    if (!outcome.ok()) continue;
    EXPECT_THAT(Causes(*outcome), Not(IsEmpty()));
  }
}

TEST_P(VerdictTest, TooFewBlocksToJudgeByAreForReview) {
  const Scene scene{8, 30, 51, true, false};
  const PreparedImage image = Prepare(Draw(scene), CubeOf(scene));
  EXPECT_THAT(Causes(Run(image, image, {kSsd})), Contains(ReviewCause::kErrorUnknown));
}

TEST_P(VerdictTest, AMetricThatDoesNotSuitIsForReviewOrRefused) {
  const phantom::Phantom made = *phantom::MakePhantom(Options(4, 20, true));
  const PreparedImage fixed = Prepare(made.fixed), moving = Prepare(made.moving);
  EXPECT_THAT(Causes(Run(fixed, moving, {kSsd})), Contains(ReviewCause::kErrorAboveLimit));
  // Log-demons squeezes the body, until too little of it is left in both images to go on.
  const absl::StatusOr<RegistrationOutcome> squeezed = Try(fixed, moving, {kNgf, LogDemonsOptions()});
  if (squeezed.ok()) {
    EXPECT_THAT(Causes(*squeezed), Not(IsEmpty()));
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(squeezed.status())) << squeezed.status();
  }
}

// The affine map of a body that was lifted by 30 mm is right as far as it goes; that is not far enough. By 50 mm it is
// off by more than half of the probe's reach, which no limit lets through.
TEST_P(VerdictTest, AnAffineMapOfADeformedBodyIsHeldAgainstTheLimit) {
  const phantom::Phantom made = *phantom::MakePhantom(Options(5, 30)), far = *phantom::MakePhantom(Options(5, 50));
  const PreparedImage fixed = Prepare(made.fixed), moving = Prepare(made.moving);
  EXPECT_THAT(Causes(Run(fixed, moving, {kSsd})), Contains(ReviewCause::kErrorAboveLimit));
  EXPECT_THAT(Causes(Run(fixed, moving, {kSsd}, 100)), Not(Contains(ReviewCause::kErrorAboveLimit)));
  const RegistrationOutcome beyond = Run(Prepare(far.fixed), Prepare(far.moving), {kSsd}, 100);
  EXPECT_THAT(Causes(beyond), Contains(ReviewCause::kErrorAboveLimit));
}

TEST_P(VerdictTest, ADeformationThatSpoilsTheAffineResultIsRejected) {
  const phantom::Phantom made = *phantom::MakePhantom(Options(6, 0, true));
  const PreparedImage fixed = Prepare(made.fixed), moving = Prepare(made.moving);
  const RegistrationOutcome spoiled = Run(fixed, moving, {kNgf, FfdOptions{.metric = MetricKind::kSsd}});
  // The answer that is left is good, so that nobody has to look; the reasons tell what was done.
  EXPECT_THAT(Causes(spoiled), IsEmpty());
  EXPECT_THAT(Told(spoiled), ElementsAre(ReviewCause::kDeformationRejected));
  ASSERT_TRUE(spoiled.result.transform.has_control_grid());
  const ConstFieldView grid = spoiled.result.transform.control_grid();
  EXPECT_THAT(Download(grid.data, 3 * grid.geometry.voxels()), testing::Each(0.0f));
  EXPECT_LT(MeanError(made, Mapped(made, spoiled)), 1.5);
  ASSERT_TRUE(spoiled.quality.rejected_gain.has_value());
  EXPECT_LT(*spoiled.quality.rejected_gain, kLeastGain);
  EXPECT_EQ(spoiled.quality.error->expected_mm, *spoiled.quality.error->affine_expected_mm);
  // The measurement is that of the answer.
  EXPECT_NEAR(spoiled.quality.jacobian.min, spoiled.quality.jacobian.max, 1e-6);

  const RegistrationOutcome demons = Run(fixed, moving, {kNgf, LogDemonsOptions{.match_intensities = false}});
  EXPECT_THAT(Causes(demons), IsEmpty());
  EXPECT_THAT(Told(demons), ElementsAre(ReviewCause::kDeformationRejected));
  EXPECT_TRUE(demons.quality.rejected_gain.has_value());
  EXPECT_TRUE(demons.result.transform.has_velocity());
}

TEST_P(VerdictTest, ARejectedDeformationIsKeptOnDemandAndIsForReview) {
  const phantom::Phantom made = *phantom::MakePhantom(Options(6, 0, true));
  const PreparedImage fixed = Prepare(made.fixed), moving = Prepare(made.moving);
  const std::vector<StageOptions> stages = {kNgf, FfdOptions{.metric = MetricKind::kSsd}};
  const RegistrationOutcome kept = Run(fixed, moving, stages, kDefaultErrorLimitMm, /*keep=*/true);
  EXPECT_THAT(Causes(kept), Contains(ReviewCause::kDeformationRejected));
  EXPECT_TRUE(NeedsReview(kept.quality.review_reasons));
  const ConstFieldView grid = kept.result.transform.control_grid();
  EXPECT_THAT(Download(grid.data, 3 * grid.geometry.voxels()), Contains(Not(0.0f)));
  // Its numbers are those of the deformation.
  EXPECT_NE(kept.quality.jacobian.min, kept.quality.jacobian.max);
  EXPECT_TRUE(kept.quality.keeps_rejected);
  ASSERT_TRUE(kept.quality.error.has_value());
  EXPECT_GT(*kept.quality.error->deformation_mm, 0);
}

// A texture of waves on a grid with voxels of 1 mm, seen through a map.
std::vector<float> Waves(Int3 size, const std::function<Vec3d(Vec3d)>& map) {
  std::vector<float> voxels;
  for (int z = 0; z < size.z; ++z) {
    for (int y = 0; y < size.y; ++y) {
      for (int x = 0; x < size.x; ++x) {
        const Vec3d p = map({double(x), double(y), double(z)});
        double sum = 0;
        for (int k = 0; k < 12; ++k) {
          const double a = 1.7 * k + 1, f = 0.15 + 0.03 * k;
          sum += std::sin(f * Dot({std::sin(a), std::sin(2 * a + 1), size.z > 1 ? std::cos(3 * a) : 0}, p) + 5 * a);
        }
        voxels.push_back(static_cast<float>(500 + 100 * sum));
      }
    }
  }
  return voxels;
}

// A deformable method by its name finds a shift from the headers, which are off by it; 4 mm are more than the probe
// reaches, so that it sees nothing in common at the start.
TEST_P(VerdictTest, ADeformationThatContradictsTheStartIsKeptWhereItIsRight) {
  Geometry volume, slice;
  volume.size = {48, 48, 40};
  slice.size = {64, 96, 1};
  for (const Geometry& grid : {volume, slice}) {
    for (const double shift : {2.0, 4.0}) {
      const PreparedImage fixed = Prepare(Waves(grid.size,
                                                [&](Vec3d p) {
                                                  return p + Vec3d{shift, 0, 0};
                                                }),
                                          grid),
                          moving = Prepare(Waves(grid.size, [](Vec3d p) { return p; }), grid);
      for (const StageOptions& stage :
           {StageOptions(FfdOptions{.metric = MetricKind::kSsd}), StageOptions(LogDemonsOptions())}) {
        SCOPED_TRACE(absl::StrCat(MethodName(stage), " ", grid.size.z, " ", shift));
        const RegistrationOutcome found = Run(fixed, moving, {stage});
        EXPECT_FALSE(found.quality.rejected_gain.has_value());
        EXPECT_THAT(Causes(found), IsEmpty());
        std::vector<double> middle = {0.5 * grid.size.x, 0.5 * grid.size.y, 0.5 * (grid.size.z - 1)};
        const double before = middle[0];
        ASSERT_OK(MapPoints(ctx(), found.result.transform, false, absl::MakeSpan(middle)));
        EXPECT_NEAR(middle[0] - before, shift, 0.3);
      }
    }
  }
}

// 2 mm of swelling around a treated tumour: a few blocks of the image move.
TEST_P(VerdictTest, ASmallDeformationAroundALesionIsKept) {
  Geometry grid;
  grid.size = {56, 56, 48};
  const Vec3d lesion{24, 30, 22};
  const auto swelling = [&](Vec3d p) {
    const Vec3d d = p - lesion;
    return p + 2.0 / 8 * std::exp(0.5 - Dot(d, d) / 128) * d;
  };
  const PreparedImage fixed = Prepare(Waves(grid.size, swelling), grid),
                      moving = Prepare(Waves(grid.size, [](Vec3d p) { return p; }), grid);
  for (const StageOptions& stage : {StageOptions(FfdOptions()), StageOptions(LogDemonsOptions())}) {
    const RegistrationOutcome found = Run(fixed, moving, {kSsd, stage});
    SCOPED_TRACE(MethodName(stage));
    EXPECT_FALSE(found.quality.rejected_gain.has_value()) << *found.quality.rejected_gain;
    EXPECT_THAT(Causes(found), IsEmpty());
    const Vec3d p = lesion + Vec3d{8, 0, 0}, truth = swelling(p);
    std::vector<double> at = {p.x, p.y, p.z};
    ASSERT_OK(MapPoints(ctx(), found.result.transform, false, absl::MakeSpan(at)));
    EXPECT_NEAR(at[0], truth.x, 0.7);
  }
}

}  // namespace
}  // namespace intrawarp::server
