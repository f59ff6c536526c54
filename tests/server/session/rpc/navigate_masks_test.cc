// SPDX-License-Identifier: Apache-2.0
// Masks and weights of a session and of single frames.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "engine/registration/assess.h"
#include "server/registration/registration_options.h"
#include "server/session/navigate_session.h"
#include "server/session/rpc/navigate_stream.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/session/rpc/navigate_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

using testing::HasSubstr;

class NavigateMasksTest : public NavigateTest {
 protected:
  // A frame of which a third is noise: a retractor.
  static std::vector<float> CoveredFrame(int n) {
    std::vector<float> voxels = MovingFrame(Grid(), n);
    const std::vector<float> noise = RandomFloats(voxels.size(), 3, 0, 300);
    for (size_t i = 0; i < voxels.size(); ++i) {
      if (IsCovered(i)) voxels[i] = noise[i];
    }
    return voxels;
  }
  static bool IsCovered(size_t voxel) { return static_cast<int>(voxel % Grid().size.x) < Grid().size.x / 3; }
  // `covered` under the retractor and `elsewhere` beside it.
  static std::vector<float> Weights(float covered, float elsewhere) {
    std::vector<float> weights(Grid().voxels());
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = IsCovered(i) ? covered : elsewhere;
    return weights;
  }
  static std::vector<v1::NavigateRequest> Naming(std::vector<v1::NavigateRequest> frame, const std::string& mask,
                                                 const std::string& weight) {
    frame[0].mutable_frame()->set_mask(mask);
    frame[0].mutable_frame()->set_weight(weight);
    return frame;
  }
  static v1::NavigateRequest MaskedConfig(bool resident_is_fixed = true) {
    v1::NavigateRequest config = Config(resident_is_fixed);
    config.mutable_config()->set_frame_masks(true);
    return config;
  }
  // The first frame of a session, without an error.
  v1::Report FirstReport(const v1::NavigateRequest& config, const std::vector<v1::NavigateRequest>& frame) {
    const Answer answer = Navigate({{config}, frame});
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    if (answer.frames.size() != 1) return {};
    EXPECT_EQ(answer.frames[0].result.status().code(), 0) << answer.frames[0].result.status().message();
    return answer.frames[0].result.report();
  }
  // The engine's own answer for the frame, with the weights of "volumes/weight" on it.
  AssessedRegistration EngineAnswer(const v1::NavigateConfig& config, const std::vector<float>& frame) {
    const auto resident = *context().volumes.Find("resident"), weight = *context().volumes.Find("weight");
    RegistrationInput input;
    input.stages = ResolveOptions(config.options(), context().volumes, context().transforms, Nobody())->stages;
    AssessedRegistration answer;
    OnDevice(int64_t{256} << 20, [&](const ExecContext& ctx) {
      const PreparedImage image =
          *PreparedImage::Prepare(ctx, frame.data(), PixelType::kFloat32, 1, 0, Grid(), FinestLevel::kThroughWindow);
      const bool is_moving = !config.fixed().empty();
      input.fixed = is_moving ? &resident->image : &image;
      input.moving = is_moving ? &image : &resident->image;
      (is_moving ? input.moving_weight : input.fixed_weight) = &weight->image;
      absl::StatusOr<AssessedRegistration> assessed = RegisterAndAssess(ctx, input, {.scrutiny = Scrutiny::kFrame});
      ASSERT_OK(assessed.status());
      answer = *std::move(assessed);
    });
    return answer;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(NavigateMasksTest);

// With weights of the session, and of the frame, the engine gives the same bits.
TEST_P(NavigateMasksTest, AFrameWithWeightsIsTheEnginesAnswer) {
  PutResident();
  PutVolume("weight", Grid(), Weights(0.1f, 0.8f));
  const std::vector<float> voxels = CoveredFrame(2);
  struct Case {
    StageKind method;
    bool resident_is_fixed;
  };
  for (const auto& [method, resident_is_fixed] : {Case{StageKind::kRigid, true}, Case{StageKind::kLogDemons, false}}) {
    SCOPED_TRACE(static_cast<int>(method));
    v1::NavigateRequest plain = Config(resident_is_fixed);
    v1::RegistrationOptions& options = *plain.mutable_config()->mutable_options();
    SetMethod(*options.mutable_stages(0), method);
    SetIterations(*options.mutable_stages(0), 3);
    const AssessedRegistration engine = EngineAnswer(plain.config(), voxels);
    const std::string affine = AffineMapToProto(engine.result.transform.affine()).SerializeAsString();
    const v1::Report without = FirstReport(plain, Frame(1, Grid(), voxels));
    EXPECT_NE(without.after().mse(), engine.quality.after.mse) << "weights have to matter";

    v1::NavigateRequest masked = plain;
    masked.mutable_config()->set_frame_masks(true);
    (resident_is_fixed ? options.mutable_moving_weight() : options.mutable_fixed_weight())->assign("volumes/weight");
    const v1::Report reports[] = {FirstReport(plain, Frame(1, Grid(), voxels)),
                                  FirstReport(masked, Naming(Frame(1, Grid(), voxels), "", "volumes/weight"))};
    for (const v1::Report& report : reports) {
      EXPECT_TRUE(report.affine().SerializeAsString() == affine);
      EXPECT_EQ(report.after().mse(), engine.quality.after.mse);
      EXPECT_EQ(report.overlap(), engine.quality.overlap);
    }
  }
}

// The retractor covers a part of the second frame only. As a mask of moving frames, and as weights of fixed ones.
TEST_P(NavigateMasksTest, AMaskHidesWhatCoversOneFrame) {
  PutResident();
  PutVolume("mask", Grid(), Weights(0, 1));
  for (const bool is_moving : {true, false}) {
    SCOPED_TRACE(is_moving);
    const std::vector<v1::NavigateRequest> covered = Frame(2, Grid(), CoveredFrame(2));
    const Answer answer =
        Navigate({{MaskedConfig(is_moving)},
                  GoodFrame(1),
                  is_moving ? Naming(covered, "volumes/mask", "") : Naming(covered, "", "volumes/mask"),
                  GoodFrame(3)});
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.frames.size(), 3);
    for (int i = 0; i < 3; ++i) {
      const v1::FrameResult& result = answer.frames[i].result;
      ASSERT_EQ(result.status().code(), 0) << result.status().message();
      const AffineMap truth = is_moving ? MapOfFrame(i + 1) : Inverse(MapOfFrame(i + 1));
      EXPECT_LT(Distance(*AffineMapFromProto(result.report().affine()), truth), 0.3) << i + 1;
    }
  }
  // Without a mask the noise leads astray, or is refused.
  const Answer without = Navigate({{MaskedConfig()}, GoodFrame(1), Frame(2, Grid(), CoveredFrame(2))});
  ASSERT_EQ(without.frames.size(), 2);
  const v1::FrameResult& astray = without.frames[1].result;
  EXPECT_TRUE(astray.status().code() != 0 ||
              Distance(*AffineMapFromProto(astray.report().affine()), MapOfFrame(2)) > 0.3);
}

// The image that is streamed is the moving one, or the fixed one.
TEST_P(NavigateMasksTest, AFrameMayBringItsOwnMaskAndWeights) {
  PutResident();
  const auto of = [](float value) { return std::vector<float>(Grid().voxels(), value); };
  Geometry other = Grid();
  other.origin.x += 1;
  PutVolume("mask", Grid(), of(1), "digest of a mask");
  PutVolume("weight", Grid(), of(0.5f), "digest of weights");
  PutVolume("empty", Grid(), of(0));
  PutVolume("too_large", Grid(), of(2));
  PutVolume("elsewhere", other, of(1));
  for (const bool resident_is_fixed : {true, false}) {
    const auto frame = [](int number, const std::string& mask, const std::string& weight) {
      return Naming(GoodFrame(number), mask, weight);
    };
    v1::NavigateRequest config = MaskedConfig(resident_is_fixed);
    v1::RegistrationOptions& options = *config.mutable_config()->mutable_options();
    (resident_is_fixed ? options.mutable_moving_mask() : options.mutable_fixed_mask())->assign("volumes/empty");
    const Answer answer = Navigate({{config},
                                    GoodFrame(1),
                                    frame(2, "volumes/mask", ""),
                                    frame(3, "volumes/mask", "volumes/weight"),
                                    frame(4, "volumes/empty", ""),
                                    frame(5, "volumes/mask", "volumes/too_large"),
                                    frame(6, "volumes/elsewhere", ""),
                                    frame(7, "volumes/mask", "volumes/none"),
                                    frame(8, "mask", ""),
                                    GoodFrame(9)});
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.frames.size(), 9);
    const auto status = [&](int number) { return answer.frames[number - 1].result.status(); };
    const std::string of_config = resident_is_fixed ? "config.options.moving_mask" : "config.options.fixed_mask";
    for (const int number : {1, 9}) EXPECT_EQ(FieldOf(status(number)), of_config) << "the config's mask is empty";
    EXPECT_EQ(status(2).code(), 0) << status(2).message();
    ASSERT_EQ(status(3).code(), 0) << status(3).message();
    EXPECT_EQ(FieldOf(status(4)), "frame.mask");
    EXPECT_EQ(status(4).code(), grpc::FAILED_PRECONDITION);
    EXPECT_EQ(FieldOf(status(5)), "frame.weight");
    EXPECT_EQ(status(5).code(), grpc::INVALID_ARGUMENT);
    EXPECT_EQ(FieldOf(status(6)), "frame.mask");
    EXPECT_EQ(status(7).code(), grpc::NOT_FOUND);
    EXPECT_EQ(FieldOf(status(8)), "frame.mask");
    const v1::Report& report = answer.frames[2].result.report();
    const v1::ReportProvenance& origin = report.provenance();
    EXPECT_EQ(resident_is_fixed ? report.options().moving_mask() : report.options().fixed_mask(), "volumes/mask");
    EXPECT_EQ(resident_is_fixed ? report.options().moving_weight() : report.options().fixed_weight(), "volumes/weight");
    EXPECT_EQ(resident_is_fixed ? origin.moving_mask_digest() : origin.fixed_mask_digest(), "digest of a mask");
    EXPECT_EQ(resident_is_fixed ? origin.moving_weight_digest() : origin.fixed_weight_digest(), "digest of weights");
  }
}

