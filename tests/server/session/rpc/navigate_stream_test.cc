// SPDX-License-Identifier: Apache-2.0
// Navigate over gRPC: frames in order, their starts, their budgets and their results.
#include "server/session/rpc/navigate_stream.h"

#include <algorithm>
#include <cmath>

#include "google/rpc/error_details.pb.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/session/rpc/navigate_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

INTRAWARP_INSTANTIATE_DEVICE_TEST(NavigateTest);

// Slices with their poses, in the order in which a probe would cut them, against the resident volume. Each starts from
// the transform of the one before it.
TEST_P(NavigateTest, RegistersSlicesToTheVolume) {
  PutResident();
  v1::NavigateRequest config = Config(/*resident_is_fixed=*/false);
  const auto slice_at = [](int plane) {
    Geometry slice = Grid();
    slice.size.z = 1;
    slice.origin = IndexToPhysical(Grid())({0, 0, 1.0 * plane});
    return slice;
  };
  *config.mutable_config()->mutable_frame_geometry() = GeometryToProto(slice_at(0));
  std::vector<std::vector<v1::NavigateRequest>> parts = {{config}};
  constexpr int kPlanes[] = {8, 9, 11, 10, 12};
  // A slice shows its place as the resident image has it after the patient has moved.
  const AffineMap moved = MapOfFrame(2);
  for (int n = 1; n <= 5; ++n) {
    const Geometry slice = slice_at(kPlanes[n - 1]);
    parts.push_back(Frame(n, slice, Blobs(slice, Center(Grid()), kBlobScale, moved), /*chunk_bytes=*/3001));
  }
  const Answer answer = Navigate(parts);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 5);
  for (int n = 1; n <= 5; ++n) {
    SCOPED_TRACE(n);
    const v1::FrameResult& result = answer.frames[n - 1].result;
    EXPECT_EQ(result.frame_number(), n);
    ASSERT_EQ(result.status().code(), 0) << result.status().message();
    const AffineMap found = *AffineMapFromProto(result.report().affine());
    const Geometry slice = slice_at(kPlanes[n - 1]);
    const Vec3d d = found(Center(slice)) - moved(Center(slice));
    EXPECT_LT(std::sqrt(Dot(d, d)), 0.5);
    EXPECT_NEAR(Determinant(found), 1, 1e-6);
    EXPECT_TRUE(result.report().has_slice_pose());
    EXPECT_FALSE(result.report().has_same_frame_of_reference());
  }
  // The volume is not a fixed image for a slice.
  v1::NavigateRequest reversed = Config();
  const Answer refused = Navigate({{reversed}, Frame(1, slice_at(9), std::vector<float>(slice_at(9).voxels(), 1.0F))});
  if (refused.status.ok()) {
    ASSERT_EQ(refused.frames.size(), 1);
    EXPECT_EQ(refused.frames[0].result.status().code(), grpc::INVALID_ARGUMENT);
  } else {
    EXPECT_EQ(refused.status.error_code(), grpc::INVALID_ARGUMENT) << refused.status.error_message();
  }
}

TEST_P(NavigateTest, RegistersFramesInOrder) {
  PutResident();
  std::vector<std::vector<v1::NavigateRequest>> parts = {{Config()}};
  for (int n = 1; n <= 6; ++n) parts.push_back(GoodFrame(n));
  const Answer answer = Navigate(parts);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 6);
  for (int n = 1; n <= 6; ++n) {
    const v1::FrameResult& result = answer.frames[n - 1].result;
    EXPECT_EQ(result.frame_number(), n);
    EXPECT_EQ(result.acquisition_time().nanos(), 1000 * n);
    EXPECT_EQ(result.status().code(), 0) << result.status().message();
    EXPECT_LT(Distance(*AffineMapFromProto(result.report().affine()), MapOfFrame(n)), 0.25);
    EXPECT_THAT(result.transform(), testing::StartsWith("transforms/"));
    const v1::LatencyBreakdown& latency = result.report().latency();
    EXPECT_GT(latency.receive_ms(), 0);
    EXPECT_GT(latency.prepare_ms(), 0);
    EXPECT_GT(latency.optimise_ms(), 0);
    EXPECT_GE(latency.total_ms(), latency.receive_ms() + latency.prepare_ms() + latency.optimise_ms());
    EXPECT_FALSE(answer.frames[n - 1].field.has_value());
  }
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"frame\",outcome=\"ok\"} 6"));
  // They were kept while the stream lived.
  EXPECT_TRUE(Eventually([this] { return context().transforms.size() == 0; }));
}

