// SPDX-License-Identifier: Apache-2.0
// Frames of a session without gRPC: order, deadlines, overload, bounds.
#include "server/session/frame_pipeline.h"

#include "google/rpc/error_details.pb.h"
#include "server/job/job_support.h"
#include "server/monitor/registry.h"
#include "tests/server/session/session_fixture.h"

namespace intrawarp::server {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

class FramePipelineTest : public SessionTest {
 protected:
  static v1::NavigateConfig WithDeadline(v1::NavigateConfig config, int64_t seconds) {
    config.mutable_frame_deadline()->set_seconds(seconds);
    return config;
  }
  static v1::NavigateConfig LatestWins(v1::NavigateConfig config) {
    config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
    return config;
  }
  static v1::NavigateConfig CoarseConfig(StageKind kind = StageKind::kLogDemons) {
    v1::NavigateConfig config = FieldConfig();
    SetMethod(*config.mutable_options()->mutable_stages(0), kind);
    SetIterations(*config.mutable_options()->mutable_stages(0), 5);
    config.set_coarse_field(true);
    return config;
  }
  static std::string SupersededBy(const v1::FrameResult& result) {
    google::rpc::ErrorInfo info;
    for (const auto& detail : result.status().details()) detail.UnpackTo(&info);
    return info.metadata().contains("superseded_by") ? info.metadata().at("superseded_by") : "";
  }
  bool Scraped(const std::string& line) {
    return context().metrics.registry.Scrape().find(line + "\n") != std::string::npos;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FramePipelineTest);

TEST_P(FramePipelineTest, AnswersFramesInOrder) {
  auto carrier = Open(RigidConfig());
  for (int n = 1; n <= 3; ++n) ASSERT_OK(carrier->Send(GoodFrame(n)));
  const std::vector<v1::FrameResult>& answers = Answers(*carrier, 3);
  for (int n = 1; n <= 3; ++n) {
    EXPECT_EQ(answers[n - 1].frame_number(), n);
    EXPECT_EQ(answers[n - 1].status().code(), 0) << answers[n - 1].status().message();
    EXPECT_LT(Distance(*AffineMapFromProto(answers[n - 1].report().affine()), MapOfFrame(n)), 0.25);
  }
  const v1::SessionStatistics statistics = carrier->statistics();
  EXPECT_EQ(statistics.frames_ok(), 3);
  EXPECT_EQ(statistics.frames_in_flight(), 0);
  EXPECT_GT(statistics.latency_p50_ms(), 0);
  EXPECT_EQ(carrier->session().Describe().last_frame_number(), 3);
}

// The budget does not see the time in the queue; the deadline does.
TEST_P(FramePipelineTest, AFrameThatCannotStartInTimeNeverRuns) {
  for (const bool deliver : {false, true}) {
    v1::NavigateConfig config = RigidConfig();
    if (deliver) config.set_late_frames(v1::LATE_FRAMES_DELIVER);
    auto carrier = Open(config);
    JobBlocker blocker(context().jobs);
    std::vector<v1::NavigateRequest> frame = GoodFrame(1);
    frame[0].mutable_frame()->mutable_deadline()->set_nanos(1000000);
    ASSERT_OK(carrier->Send(frame));
    // The device is still held.
    const v1::FrameResult& answer = Answers(*carrier, 1)[0];
    EXPECT_EQ(answer.status().code(), grpc::DEADLINE_EXCEEDED);
    EXPECT_EQ(FieldOf(answer.status()), "frame.deadline");
    EXPECT_EQ(ReasonOf(answer.status()), v1::DEADLINE_PASSED);
    EXPECT_THAT(answer.status().message(), testing::HasSubstr("could start"));
    EXPECT_FALSE(answer.has_report());
    EXPECT_EQ(carrier->statistics().frames_missed(), 1);
    carrier->Finish();
  }
}

TEST_P(FramePipelineTest, TheConfigsDeadlineIsThatOfFramesWithoutOne) {
  auto carrier = Open(WithDeadline(RigidConfig(), 3600));
  std::vector<v1::NavigateRequest> first = GoodFrame(1), second = GoodFrame(2);
  second[0].mutable_frame()->mutable_deadline()->set_seconds(3 * 3600);
  for (auto* frame : {&first, &second}) {
    ASSERT_OK(carrier->Send({frame->begin(), frame->end() - 1}));
    AdvanceClock(hours(2));
    ASSERT_OK(carrier->Send({frame->back()}));
  }
  const std::vector<v1::FrameResult>& answers = Answers(*carrier, 2);
  EXPECT_EQ(answers[0].status().code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(answers[1].status().code(), 0) << answers[1].status().message();
}

TEST_P(FramePipelineTest, ARunningFrameIsStoppedAtItsDeadline) {
  FieldGate gate;
  auto carrier = Open(WithDeadline(FieldConfig(), 3600), gate.hook());
  gate.Arm();
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  gate.WaitUntilReached();
  AdvanceClock(hours(2));
  gate.Open();
  const v1::FrameResult& answer = Answers(*carrier, 1)[0];
  EXPECT_EQ(answer.status().code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(FieldOf(answer.status()), "frame.deadline");
  EXPECT_THAT(answer.status().message(), testing::HasSubstr("was registered"));
  EXPECT_EQ(carrier->statistics().frames_missed(), 1);
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"frame\",outcome=\"deadline_missed\"} 1"));
}

TEST_P(FramePipelineTest, ALateAnswerThatIsDeliveredIsNotOk) {
  FieldGate gate;
  v1::NavigateConfig config = WithDeadline(FieldConfig(), 60);
  config.set_late_frames(v1::LATE_FRAMES_DELIVER);
  auto carrier = Open(config, gate.hook());
  gate.Arm();
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  gate.WaitUntilReached();
  // Less than the time that work without a budget may take (Limits::max_run_time).
  AdvanceClock(minutes(2));
  gate.Open();
  const v1::FrameResult& answer = Answers(*carrier, 1)[0];
  ASSERT_EQ(answer.status().code(), 0) << answer.status().message();
  EXPECT_EQ(answer.report().verdict(), v1::VERDICT_REVIEW);
  ASSERT_GT(answer.report().reasons_size(), 0);
  const v1::VerdictReason& reason = *answer.report().reasons().rbegin();
  EXPECT_EQ(reason.cause(), v1::VERDICT_CAUSE_LATE);
  EXPECT_EQ(reason.limit(), 60 * 1000);
  EXPECT_GE(reason.value(), 60 * 1000);
  EXPECT_LT(reason.value(), 2 * 60 * 1000);
  EXPECT_EQ(carrier->statistics().frames_late(), 1);
  EXPECT_EQ(carrier->statistics().frames_ok(), 0);
}

TEST_P(FramePipelineTest, AnAnswerAfterTheBudgetOfAFrameWithoutADeadlineIsNotOk) {
  FieldGate gate;
  v1::NavigateConfig config = FieldConfig();
  config.mutable_options()->mutable_budget()->set_seconds(3600);
  auto carrier = Open(config, gate.hook());
  gate.Arm();
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  gate.WaitUntilReached();
  AdvanceClock(hours(2));
  gate.Open();
  const v1::FrameResult& answer = Answers(*carrier, 1)[0];
  ASSERT_EQ(answer.status().code(), 0) << answer.status().message();
  EXPECT_EQ(answer.report().verdict(), v1::VERDICT_REVIEW);
  ASSERT_GT(answer.report().reasons_size(), 0);
  EXPECT_EQ(answer.report().reasons().rbegin()->cause(), v1::VERDICT_CAUSE_LATE);
  EXPECT_EQ(answer.report().reasons().rbegin()->limit(), 3600 * 1000);
  EXPECT_EQ(carrier->statistics().frames_late(), 1);
}

// Not even one that was late in its sending alone.
TEST_P(FramePipelineTest, AnAnswerThatWaitedForItsReaderIsLateToo) {
  for (const bool deliver : {false, true}) {
    v1::NavigateConfig config = WithDeadline(RigidConfig(), 3600);
    if (deliver) config.set_late_frames(v1::LATE_FRAMES_DELIVER);
    auto carrier = Open(config);
    ASSERT_OK(carrier->Send(GoodFrame(1)));
    ASSERT_TRUE(Eventually([&] { return carrier->session().start() != nullptr && context().jobs.pending() == 0; }));
    AdvanceClock(hours(2));
    const v1::FrameResult& answer = Answers(*carrier, 1)[0];
    EXPECT_EQ(answer.status().code(), deliver ? 0 : grpc::DEADLINE_EXCEEDED);
    EXPECT_NE(answer.report().verdict(), v1::VERDICT_OK);
    carrier->Finish();
  }
}

TEST_P(FramePipelineTest, ANewerFrameSupersedesThoseThatWait) {
  auto carrier = Open(LatestWins(RigidConfig()));
  {
    JobBlocker blocker(context().jobs);
    for (int n = 1; n <= 5; ++n) {
      ASSERT_TRUE(Eventually([&] { return carrier->pipeline().MayRead(); }));
      ASSERT_OK(carrier->Send(GoodFrame(n)));
    }
    // While the device is held: those that were superseded have their answers.
    Answers(*carrier, 4);
  }
  const std::vector<v1::FrameResult>& answers = Answers(*carrier, 5);
  for (int n = 1; n <= 4; ++n) {
    EXPECT_EQ(answers[n - 1].frame_number(), n);
    EXPECT_EQ(answers[n - 1].status().code(), grpc::ABORTED);
    EXPECT_EQ(ReasonOf(answers[n - 1].status()), v1::FRAME_SUPERSEDED);
    EXPECT_EQ(SupersededBy(answers[n - 1]), std::to_string(n + 1));
  }
  EXPECT_EQ(answers[4].status().code(), 0) << answers[4].status().message();
  EXPECT_LT(Distance(*AffineMapFromProto(answers[4].report().affine()), MapOfFrame(5)), 0.25);
  EXPECT_EQ(carrier->statistics().frames_superseded(), 4);
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"frame\",outcome=\"superseded\"} 4"));
}

