// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_job.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/device_test.h"
#include "tests/engine/registration/textured_pair.h"
#include "tests/server/counting_device.h"

namespace intrawarp::server {
namespace {

Geometry Grid() {
  Geometry grid;
  grid.size = {48, 40, 36};
  return grid;
}

// A soft ball about the grid's centre, moved along x.
std::vector<float> Ball(double shift) {
  std::vector<float> voxels;
  const Int3 size = Grid().size;
  for (int z = 0; z < size.z; ++z) {
    for (int y = 0; y < size.y; ++y) {
      for (int x = 0; x < size.x; ++x) {
        const Vec3d d{x - shift - size.x / 2.0, 1.2 * y - 0.6 * size.y, z - size.z / 2.0};
        voxels.push_back(static_cast<float>(100 * std::exp(-Dot(d, d) / 120)));
      }
    }
  }
  return voxels;
}

class RegistrationJobTest : public DeviceTest {
 protected:
  PreparedImage PrepareOn(const Geometry& grid, const std::vector<float>& voxels) {
    return *PreparedImage::Prepare(ctx(), voxels.data(), PixelType::kFloat32, 1, 0, grid);
  }
  PreparedImage Prepare(double shift) { return PrepareOn(Grid(), Ball(shift)); }
  RegistrationInput Input(std::vector<StageOptions> stages) const {
    RegistrationInput input;
    input.fixed = &fixed_;
    input.moving = &moving_;
    input.stages = std::move(stages);
    return input;
  }

  RegistrationInput Automatic(const PreparedImage& fixed, const PreparedImage& moving) const {
    RegistrationInput input = Input(AutomaticStages());
    input.fixed = &fixed;
    input.moving = &moving;
    input.automatic = true;
    return input;
  }
  static AffineMap Shifted() {
    AffineMap affine = AffineMap::Identity();
    affine.m[0][0] = 1.04;
    affine.m[0][3] = 5;
    affine.m[1][3] = -4;
    return affine;
  }

  // The device memory that a job took at its peak, what its result holds of it, its claim, and its choice.
  struct Measured {
    int64_t peak_bytes = 0, result_bytes = 0;
    Claim claim;
    std::optional<Choice> choice = std::nullopt;
  };
  // Runs the job in exactly the memory that it claims, and expects that it needs half of the claim at least.
  Measured RunInItsClaim(const RegistrationInput& input) {
    Measured measured{.claim = *RegistrationClaim(device(), input, nullptr)};
    const Claim& claim = measured.claim;
    LedgerOptions capacity;
    capacity.capacity = claim;
    Ledger ledger(capacity);
    auto grant = std::make_shared<Grant>(*ledger.Admit(claim));
    const Grant workspace = grant->Split({.workspace_bytes = claim.workspace_bytes});
    CountingDevice counting(device());
    RunCounted(input, claim, counting, ledger, grant, &measured);
    EXPECT_EQ(counting.bytes(), 0);
    measured.peak_bytes = counting.peak_bytes();
    const int64_t promised =
        ledger.use(Resource::kResident).peak + ledger.use(Resource::kWorkspace).peak + int64_t{Arena::kAlignment};
    EXPECT_LE(measured.peak_bytes, promised);
    EXPECT_GE(measured.peak_bytes, promised / 2);
    return measured;
  }
  void RunCounted(const RegistrationInput& input, const Claim& claim, Device& counting, const Ledger& ledger,
                  const std::shared_ptr<Grant>& grant, Measured* measured) {
    absl::StatusOr<OwnedContext> owned = OwnedContext::Create(counting, static_cast<size_t>(claim.workspace_bytes));
    ASSERT_OK(owned.status());
    JobControl control(seams_, std::nullopt);
    RegistrationTask task{input, [&](int64_t) { return grant; }, std::nullopt, false, std::nullopt};
    LatencyBreakdown latency;
    absl::StatusOr<RegistrationOutcome> outcome = RunRegistration(owned->context(), task, control, latency);
    ASSERT_OK(outcome.status());
    EXPECT_EQ(ledger.in_use(Resource::kResident), outcome->result.transform.resident_bytes());
    EXPECT_LE(outcome->result.transform.resident_bytes(), RegistrationResultBytes(input));
    measured->result_bytes = outcome->result.transform.resident_bytes();
    measured->choice = std::move(outcome->result.choice);
  }