TEST_P(NavigateTest, FramesMayBeTheFixedImage) {
  PutResident();
  Geometry grid = Grid();
  grid.size = {36, 44, 22};
  // A fixed frame is registered to the resident moving image by the map it was made with.
  const Answer answer =
      Navigate({{Config(false)}, Frame(5, grid, Blobs(grid, Center(Grid()), kBlobScale, MapOfFrame(2)))});

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 1);
  EXPECT_EQ(answer.frames[0].result.frame_number(), 5);
  EXPECT_LT(Distance(*AffineMapFromProto(answer.frames[0].result.report().affine()), MapOfFrame(2)), 0.25);
}

TEST_P(NavigateTest, StartsFromTheLastGoodResult) {
  PutResident();
  v1::NavigateRequest config = Config();
  v1::RegistrationOptions& options = *config.mutable_config()->mutable_options();
  SetLevels(*options.mutable_stages(0), 1);
  SetIterations(*options.mutable_stages(0), 2);
  *options.mutable_initial_affine() = AffineMapToProto(MapOfFrame(8));
  // Two iterations of one level do not reach frame 10 from frame 8 but by frame 9, and a frame that failed in between
  // does not matter.
  std::vector<std::vector<v1::NavigateRequest>> parts = {{config}, GoodFrame(9)};
  parts.push_back(Frame(10, Grid(), std::vector<float>(Grid().voxels(), 1.0f)));
  parts.push_back(Frame(11, Grid(), MovingFrame(Grid(), 9)));
  const Answer answer = Navigate(parts);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 3);
  const v1::FrameResult &first = answer.frames[0].result, &again = answer.frames[2].result;
  ASSERT_EQ(first.status().code(), 0) << first.status().message();
  EXPECT_EQ(answer.frames[1].result.status().code(), grpc::FAILED_PRECONDITION);
  ASSERT_EQ(again.status().code(), 0) << again.status().message();
  // The same image, from where it had been found: what was left of the error shrinks, and the objective begins where it
  // had ended.
  EXPECT_LT(Distance(*AffineMapFromProto(again.report().affine()), MapOfFrame(9)),
            Distance(*AffineMapFromProto(first.report().affine()), MapOfFrame(9)));
  EXPECT_NEAR(again.report().stages(0).levels(0).value_before(), first.report().stages(0).levels(0).value_after(),
              1e-6 * first.report().stages(0).levels(0).value_before());
}

// The first frame chooses, the others keep to it.
// The resident image, bent by up to `amplitude` voxels along x, most in its middle.
std::vector<float> BentImage(const Geometry& grid, const std::vector<float>& image, double amplitude) {
  const Int3 n = grid.size;
  std::vector<float> bent;
  for (int z = 0; z < n.z; ++z) {
    for (int y = 0; y < n.y; ++y) {
      for (int x = 0; x < n.x; ++x) {
        const double u = (x + 0.5) / n.x - 0.5, v = (y + 0.5) / n.y - 0.5, w = (z + 0.5) / n.z - 0.5;
        const double at = std::clamp(x + amplitude * std::exp(-20 * (u * u + v * v + w * w)), 0.0, n.x - 1.001);
        const int low = static_cast<int>(at);
        const float* row = image.data() + (int64_t{z} * n.y + y) * n.x;
        bent.push_back(static_cast<float>((low + 1 - at) * row[low] + (at - low) * row[low + 1]));
      }
    }
  }
  return bent;
}

// Frames that a deformation brings onto the resident image: the first accepted one settles the choice.
TEST_P(NavigateTest, ASessionChoosesOnce) {
  PutResident();
  v1::NavigateRequest config = Config();
  v1::RegistrationOptions& options = *config.mutable_config()->mutable_options();
  options.clear_stages();
  *options.mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
  std::vector<std::vector<v1::NavigateRequest>> parts = {{config}};
  parts.push_back(Frame(1, Grid(), std::vector<float>(Grid().voxels(), 1.0f)));
  for (const int frame : {2, 3, 4}) parts.push_back(Frame(frame, Grid(), BentImage(Grid(), ResidentImage(), 4)));
  const Answer answer = Navigate(parts);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 4);
  EXPECT_EQ(answer.frames[0].result.status().code(), grpc::FAILED_PRECONDITION);
  for (int i = 1; i < 4; ++i) ASSERT_EQ(answer.frames[i].result.status().code(), 0);
  const v1::Report& first = answer.frames[1].result.report();
  ASSERT_TRUE(first.has_choice());
  ASSERT_EQ(first.options().stages_size(), 2);
  for (int i = 2; i < 4; ++i) {
    const v1::Report& report = answer.frames[i].result.report();
    EXPECT_FALSE(report.has_choice()) << report.choice().text();
    ASSERT_EQ(report.options().stages_size(), 2);
    EXPECT_EQ(report.options().stages(0).affine().metric(), first.options().stages(0).affine().metric());
    EXPECT_EQ(report.options().stages(1).ffd().metric(), first.options().stages(1).ffd().metric());
    EXPECT_EQ(report.options().stages(1).ffd().bending_weight(), first.options().stages(1).ffd().bending_weight());
  }
}