TEST_P(FramePipelineTest, AFrameThatIsNotWholeSupersedesNobody) {
  auto carrier = Open(LatestWins(RigidConfig()));
  JobBlocker blocker(context().jobs);
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  ASSERT_OK(carrier->Send({GoodFrame(2)[0]}));
  carrier->pipeline().EndOfFrames();
  blocker.Release();
  const std::vector<v1::FrameResult>& answers = Answers(*carrier, 2);
  EXPECT_EQ(answers[0].status().code(), 0) << answers[0].status().message();
  EXPECT_EQ(answers[1].status().code(), grpc::INVALID_ARGUMENT);
}

TEST_P(FramePipelineTest, ARunningFrameIsSupersededIfAskedFor) {
  for (const bool cancel_running : {false, true}) {
    FieldGate gate;
    v1::NavigateConfig config = LatestWins(FieldConfig());
    config.set_cancel_running(cancel_running);
    auto carrier = Open(config, gate.hook());
    gate.Arm();
    ASSERT_OK(carrier->Send(GoodFrame(1)));
    gate.WaitUntilReached();
    ASSERT_OK(carrier->Send(GoodFrame(2)));
    gate.Open();
    const std::vector<v1::FrameResult>& answers = Answers(*carrier, 2);
    EXPECT_EQ(answers[0].status().code(), cancel_running ? grpc::ABORTED : 0) << answers[0].status().message();
    EXPECT_EQ(SupersededBy(answers[0]), cancel_running ? "2" : "");
    EXPECT_EQ(answers[1].status().code(), 0) << answers[1].status().message();
    carrier->Finish();
  }
}

