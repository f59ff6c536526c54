// SPDX-License-Identifier: Apache-2.0
// The life of a session without gRPC: opening, resumption, expiry, what it keeps and gives back.
#include "server/session/navigate_session.h"

#include "absl/strings/str_cat.h"
#include "tests/server/session/session_fixture.h"

namespace intrawarp::server {
namespace {

using State = NavigateSession::State;
using std::chrono::minutes;
using std::chrono::seconds;

class NavigateSessionTest : public SessionTest {
 protected:
  explicit NavigateSessionTest(const ServerLimits& limits = ServerLimits()) : SessionTest(limits) {}

  static v1::NavigateConfig Named(const std::string& id) {
    v1::NavigateConfig config = RigidConfig();
    config.set_session_id(id);
    return config;
  }
  static v1::NavigateConfig Resuming(const std::string& id) {
    v1::NavigateConfig config;
    config.set_session_id(id);
    config.set_resume(true);
    return config;
  }
  absl::Status OpenError(const v1::NavigateConfig& config) {
    return context().sessions.Open(context(), config).status();
  }
  v1::ErrorReason OpenReason(const v1::NavigateConfig& config) { return server::ReasonOf(OpenError(config)); }
  void Expire() { context().sessions.Expire(context().seams.steady_now()); }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(NavigateSessionTest);

TEST_P(NavigateSessionTest, OpensWarm) {
  v1::NavigateConfig config = Named("s");
  config.set_rate_hz(10);
  absl::StatusOr<std::shared_ptr<NavigateSession>> session = context().sessions.Open(context(), config);
  ASSERT_OK(session.status());
  EXPECT_EQ((*session)->state(), State::kOpening);
  EXPECT_EQ((*session)->Describe().reserved_bytes(), 0);
  (*session)->Close(absl::OkStatus());

  auto carrier = Open(config);
  const v1::Session opened = carrier->session().Describe();
  EXPECT_EQ(opened.name(), "sessions/s");
  EXPECT_EQ(opened.state(), v1::SESSION_STATE_ACTIVE);
  EXPECT_TRUE(opened.warm());
  EXPECT_EQ(opened.reserved_bytes(), 3 * 4 * Grid().voxels());
  EXPECT_FALSE(opened.has_load());
  EXPECT_FALSE(opened.has_start_frame_number());
  // The defaults are filled in.
  EXPECT_EQ(opened.config().max_pending(), 2);
  EXPECT_EQ(opened.config().overload_policy(), v1::OVERLOAD_POLICY_KEEP_ALL);
  EXPECT_EQ(opened.config().late_frames(), v1::LATE_FRAMES_DROP);
  EXPECT_EQ(opened.config().resume_window().seconds(), 30);
  EXPECT_EQ(opened.config().idle_timeout().seconds(), 15 * 60);
  EXPECT_EQ(opened.config().frame_pixel_type(), v1::PIXEL_TYPE_FLOAT32);
  EXPECT_TRUE(*GeometryFromProto(opened.config().frame_geometry()) == Grid());
  // The warm-up left nothing and counted nothing.
  EXPECT_EQ(context().transforms.size(), 0);
  EXPECT_EQ(context().ledger.in_use(Resource::kResident), 0);
  EXPECT_EQ(opened.statistics().ByteSizeLong(), 0u);

  ASSERT_OK(carrier->Send(GoodFrame(1)));
  Answers(*carrier, 1);
  EXPECT_GT(carrier->session().Describe().load(), 0);
}

// The frames will say why.
TEST_P(NavigateSessionTest, OptionsThatTheResidentVolumeDoesNotSuitOpenCold) {
  v1::NavigateConfig config = RigidConfig();
  v1::Stage& stage = *config.mutable_options()->mutable_stages(0);
  SetMethod(stage, StageKind::kFfd);
  stage.mutable_ffd()->set_spacing_vox(0.5);
  auto carrier = Open(config);
  EXPECT_FALSE(carrier->session().Describe().warm());
}

// Images that some metrics do not suit are warmed up with those that the registration chooses from.
TEST_P(NavigateSessionTest, ASessionThatChoosesWarmsUpWithMetricsThatSuit) {
  for (const Int3 size : {Int3{40, 48, 20}, Int3{40, 2, 20}, Int3{40, 48, 1}}) {
    const std::string name = absl::StrCat("resident", size.y, "x", size.z);
    const Geometry grid = ObliqueGeometry(size);
    PutVolume(name, grid, Blobs(grid, Center(grid), kBlobScale, AffineMap::Identity()));
    for (const bool is_fixed : {true, false}) {
      v1::NavigateConfig config;
      (is_fixed ? config.mutable_fixed() : config.mutable_moving())->assign(absl::StrCat("volumes/", name));
      auto carrier = Open(config);
      EXPECT_TRUE(carrier->session().Describe().warm()) << name;
      carrier->Finish();
    }
  }
}

// A choice that a budget has cut short may not be the best one, so the next frame chooses again. After a search the
// frames repeat it: an ffd stage only would leave the affine part where the first frame started.
TEST_P(NavigateSessionTest, KeepsAChoiceThatIsWhole) {
  const std::shared_ptr<NavigateSession> session = *context().sessions.Open(context(), Named("s"));
  const int64_t carrier = *session->Open(/*warm=*/true, [](const absl::Status&) {});
  NavigateFrame frame(context(), context().seams.steady_now());
  frame.record.Repeated();
  RegistrationResult& result = frame.outcome.result;
  result.choice.emplace();
  result.choice->error.emplace();
  result.choice->stages = {SearchOptions{}, FfdOptions{}};
  result.stop_reason = StopReason::kBudget;
  session->SetStart(carrier, frame);
  EXPECT_TRUE(session->start()->chosen.empty());
  result.stop_reason = StopReason::kNoProgress;
  session->SetStart(carrier, frame);
  ASSERT_EQ(session->start()->chosen.size(), 2);
  EXPECT_TRUE(std::holds_alternative<SearchOptions>(session->start()->chosen[0]));
  // The choice before stays.
  result.stop_reason = StopReason::kBudget;
  session->SetStart(carrier, frame);
  EXPECT_EQ(session->start()->chosen.size(), 2);
}

TEST_P(NavigateSessionTest, EveryMethodAndTypeOfPixelsWarmsUp) {
  for (const StageKind kind : {StageKind::kRigid, StageKind::kAffine, StageKind::kFfd, StageKind::kLogDemons}) {
    for (const bool is_fixed : {true, false}) {
      v1::NavigateConfig config = RigidConfig(is_fixed);
      SetMethod(*config.mutable_options()->mutable_stages(0), kind);
      config.mutable_options()->mutable_budget()->set_nanos(1);
      config.set_frame_masks(is_fixed);
      auto carrier = Open(config);
      EXPECT_TRUE(carrier->session().Describe().warm()) << static_cast<int>(kind);
      carrier->Finish();
    }
  }
  for (int type = v1::PIXEL_TYPE_UINT8; type <= v1::PIXEL_TYPE_FLOAT64; ++type) {
    v1::NavigateConfig config = RigidConfig();
    config.set_frame_pixel_type(static_cast<v1::PixelType>(type));
    auto carrier = Open(config);
    EXPECT_TRUE(carrier->session().Describe().warm()) << type;
    carrier->Finish();
  }
}

TEST_P(NavigateSessionTest, GoesOnFromTheLastGoodTransform) {
  v1::NavigateConfig config = Named("s");
  SetLevels(*config.mutable_options()->mutable_stages(0), 1);
  *config.mutable_options()->mutable_initial_affine() = AffineMapToProto(AffineMap::Identity());
  auto first = Open(config);
  ASSERT_OK(first->Send(GoodFrame(4)));
  const v1::Report before = Answers(*first, 1)[0].report();
  first->Break();
  EXPECT_EQ(first->session().state(), State::kDetached);
  EXPECT_EQ(context().transforms.size(), 1);
  EXPECT_GT(first->session().Describe().reserved_bytes(), 0);

  ASSERT_OK(OpenError(Resuming("s")));
  auto second = std::make_unique<Carrier>(*context().sessions.Find("s"), [] {});
  ASSERT_OK(second->Resume());
  const v1::Session resumed = second->session().Describe();
  EXPECT_EQ(resumed.state(), v1::SESSION_STATE_ACTIVE);
  EXPECT_EQ(resumed.start_frame_number(), 4);
  EXPECT_EQ(resumed.last_frame_number(), 4);
  EXPECT_EQ(resumed.resumptions(), 1);
  EXPECT_EQ(context().sessions.counts().resumed, 1);
  // A client that sends again what was answered has an error for it, and goes on.
  ASSERT_OK(second->Send(GoodFrame(4)));
  ASSERT_OK(second->Send(FrameRequests(5, Grid(), MovingFrame(Grid(), 4))));
  const std::vector<v1::FrameResult> answers = Answers(*second, 2);
  EXPECT_THAT(answers[0].status().message(), testing::HasSubstr("4 does not grow"));
  EXPECT_EQ(second->session().Describe().last_frame_number(), 5);
  const v1::FrameResult& again = answers[1];
  ASSERT_EQ(again.status().code(), 0) << again.status().message();
  const double ended = before.stages(0).levels(0).value_after();
  EXPECT_NEAR(again.report().stages(0).levels(0).value_before(), ended,
              1e-6 * before.stages(0).levels(0).value_before());
  second->Finish();
  EXPECT_EQ(context().sessions.size(), 0);
  EXPECT_EQ(context().transforms.size(), 0);
}

TEST_P(NavigateSessionTest, ASecondCarrierFencesTheFirst) {
  FieldGate gate;
  v1::NavigateConfig config = FieldConfig();
  config.set_session_id("s");
  auto first = Open(config, gate.hook());
  gate.Arm();
  ASSERT_OK(first->Send(GoodFrame(1)));
  gate.WaitUntilReached();

  auto second = std::make_unique<Carrier>(*context().sessions.Find("s"), [] {});
  ASSERT_OK(second->Resume());
  EXPECT_EQ(first->ended().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(server::ReasonOf(first->ended()), v1::SESSION_ENDED);
  // The first one's calls have no effect any more: neither its result nor its end.
  gate.Open();
  EXPECT_TRUE(Eventually([&] { return context().jobs.pending() == 0; }));
  EXPECT_EQ(second->session().start(), nullptr);
  first->Finish();
  EXPECT_EQ(second->session().state(), State::kActive);
  first->Break();
  EXPECT_EQ(second->session().state(), State::kActive);
  EXPECT_TRUE(second->ended().ok());

  ASSERT_OK(second->Send(GoodFrame(2)));
  EXPECT_EQ(Answers(*second, 1)[0].status().code(), 0);
}

TEST_P(NavigateSessionTest, AResumptionThatFailsIsNotCounted) {
  auto carrier = Open(Named("s"));
  const absl::StatusOr<std::shared_ptr<NavigateSession>> found = context().sessions.Open(context(), Resuming("s"));
  ASSERT_OK(found.status());
  carrier->Finish();
  EXPECT_FALSE((*found)->Resume([](const absl::Status&) {}).ok());
  EXPECT_EQ(context().sessions.counts().resumed, 0);
}

TEST_P(NavigateSessionTest, ExpiresWhenNobodyResumesIt) {
  v1::NavigateConfig config = Named("s");
  config.mutable_resume_window()->set_seconds(60);
  auto carrier = Open(config);
  carrier->Break();
  AdvanceClock(seconds(30));
  Expire();
  EXPECT_EQ(carrier->session().state(), State::kDetached);
  AdvanceClock(seconds(31));
  Expire();
  EXPECT_EQ(carrier->session().state(), State::kClosed);
  EXPECT_EQ(context().sessions.counts().unresumed, 1);
  EXPECT_EQ(context().sessions.size(), 0);
  EXPECT_EQ(context().pinned.leased_bytes(), 0u);
  EXPECT_EQ(OpenReason(Resuming("s")), v1::SESSION_NOT_RESUMABLE);
  EXPECT_FALSE(carrier->Resume().ok());
}

TEST_P(NavigateSessionTest, ASessionWithoutAWindowGoesWithItsStream) {
  v1::NavigateConfig windowless = Named("s");
  windowless.mutable_resume_window()->set_seconds(0);
  for (const v1::NavigateConfig& config : {RigidConfig(), windowless}) {
    auto carrier = Open(config);
    carrier->Break();
    EXPECT_EQ(carrier->session().state(), State::kClosed);
    EXPECT_EQ(context().sessions.size(), 0);
    EXPECT_EQ(context().pinned.leased_bytes(), 0u);
  }
}

TEST_P(NavigateSessionTest, AnIdleSessionIsClosed) {
  v1::NavigateConfig config = Named("s");
  config.mutable_idle_timeout()->set_seconds(600);
  auto carrier = Open(config);
  AdvanceClock(minutes(9));
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  Answers(*carrier, 1);
  AdvanceClock(minutes(9));
  Expire();
  EXPECT_EQ(carrier->session().state(), State::kActive);
  // A frame under way keeps it.
  ASSERT_OK(carrier->Send({GoodFrame(2)[0]}));
  AdvanceClock(minutes(11));
  Expire();
  EXPECT_EQ(carrier->session().state(), State::kActive);
  carrier->pipeline().EndOfFrames();
  Answers(*carrier, 2);
  AdvanceClock(minutes(11));
  Expire();
  EXPECT_EQ(carrier->session().state(), State::kClosed);
  EXPECT_EQ(server::ReasonOf(carrier->ended()), v1::SESSION_ENDED);
  EXPECT_EQ(context().sessions.counts().idle, 1);
  EXPECT_EQ(context().transforms.size(), 0);
}

TEST_P(NavigateSessionTest, ClosedWhileItOpens) {
  JobBlocker blocker(context().jobs);
  auto session = *context().sessions.Open(context(), Named("s"));
  std::promise<absl::Status> warm;
  WarmUp(session, [&](const absl::StatusOr<bool>& done) { warm.set_value(done.status()); });
  ASSERT_TRUE(Eventually([&] { return context().jobs.waiting(JobClass::kFrame) == 1; }));
  session->Close(absl::CancelledError(""));
  EXPECT_EQ(warm.get_future().get().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return context().pinned.leased_bytes() == 0; }));
}

TEST_P(NavigateSessionTest, IdsAreOnesOwn) {
  auto carrier = Open(Named("s"));
  EXPECT_EQ(OpenReason(Named("s")), v1::RESOURCE_EXISTS);
  EXPECT_EQ(FieldOf(ToRpcStatusProto(OpenError(Named("a/b")))), "config.session_id");
  EXPECT_EQ(OpenReason(Resuming("other")), v1::SESSION_NOT_RESUMABLE);
  EXPECT_EQ(FieldOf(ToRpcStatusProto(OpenError(Resuming("")))), "config.session_id");
  // The config is left out, or the same.
  v1::NavigateConfig same = Named("s");
  same.set_resume(true);
  EXPECT_OK(OpenError(same));
  same.set_max_pending(1);
  EXPECT_EQ(OpenReason(same), v1::SESSION_NOT_RESUMABLE);
}

class FewSessionsTest : public NavigateSessionTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.max_sessions = 1;
    limits.pinned_capacity_bytes = 3 * 4 * Grid().voxels() + (1 << 16);
    return limits;
  }
  FewSessionsTest() : NavigateSessionTest(Limits()) {}
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FewSessionsTest);

TEST_P(FewSessionsTest, ThereAreNoMoreThanAllowed) {
  auto carrier = Open(RigidConfig());
  EXPECT_EQ(OpenReason(RigidConfig()), v1::TOO_MANY_SESSIONS);
  carrier->Finish();
  EXPECT_OK(OpenError(RigidConfig()));
}

TEST_P(FewSessionsTest, WhatDoesNotFitIsRefusedAtTheOpening) {
  v1::NavigateConfig config = RigidConfig();
  config.set_max_pending(3);
  auto session = *context().sessions.Open(context(), config);
  std::promise<absl::Status> warm;
  WarmUp(session, [&](const absl::StatusOr<bool>& done) { warm.set_value(done.status()); });
  EXPECT_EQ(server::ReasonOf(warm.get_future().get()), v1::EXCEEDS_CAPACITY);
  EXPECT_EQ(session->state(), State::kClosed);
  EXPECT_EQ(context().sessions.size(), 0);
  EXPECT_EQ(context().pinned.leased_bytes(), 0u);
}

}  // namespace
}  // namespace intrawarp::server