TEST_P(NavigateTest, ADeformableMethodGoesOnFromTheLastFrame) {
  PutResident();
  for (const auto& [method, encoding] : kDeformable) {
    SCOPED_TRACE(static_cast<int>(method));
    v1::NavigateRequest config = Config();
    v1::RegistrationOptions& options = *config.mutable_config()->mutable_options();
    v1::Stage& stage = *options.mutable_stages(0);
    SetMethod(stage, method);
    SetMetric(stage, v1::METRIC_SSD);
    SetLevels(stage, 1);
    SetIterations(stage, 10);
    // On half the grid the velocity is not quite the last one.
    if (stage.has_log_demons()) stage.mutable_log_demons()->set_velocity_grid(v1::VELOCITY_GRID_FULL);
    *options.mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
    // The same image twice, with a frame between them that fails.
    std::vector<std::vector<v1::NavigateRequest>> parts = {{config}, GoodFrame(2)};
    parts.push_back(Frame(3, Grid(), std::vector<float>(Grid().voxels(), 1.0f)));
    parts.push_back(Frame(4, Grid(), MovingFrame(Grid(), 2)));
    const Answer answer = Navigate(parts);

    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.frames.size(), 3);
    const v1::FrameResult &first = answer.frames[0].result, &again = answer.frames[2].result;
    ASSERT_EQ(first.status().code(), 0) << first.status().message();
    EXPECT_EQ(answer.frames[1].result.status().code(), grpc::FAILED_PRECONDITION);
    ASSERT_EQ(again.status().code(), 0) << again.status().message();
    const v1::LevelReport &before = first.report().stages(0).levels(0), &after = again.report().stages(0).levels(0);
    EXPECT_LT(before.value_after(), 0.5 * before.value_before());
    EXPECT_NEAR(after.value_before(), before.value_after(), 1e-5 * before.value_before());
    EXPECT_LT(after.value_after(), after.value_before());
  }
}

TEST_P(NavigateTest, KeepsTheLastSixteenTransforms) {
  PutResident();
  v1::NavigateRequest config = Config();
  SetLevels(*config.mutable_config()->mutable_options()->mutable_stages(0), 1);
  SetIterations(*config.mutable_config()->mutable_options()->mutable_stages(0), 1);
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(config));
  std::vector<std::string> names;
  for (int n = 1; n <= 20; ++n) {
    ASSERT_TRUE(WriteAll(*stream, Frame(n, Grid(), MovingFrame(Grid(), 1))));
    const std::optional<Answered> answered = ReadResult(*stream);
    ASSERT_TRUE(answered.has_value());
    names.push_back(answered->result.transform().substr(std::string("transforms/").size()));
    EXPECT_EQ(context().transforms.size(), std::min(n, 16));
  }
  EXPECT_FALSE(context().transforms.Find(names[3]).ok());
  EXPECT_TRUE(context().transforms.Find(names[4]).ok());
  rpc.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(Eventually([this] { return context().transforms.size() == 0; }));
}

TEST_P(NavigateTest, ABudgetOfAFrameIsItsOwn) {
  PutResident();
  v1::NavigateRequest config = Config();
  config.mutable_config()->mutable_options()->mutable_budget()->set_nanos(1);
  const Answer strict = Navigate({{config}, GoodFrame(1), GoodFrame(2)});
  config.mutable_config()->mutable_options()->set_best_effort(true);
  const Answer best_effort = Navigate({{config}, GoodFrame(1), GoodFrame(2)});

  ASSERT_TRUE(strict.status.ok() && best_effort.status.ok());
  ASSERT_EQ(strict.frames.size(), 2);
  ASSERT_EQ(best_effort.frames.size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(strict.frames[i].result.status().code(), grpc::DEADLINE_EXCEEDED);
    EXPECT_THAT(strict.frames[i].result.status().message(), testing::StartsWith("config.options.budget: "));
    google::rpc::ErrorInfo info;
    ASSERT_GT(strict.frames[i].result.status().details_size(), 0);
    ASSERT_TRUE(strict.frames[i].result.status().details(0).UnpackTo(&info));
    EXPECT_EQ(info.reason(), "BUDGET_USED_UP");
    EXPECT_EQ(best_effort.frames[i].result.status().code(), 0);
    EXPECT_EQ(best_effort.frames[i].result.report().stop_reason(), v1::STOP_REASON_BUDGET);
  }
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"frame\",outcome=\"deadline_missed\"} 2"));
}