  const PreparedImage fixed_ = Prepare(0), moving_ = Prepare(2);
  const Seams seams_ = SystemSeams();
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(RegistrationJobTest);

// Everything that the job allocates, result and workspace, is in its claim, and the claim is not a fantasy.
TEST_P(RegistrationJobTest, TheClaimExplainsThePeakOfDeviceMemory) {
  for (const std::vector<StageOptions>& stages :
       {std::vector<StageOptions>{AffineOptions()}, std::vector<StageOptions>{AffineOptions(), FfdOptions()},
        std::vector<StageOptions>{SearchOptions(), FfdOptions(), FfdOptions()},
        std::vector<StageOptions>{LogDemonsOptions()}, AutomaticStages()}) {
    RegistrationInput input = Input(stages);
    input.automatic = stages.size() == AutomaticStages().size();
    RunInItsClaim(input);
  }
}

// The tissue is further from the affine map than from the start, so that a search is tried, and the deformation after
// it, while the first deformation stays: three transforms at the same time.
TEST_P(RegistrationJobTest, TheClaimExplainsThePeakOfASearchedAutomaticRegistration) {
  const Pair pair = MakeTexturedPair(Texture(7, /*is_2d=*/false), 2.2, 5, /*is_2d=*/false, Shifted());
  const PreparedImage fixed = PrepareOn(pair.fixed_grid, pair.fixed), moving = PrepareOn(pair.moving_grid, pair.moving);
  const Measured measured = RunInItsClaim(Automatic(fixed, moving));
  ASSERT_TRUE(measured.choice.has_value());
  ASSERT_EQ(measured.choice->deformations.size(), 2);
  EXPECT_TRUE(measured.choice->deformations[1].is_searched);
  EXPECT_TRUE(measured.choice->deformations[1].has_result);
  // All three are needed.
  const int64_t search = StageResultBytes(SearchOptions(), pair.fixed_grid);
  EXPECT_GT(measured.peak_bytes - measured.claim.workspace_bytes, measured.claim.resident_bytes - search);
}

// A block slides past the rest, so that two layers are merged. Their memory is claimed while they are there, and the
// result by itself afterwards.
TEST_P(RegistrationJobTest, TheClaimExplainsThePeakOfLayersThatSlide) {
  const Pair pair = MakeSlidingPair();
  const PreparedImage fixed = PrepareOn(pair.fixed_grid, pair.fixed), moving = PrepareOn(pair.moving_grid, pair.moving);
  const FfdOptions options{.metric = MetricKind::kSsd, .spacing_vox = 10, .sliding = true};
  FfdOptions layer = options;
  layer.sliding = false;
  for (const std::vector<StageOptions>& stages :
       {std::vector<StageOptions>{options}, std::vector<StageOptions>{SearchOptions{}, options}}) {
    RegistrationInput input = Input(stages);
    input.fixed = &fixed;
    input.moving = &moving;
    input.initial = AffineMap::Identity();
    const Measured measured = RunInItsClaim(input);
    EXPECT_EQ(measured.result_bytes, RegistrationResultBytes(input));
    const int64_t held = measured.peak_bytes - measured.claim.workspace_bytes;
    EXPECT_GE(held, measured.claim.resident_bytes - StageResultBytes(layer, pair.fixed_grid));
  }
}

TEST_P(RegistrationJobTest, TheClaimExplainsThePeakOfAnAutomaticRegistrationOfPlanes) {
  const Pair pair = MakeTexturedPair(Texture(7, /*is_2d=*/true), 2.2, 4, /*is_2d=*/true, Shifted());
  const PreparedImage fixed = PrepareOn(pair.fixed_grid, pair.fixed), moving = PrepareOn(pair.moving_grid, pair.moving);
  RunInItsClaim(Automatic(fixed, moving));
}

TEST_P(RegistrationJobTest, AClaimHoldsTwoTransformsAtTheEndOfAStage) {
  const int64_t field = RegistrationMemoryBytes(Input({LogDemonsOptions()}));
  const int64_t grid = RegistrationMemoryBytes(Input({FfdOptions()}));
  EXPECT_EQ(field, 36 * Grid().voxels());
  EXPECT_GT(grid, 0);
  EXPECT_EQ(RegistrationMemoryBytes(Input({AffineOptions(), FfdOptions()})), grid);
  EXPECT_EQ(RegistrationMemoryBytes(Input({FfdOptions(), LogDemonsOptions()})), grid + field);
  const int64_t search = RegistrationMemoryBytes(Input({SearchOptions()}));
  EXPECT_GT(search, 0);
  EXPECT_EQ(RegistrationMemoryBytes(Input({SearchOptions(), FfdOptions(), FfdOptions()})),
            grid + std::max(search, grid));
}

TEST_P(RegistrationJobTest, AnAutomaticClaimIsOfTransformsThatMeet) {
  // The best deformation, and two stages after each other that begin with a search.
  const RegistrationInput volumes = Automatic(fixed_, moving_);
  const int64_t grid = StageResultBytes(FfdOptions(), Grid()), search = StageResultBytes(SearchOptions(), Grid());
  const int64_t searched = RegistrationResultBytes(volumes);
  EXPECT_GT(searched, grid);
  EXPECT_EQ(RegistrationMemoryBytes(volumes), grid + std::max(search, searched) + searched);
  // Planes are not searched.
  const Geometry plane{.size = {48, 40, 1}};
  const PreparedImage image = PrepareOn(plane, Ball(0));
  EXPECT_EQ(RegistrationResultBytes(Automatic(image, image)), StageResultBytes(FfdOptions(), plane));
  EXPECT_EQ(RegistrationMemoryBytes(Automatic(image, image)), 2 * StageResultBytes(FfdOptions(), plane));
}

TEST_P(RegistrationJobTest, AFieldAddsItsRingToTheClaim) {
  FieldRequest field;
  const RegistrationInput input = Input({AffineOptions()});
  const Claim without = *RegistrationClaim(device(), input, nullptr);
  const Claim with = *RegistrationClaim(device(), input, &field);
  EXPECT_EQ(without.pinned_bytes, 0);
  EXPECT_GE(with.pinned_bytes, 12 * Grid().voxels());
  EXPECT_LE(with.pinned_bytes, int64_t{13} << 20);  // four slabs
  EXPECT_EQ(with.transforms, 1);
}

// Records what a job announced, by name.
class Announced {
 public:
  explicit Announced(Device& device) : device_(device) {}