TEST_P(NavigateMasksTest, AMaskOfAFrameTakesASessionThatExpectsOne) {
  PutResident();
  PutVolume("mask", Grid(), std::vector<float>(Grid().voxels(), 1));
  const Answer answer = Navigate(
      {{Config()}, Naming(GoodFrame(1), "volumes/mask", ""), Naming(GoodFrame(2), "", "volumes/mask"), GoodFrame(3)});
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 3);
  const auto expect_refused = [&](int index, const char* field) {
    const auto& status = answer.frames[index].result.status();
    EXPECT_EQ(status.code(), grpc::INVALID_ARGUMENT);
    EXPECT_EQ(FieldOf(status), field);
    EXPECT_THAT(status.message(), HasSubstr("config.frame_masks"));
  };
  expect_refused(0, "frame.mask");
  expect_refused(1, "frame.weight");
  EXPECT_EQ(answer.frames[2].result.status().code(), 0) << answer.frames[2].result.status().message();
}

// The frame holds the volumes that its header found.
TEST_P(NavigateMasksTest, AMaskMayBeDeletedWhileItsFrameIsReceived) {
  PutResident();
  PutVolume("mask", Grid(), std::vector<float>(Grid().voxels(), 1));
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  v1::NavigateRequest config = NamedConfig("s");
  config.mutable_config()->set_frame_masks(true);
  ASSERT_TRUE(stream->Write(config));
  ReadOpened(*stream);
  const auto session = *context().sessions.Find("s");
  std::vector<v1::NavigateRequest> frame = GoodFrame(1);
  ASSERT_GT(frame.size(), 2);
  frame[0].mutable_frame()->set_mask("volumes/mask");
  ASSERT_TRUE(stream->Write(frame[0]));
  ASSERT_TRUE(stream->Write(frame[1]));
  ASSERT_TRUE(Eventually([&] { return session->Describe().statistics().frames_in_flight() == 1; }));
  ASSERT_TRUE(context().volumes.Erase("mask").ok());
  frame.erase(frame.begin(), frame.begin() + 2);
  ASSERT_TRUE(WriteAll(*stream, frame));
  const std::optional<Answered> answered = ReadResult(*stream);
  ASSERT_TRUE(answered.has_value());
  EXPECT_EQ(answered->result.status().code(), 0) << answered->result.status().message();
  frame = GoodFrame(2);
  frame[0].mutable_frame()->set_mask("volumes/mask");
  ASSERT_TRUE(WriteAll(*stream, frame));
  const std::optional<Answered> without = ReadResult(*stream);
  ASSERT_TRUE(without.has_value());
  EXPECT_EQ(without->result.status().code(), grpc::NOT_FOUND);
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace intrawarp::server