TEST_P(NavigateTest, TheFirstAnswerAndTheLastTellOfTheSession) {
  PutResident();
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(Config()));
  const v1::SessionOpened opened = ReadOpened(*stream);
  EXPECT_EQ(opened.session().state(), v1::SESSION_STATE_ACTIVE);
  EXPECT_THAT(opened.session().name(), testing::MatchesRegex("sessions/[0-9a-f]+"));
  EXPECT_TRUE(opened.session().warm());
  EXPECT_FALSE(opened.has_resumed_from_frame());
  ASSERT_TRUE(WriteAll(*stream, GoodFrame(1)));
  ASSERT_TRUE(ReadResult(*stream).has_value());
  stream->WritesDone();
  v1::NavigateResponse last;
  ASSERT_TRUE(stream->Read(&last));
  EXPECT_EQ(last.closed().name(), opened.session().name());
  EXPECT_EQ(last.closed().state(), v1::SESSION_STATE_CLOSED);
  EXPECT_EQ(last.closed().statistics().frames_ok(), 1);
  EXPECT_FALSE(stream->Read(&last));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(context().sessions.size(), 0);
}

// Resident memory for four results of log-demons, of which a session with one pending frame holds three back.
class CrowdedNavigateTest : public NavigateTest {
 protected:
  static int64_t ResultBytes() { return 36 * Grid().voxels(); }
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.resident_capacity_bytes = 4 * ResultBytes();
    return limits;
  }
  CrowdedNavigateTest() : NavigateTest(Limits()) {}

  static v1::NavigateRequest DemonsConfig() {
    v1::NavigateRequest config = Config();
    v1::Stage& stage = *config.mutable_config()->mutable_options()->mutable_stages(0);
    SetMethod(stage, StageKind::kLogDemons);
    SetLevels(stage, 1);
    SetIterations(stage, 2);
    config.mutable_config()->set_max_pending(1);
    return config;
  }
};

INTRAWARP_INSTANTIATE_DEVICE_TEST(CrowdedNavigateTest);

TEST_P(CrowdedNavigateTest, TheOldestResultsMakeRoom) {
  PutResident();
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(DemonsConfig()));
  for (int n = 1; n <= 9; ++n) {
    ASSERT_TRUE(WriteAll(*stream, GoodFrame(n)));
    const std::optional<Answered> answered = ReadResult(*stream);
    ASSERT_TRUE(answered.has_value());
    EXPECT_EQ(answered->result.status().code(), 0) << n << " " << answered->result.status().message();
    EXPECT_LE(context().transforms.size(), 4);
    EXPECT_EQ(context().ledger.in_use(Resource::kResident), 4 * ResultBytes());
  }
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kResident) == 0; }));
}

// Others take what the session has not.
TEST_P(CrowdedNavigateTest, FramesHaveRoomForTheirResultsWhateverOthersTake) {
  PutResident();
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(DemonsConfig()));
  v1::NavigateResponse opened;
  ASSERT_TRUE(stream->Read(&opened));
  ASSERT_TRUE(opened.has_opened());
  EXPECT_EQ(context().ledger.in_use(Resource::kResident), 3 * ResultBytes());
  const Grant others = *context().ledger.Admit({{.resident_bytes = ResultBytes()}}, Share::kSession);
  for (int n = 1; n <= 5; ++n) {
    ASSERT_TRUE(WriteAll(*stream, GoodFrame(n)));
    const std::optional<Answered> answered = ReadResult(*stream);
    ASSERT_TRUE(answered.has_value());
    EXPECT_EQ(answered->result.status().code(), 0) << n << " " << answered->result.status().message();
    EXPECT_EQ(context().transforms.size(), std::min(n, 3));
  }
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(CrowdedNavigateTest, TheStartOfTheNextFrameIsCountedWhoeverDeletesIt) {
  PutResident();
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(DemonsConfig()));
  ASSERT_TRUE(WriteAll(*stream, GoodFrame(1)));
  const std::optional<Answered> answered = ReadResult(*stream);
  ASSERT_TRUE(answered.has_value());
  ASSERT_EQ(answered->result.status().code(), 0) << answered->result.status().message();
  grpc::ClientContext deletion;
  v1::DeleteTransformRequest request;
  v1::DeleteTransformResponse response;
  request.set_name(answered->result.transform());
  ASSERT_TRUE(transforms_->DeleteTransform(&deletion, request, &response).ok());
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_EQ(context().ledger.in_use(Resource::kResident), 4 * ResultBytes());
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(Eventually([this] { return context().ledger.in_use(Resource::kResident) == 0; }));
}

}  // namespace
}  // namespace intrawarp::server