  FieldOutput Output(const char* name) {
    return {.request = {},
            .stream = nullptr,
            .lease = [this](int64_t bytes) -> absl::StatusOr<std::shared_ptr<char>> {
              return BytesOf(std::make_shared<PinnedBuffer>(*device_.AllocatePinned(static_cast<size_t>(bytes))));
            },
            .send =
                [this, name](const v1::FieldHeader& header, std::shared_ptr<BulkBuffer> bytes) {
                  EXPECT_EQ(header.total_bytes(), 12 * Grid().voxels());
                  names.emplace_back(name);
                  fields.push_back(std::move(bytes));
                },
            .advanced = [] { return true; }};
  }

  std::vector<std::string> names;
  std::vector<std::shared_ptr<BulkBuffer>> fields;

 private:
  Device& device_;
};

// It takes no more device memory than is claimed.
TEST_P(RegistrationJobTest, ACoarseFieldIsSentBeforeTheFinalOne) {
  for (const std::vector<StageOptions>& stages :
       {std::vector<StageOptions>{AffineOptions(), FfdOptions{.metric = MetricKind::kSsd}},
        std::vector<StageOptions>{LogDemonsOptions()}}) {
    RegistrationInput input = Input(stages);
    input.coarse = CoarseFieldHook(device(), Grid());
    const Claim claim = *RegistrationClaim(device(), input, nullptr);
    CountingDevice counting(device());
    Announced announced(device());
    {
      absl::StatusOr<OwnedContext> owned = OwnedContext::Create(counting, static_cast<size_t>(claim.workspace_bytes));
      ASSERT_OK(owned.status());
      JobControl control(seams_, std::nullopt);
      RegistrationTask task{input, [](int64_t) { return std::make_shared<Grant>(); }, {}, false, {}, {}};
      task.field = announced.Output("final");
      task.coarse_field = announced.Output("coarse");
      LatencyBreakdown latency;
      ASSERT_OK(RunRegistration(owned->context(), task, control, latency).status());
      EXPECT_GE(latency.phase(Phase::kOptimise).count(), 0);
    }
    EXPECT_THAT(announced.names, testing::ElementsAre("coarse", "final"));
    for (const auto& field : announced.fields) EXPECT_EQ(field->produced(), field->total_bytes());
    EXPECT_LE(counting.peak_bytes(), claim.resident_bytes + claim.workspace_bytes + int64_t{Arena::kAlignment});
  }
}

TEST_P(RegistrationJobTest, NoCoarseFieldOfACancelledJob) {
  LogDemonsOptions options;
  options.levels = 2;
  options.iterations = 1;
  RegistrationInput input = Input({options});
  input.coarse = CoarseFieldHook(device(), Grid());
  Announced announced(device());
  for (const bool cancel : {false, true}) {
    JobControl control(seams_, std::nullopt);
    // The only look at the coarse level; the next one would be within the finest.
    if (cancel) control.set_on_progress([&](const Progress&) { control.Cancel(); });
    absl::StatusOr<OwnedContext> owned =
        OwnedContext::Create(device(), static_cast<size_t>(RegistrationJobBytes(device(), input)));
    ASSERT_OK(owned.status());
    RegistrationTask task{input, [](int64_t) { return std::make_shared<Grant>(); }, {}, false, {}, {}};
    task.coarse_field = announced.Output("coarse");
    LatencyBreakdown latency;
    const ExecContext ctx = owned->context([&](const Progress& progress) { return control.Check(progress); });
    const absl::Status status = RunRegistration(ctx, task, control, latency).status();
    EXPECT_EQ(status.code(), cancel ? absl::StatusCode::kCancelled : absl::StatusCode::kOk) << status;
    EXPECT_THAT(announced.names, testing::ElementsAre("coarse"));
  }
}

}  // namespace
}  // namespace intrawarp::server