TEST_P(FramePipelineTest, KeepAllReadsNoFurtherThanItMay) {
  v1::NavigateConfig config = RigidConfig();
  config.set_max_pending(1);
  auto carrier = Open(config);
  JobBlocker blocker(context().jobs);
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  EXPECT_TRUE(carrier->pipeline().MayRead());
  ASSERT_OK(carrier->Send(GoodFrame(2)));
  EXPECT_FALSE(carrier->pipeline().MayRead());
  blocker.Release();
  Answers(*carrier, 2);
  EXPECT_TRUE(carrier->pipeline().MayRead());
}

// A client that floods headers: each fails the one before and waits for room itself.
TEST_P(FramePipelineTest, AHeaderWithinAFrameIsHeldUntilThereIsRoom) {
  for (const bool latest : {false, true}) {
    v1::NavigateConfig config = latest ? LatestWins(RigidConfig()) : RigidConfig();
    const int max_pending = latest ? 2 : 1;
    config.set_max_pending(max_pending);
    auto carrier = Open(config);
    const v1::NavigateRequest header = GoodFrame(1)[0];
    int sent = 0;
    auto send = [&] {
      v1::NavigateRequest next = header;
      next.mutable_frame()->set_frame_number(++sent);
      ASSERT_OK(carrier->Send({next}));
    };
    while (carrier->pipeline().MayRead()) {
      ASSERT_LT(sent, 2 * FramePipeline::kMaxUnanswered);
      send();
    }
    const int bound = latest ? FramePipeline::kMaxUnanswered : max_pending + 1;
    EXPECT_LE(sent, bound + 1);
    EXPECT_LE(carrier->statistics().peak_frames_in_flight(), bound);
    // Each answer lets one more in.
    for (int i = 0; i < 1000; ++i) {
      carrier->Answers();
      while (carrier->pipeline().MayRead()) {
        if (sent > 10000) break;
        send();
      }
    }
    carrier->pipeline().EndOfFrames();
    Answers(*carrier, sent);
    EXPECT_TRUE(carrier->pipeline().IsDone());
    for (const v1::FrameResult& answer : carrier->Answers()) {
      EXPECT_EQ(answer.status().code(), grpc::INVALID_ARGUMENT);
      EXPECT_THAT(answer.status().message(), testing::HasSubstr("the frame ended after 0 of"));
    }
    EXPECT_EQ(carrier->statistics().frames_failed(), sent);
    EXPECT_LE(carrier->statistics().peak_frames_in_flight(), bound);
    carrier->Finish();
  }
}

TEST_P(FramePipelineTest, AFrameLargerThanPromisedIsRefusedByName) {
  Geometry large = Grid();
  large.size.z += 1;
  for (const bool promised : {false, true}) {
    v1::NavigateConfig config = RigidConfig();
    if (promised) *config.mutable_frame_geometry() = GeometryToProto(Grid());
    auto carrier = Open(config);
    ASSERT_OK(carrier->Send(FrameRequests(1, large, MovingFrame(large, 1))));
    const v1::FrameResult& answer = Answers(*carrier, 1)[0];
    EXPECT_EQ(answer.status().code(), promised ? grpc::INVALID_ARGUMENT : 0) << answer.status().message();
    EXPECT_EQ(FieldOf(answer.status()), promised ? "frame.geometry" : "");
    carrier->Finish();
  }
}

TEST_P(FramePipelineTest, AFrameWithLargerPixelsThanPromisedIsRefusedByName) {
  v1::NavigateConfig config = RigidConfig();
  *config.mutable_frame_geometry() = GeometryToProto(Grid());
  config.set_frame_pixel_type(v1::PIXEL_TYPE_INT16);
  auto carrier = Open(config);
  EXPECT_EQ(carrier->session().Describe().reserved_bytes(), 3 * 2 * Grid().voxels());
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  EXPECT_EQ(FieldOf(Answers(*carrier, 1)[0].status()), "frame.pixel_type");
}

// Voxels cost memory whatever their type: bytes alone do not bound them.
TEST_P(FramePipelineTest, AFrameOfMoreVoxelsInFewerBytesIsLargerThanPromised) {
  v1::NavigateConfig config = RigidConfig();
  *config.mutable_frame_geometry() = GeometryToProto(Grid());
  config.set_frame_pixel_type(v1::PIXEL_TYPE_FLOAT64);
  auto carrier = Open(config);
  Geometry large = Grid();
  large.size.z += 1;
  ASSERT_OK(carrier->Send(FrameRequests(1, large, MovingFrame(large, 1))));
  const v1::FrameResult& answer = Answers(*carrier, 1)[0];
  EXPECT_EQ(answer.status().code(), grpc::INVALID_ARGUMENT) << answer.status().message();
  EXPECT_EQ(FieldOf(answer.status()), "frame.geometry");
}

TEST_P(FramePipelineTest, ALargerFrameThanExpectedClaimsItsWorkspace) {
  auto carrier = Open(RigidConfig());
  Geometry large = Grid();
  large.size.z += 1;
  Ledger& ledger = context().ledger;
  const int64_t before = ledger.in_use(Resource::kWorkspace);
  {
    Claim claim;
    claim.job_class = JobClass::kBatch;
    claim.workspace_bytes = ledger.available(Resource::kWorkspace, Share::kSession);
    const absl::StatusOr<Grant> all = ledger.Admit(claim, Share::kSession);
    ASSERT_OK(all.status());
    ASSERT_OK(carrier->Send(FrameRequests(1, large, MovingFrame(large, 1))));
    ASSERT_OK(carrier->Send(GoodFrame(2)));
    Answers(*carrier, 2);
  }
  ASSERT_OK(carrier->Send(FrameRequests(3, large, MovingFrame(large, 3))));
  const std::vector<v1::FrameResult>& answers = Answers(*carrier, 3);
  EXPECT_EQ(ReasonOf(answers[0].status()), v1::WORKSPACE_MEMORY);
  EXPECT_EQ(answers[1].status().code(), 0) << answers[1].status().message();
  EXPECT_EQ(answers[2].status().code(), 0) << answers[2].status().message();
  EXPECT_TRUE(Eventually([&] { return ledger.in_use(Resource::kWorkspace) == before; }));
}

// A header comes under locks; page-locking takes long.
TEST_P(FramePipelineTest, TheFirstChunkOfALargerFramePageLocks) {
  auto carrier = Open(RigidConfig());
  Geometry large = Grid();
  large.size.z += 1;
  const std::vector<v1::NavigateRequest> frame = FrameRequests(1, large, MovingFrame(large, 1));
  const size_t leased = context().pinned.leased_bytes();
  const int64_t claimed = context().ledger.in_use(Resource::kPinned);
  ASSERT_OK(carrier->Send({frame[0]}));
  EXPECT_EQ(context().pinned.leased_bytes(), leased);
  EXPECT_GT(context().ledger.in_use(Resource::kPinned), claimed);
  ASSERT_OK(carrier->Send({frame[1]}));
  EXPECT_GT(context().pinned.leased_bytes(), leased);
}

TEST_P(FramePipelineTest, TheCostOfAFrameThatWasCutShortIsNotLearnt) {
  for (const bool best_effort : {false, true}) {
    v1::NavigateConfig config = RigidConfig();
    config.mutable_options()->mutable_budget()->set_nanos(1);
    config.mutable_options()->set_best_effort(best_effort);
    auto carrier = Open(config);
    ASSERT_OK(carrier->Send(GoodFrame(1)));
    EXPECT_EQ(Answers(*carrier, 1)[0].status().code() == 0, best_effort);
    EXPECT_TRUE(Eventually([&] { return context().jobs.pending() == 0; }));
    EXPECT_EQ(context().jobs.costs().cells(), 0u);
    carrier->Finish();
  }
  auto carrier = Open(RigidConfig());
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  Answers(*carrier, 1);
  EXPECT_TRUE(Eventually([&] { return context().jobs.costs().cells() == 1; }));
}

TEST_P(FramePipelineTest, FramesWithMasksOfTheirOwnCostOtherwise) {
  PutVolume("mask", Grid(), std::vector<float>(Grid().voxels(), 1));
  v1::NavigateConfig config = RigidConfig();
  config.set_frame_masks(true);
  auto carrier = Open(config);
  const std::pair<const char*, const char*> named[] = {
      {"", ""}, {"volumes/mask", ""}, {"", "volumes/mask"}, {"volumes/mask", "volumes/mask"}, {"volumes/mask", ""}};
  const size_t kinds[] = {1, 2, 3, 4, 4};
  for (int n = 1; n <= 5; ++n) {
    std::vector<v1::NavigateRequest> frame = GoodFrame(n);
    frame[0].mutable_frame()->set_mask(named[n - 1].first);
    frame[0].mutable_frame()->set_weight(named[n - 1].second);
    ASSERT_OK(carrier->Send(frame));
    EXPECT_EQ(Answers(*carrier, n)[n - 1].status().code(), 0) << carrier->Answers()[n - 1].status().message();
    EXPECT_TRUE(Eventually([&] { return context().jobs.costs().cells() == kinds[n - 1]; })) << n;
  }
}

TEST_P(FramePipelineTest, StopDropsWhatIsUnderWay) {
  FieldGate gate;
  v1::NavigateConfig config = FieldConfig();
  config.set_session_id("s");
  auto carrier = Open(config, gate.hook());
  gate.Arm();
  for (int n = 1; n <= 3; ++n) ASSERT_OK(carrier->Send(GoodFrame(n)));
  gate.WaitUntilReached();
  carrier->Break();
  gate.Open();
  EXPECT_TRUE(Eventually([&] { return context().jobs.pending() == 0; }));
  EXPECT_TRUE(carrier->Answers().empty());
  EXPECT_FALSE(carrier->pipeline().MayRead());
  EXPECT_EQ(carrier->statistics().frames_dropped(), 3);
  EXPECT_EQ(carrier->statistics().frames_in_flight(), 0);
  EXPECT_EQ(carrier->session().start(), nullptr);
}

TEST_P(FramePipelineTest, ACoarseFieldComesBeforeTheFinalOne) {
  for (const StageKind kind : {StageKind::kFfd, StageKind::kLogDemons}) {
    auto carrier = Open(CoarseConfig(kind));
    EXPECT_TRUE(carrier->session().Describe().config().coarse_field());
    EXPECT_EQ(carrier->session().Describe().reserved_bytes(), 3 * (4 + 2 * 12) * Grid().voxels());
    // The second frame starts from the first one's result.
    for (int n = 1; n <= 2; ++n) ASSERT_OK(carrier->Send(GoodFrame(n)));
    for (const v1::FrameResult& answer : Answers(*carrier, 2)) {
      EXPECT_EQ(answer.status().code(), 0) << answer.status().message();
    }
    EXPECT_THAT(carrier->order(),
                testing::ElementsAre("coarse 1", "field 1", "result 1", "coarse 2", "field 2", "result 2"));
    EXPECT_EQ(carrier->statistics().coarse_fields(), 2);
    carrier->Finish();
  }
}

TEST_P(FramePipelineTest, NoCoarseFieldUnlessAskedForAndThere) {
  v1::NavigateConfig not_asked = CoarseConfig(), one_level = CoarseConfig();
  not_asked.clear_coarse_field();
  SetLevels(*one_level.mutable_options()->mutable_stages(0), 1);
  for (const v1::NavigateConfig& config : {not_asked, one_level}) {
    auto carrier = Open(config);
    ASSERT_OK(carrier->Send(GoodFrame(1)));
    Answers(*carrier, 1);
    EXPECT_THAT(carrier->order(), testing::ElementsAre("field 1", "result 1"));
    EXPECT_EQ(carrier->statistics().coarse_fields(), 0);
    carrier->Finish();
  }
}

// The gate holds the job as soon as it has announced the coarse field.
TEST_P(FramePipelineTest, AFrameSupersededAfterItsCoarseFieldHasNoFinalOne) {
  FieldGate gate;
  v1::NavigateConfig config = LatestWins(CoarseConfig());
  config.set_cancel_running(true);
  auto carrier = Open(config, gate.hook());
  gate.Arm();
  ASSERT_OK(carrier->Send(GoodFrame(1)));
  gate.WaitUntilReached();
  ASSERT_OK(carrier->Send(GoodFrame(2)));
  gate.Open();
  EXPECT_EQ(SupersededBy(Answers(*carrier, 2)[0]), "2");
  EXPECT_THAT(carrier->order(), testing::ElementsAre("coarse 1", "result 1", "coarse 2", "field 2", "result 2"));
}

TEST_P(FramePipelineTest, AFrameSupersededWhileItWaitsHasNoCoarseField) {
  auto carrier = Open(LatestWins(CoarseConfig()));
  {
    JobBlocker blocker(context().jobs);
    for (int n = 1; n <= 2; ++n) ASSERT_OK(carrier->Send(GoodFrame(n)));
    Answers(*carrier, 1);
  }
  Answers(*carrier, 2);
  EXPECT_THAT(carrier->order(), testing::ElementsAre("result 1", "coarse 2", "field 2", "result 2"));
}

class CrowdedPipelineTest : public SessionTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.pinned_capacity_bytes = int64_t{2} << 20;
    return limits;
  }
  CrowdedPipelineTest() : SessionTest(Limits()) {}
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(CrowdedPipelineTest);

// What a session has taken, another client cannot: the frames go on.
TEST_P(CrowdedPipelineTest, NobodyElseCanTakeTheMemoryOfFrames) {
  auto carrier = Open(FieldConfig());
  EXPECT_EQ(carrier->session().Describe().reserved_bytes(), 3 * (4 + 12) * Grid().voxels());
  std::vector<std::shared_ptr<PinnedBuffer>> hoard;
  for (auto lease = LeasePinned(context(), 4096, ""); lease.ok(); lease = LeasePinned(context(), 4096, "")) {
    hoard.push_back(*std::move(lease));
  }
  for (int n = 1; n <= 6; ++n) {
    ASSERT_OK(carrier->Send(GoodFrame(n)));
    const v1::FrameResult& answer = Answers(*carrier, n)[n - 1];
    EXPECT_EQ(answer.status().code(), 0) << answer.status().message();
  }
}

}  // namespace
}  // namespace intrawarp::server
