// SPDX-License-Identifier: Apache-2.0
// What Navigate refuses: a config, a frame, an order of messages.
#include <map>

#include "server/session/rpc/navigate_stream.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/session/rpc/navigate_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

// What depends on the frame is said with the frame.
TEST_P(NavigateTest, AStageThatDoesNotSuitAFrameIsItsError) {
  PutResident();
  for (const double spacing : {0.5, std::nan(""), 1e9}) {
    v1::NavigateRequest config = Config();
    v1::Stage& stage = *config.mutable_config()->mutable_options()->mutable_stages(0);
    SetMethod(stage, StageKind::kFfd);
    stage.mutable_ffd()->set_spacing_vox(spacing);
    const Answer answer = Navigate({{config}, GoodFrame(1)});
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.frames.size(), 1);
    EXPECT_EQ(answer.frames[0].result.status().code(), grpc::INVALID_ARGUMENT);
    EXPECT_EQ(FieldOf(answer.frames[0].result.status()), "config.options.stages[0].ffd.spacing_vox");
  }
}

TEST_P(NavigateTest, ARegionOutsideAResidentFixedImageIsTheConfigsError) {
  PutResident();
  for (const bool resident_is_fixed : {true, false}) {
    v1::NavigateRequest config = Config(resident_is_fixed);
    v1::FieldRequest& field = *config.mutable_config()->mutable_field();
    field.set_encoding(v1::FIELD_ENCODING_FLOAT32);
    for (int a = 0; a < 3; ++a) {
      field.add_region_start(2);
      field.add_region_size(Grid().size[a]);
    }
    const Answer answer = Navigate({{config}, GoodFrame(1)});
    const std::string text = "region_size: reaches to 42 along x";
    if (resident_is_fixed) {
      EXPECT_STATUS(answer.status, grpc::INVALID_ARGUMENT, text);
      EXPECT_EQ(FieldOf(answer.status), "config.field.region_size");
      EXPECT_TRUE(answer.frames.empty());
    } else {
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      ASSERT_EQ(answer.frames.size(), 1);
      EXPECT_EQ(answer.frames[0].result.status().code(), grpc::INVALID_ARGUMENT);
      EXPECT_EQ(FieldOf(answer.frames[0].result.status()), "config.field.region_size");
    }
  }
}

TEST_P(NavigateTest, ABadFrameIsItsResultAndTheStreamGoesOn) {
  PutResident();
  const std::vector<float> voxels = MovingFrame(Grid(), 1);
  struct Bad {
    std::vector<v1::NavigateRequest> requests;
    int code;
    std::string field;
  };
  std::map<int64_t, Bad> bad;
  auto add = [&](int64_t number, int code, const std::string& field,
                 const std::function<void(std::vector<v1::NavigateRequest>&)>& change) {
    Bad frame{Frame(number, Grid(), voxels), code, field};
    change(frame.requests);
    bad[number] = std::move(frame);
  };
  using Requests = std::vector<v1::NavigateRequest>;
  const int kInvalid = grpc::INVALID_ARGUMENT;
  add(10, kInvalid, "frame.geometry.spacing",
      [](Requests& r) { r[0].mutable_frame()->mutable_geometry()->set_spacing(0, -1); });
  add(20, kInvalid, "frame.pixel_type", [](Requests& r) { r[0].mutable_frame()->clear_pixel_type(); });
  add(30, kInvalid, "frame.total_bytes", [](Requests& r) { r[0].mutable_frame()->set_total_bytes(4); });
  add(40, kInvalid, "frame.rescale.slope",
      [](Requests& r) { r[0].mutable_frame()->mutable_rescale()->set_intercept(3); });
  add(45, kInvalid, "frame.deadline", [](Requests& r) { r[0].mutable_frame()->mutable_deadline()->set_seconds(-1); });
  add(50, grpc::OUT_OF_RANGE, "chunk.offset", [](Requests& r) { std::swap(r[1], r[2]); });
  add(55, grpc::DATA_LOSS, "chunk.crc32c", [](Requests& r) { r[1].mutable_chunk()->mutable_data()->at(3) ^= 1; });
  add(57, grpc::DATA_LOSS, "chunk.crc32c", [](Requests& r) { r.back().mutable_chunk()->mutable_data()->back() ^= 64; });
  add(60, grpc::OUT_OF_RANGE, "chunk.offset", [](Requests& r) { r[2].mutable_chunk()->set_offset(1); });
  add(70, kInvalid, "chunk", [](Requests& r) { r.pop_back(); });
  add(80, kInvalid, "frame.voxels", [](Requests& r) {
    const float nan = std::nanf("");
    r[1].mutable_chunk()->mutable_data()->replace(0, 4, reinterpret_cast<const char*>(&nan), 4);
    *r[1].mutable_chunk() = MakeChunk(r[1].chunk().offset(), r[1].chunk().data());
  });
  add(90, grpc::FAILED_PRECONDITION, "moving", [](Requests& r) {
    for (size_t i = 1; i < r.size(); ++i) {
      *r[i].mutable_chunk() = MakeChunk(r[i].chunk().offset(), std::string(r[i].chunk().data().size(), 0));
    }
  });
  add(100, grpc::OUT_OF_RANGE, "chunk.data",
      [](Requests& r) { r.back().mutable_chunk()->mutable_data()->append("more"); });
  add(110, kInvalid, "moving", [](Requests& r) {
    Geometry plane = Grid();
    plane.size = {40, 48, 1};
    r = Frame(110, plane, RandomFloats(plane.voxels(), 5));
  });

  std::vector<Requests> parts = {{Config()}, GoodFrame(1)};
  for (const auto& [number, frame] : bad) {
    parts.push_back(frame.requests);
    parts.push_back(Frame(number + 1, Grid(), voxels));
  }
  const Answer answer = Navigate(parts);

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 1 + 2 * bad.size());
  for (const Answered& answered : answer.frames) {
    const v1::FrameResult& result = answered.result;
    SCOPED_TRACE(result.frame_number());
    const auto it = bad.find(result.frame_number());
    EXPECT_EQ(result.status().code(), it == bad.end() ? 0 : it->second.code) << result.status().message();
    EXPECT_EQ(result.has_report(), it == bad.end());
    if (it != bad.end()) {
      EXPECT_EQ(FieldOf(result.status()), it->second.field) << result.status().message();
    }
    if (it == bad.end()) {
      EXPECT_LT(Distance(*AffineMapFromProto(result.report().affine()), MapOfFrame(1)), 0.25);
    }
  }
  EXPECT_TRUE(Scraped("intrawarp_registrations_total{class=\"frame\",outcome=\"failed\"} 14"));
}

TEST_P(NavigateTest, AFrameCutShortByTheEndIsAnswered) {
  PutResident();
  std::vector<v1::NavigateRequest> cut = GoodFrame(2);
  cut.resize(2);
  const Answer answer = Navigate({{Config()}, GoodFrame(1), cut});

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 2);
  EXPECT_EQ(answer.frames[0].result.status().code(), 0);
  EXPECT_EQ(answer.frames[1].result.status().code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(answer.frames[1].result.status().message(), testing::HasSubstr("chunk: the frame ended after 50000 of"));
}

TEST_P(NavigateTest, ANumberThatDoesNotGrowIsAnErrorOfItsFrame) {
  PutResident();
  const Answer answer =
      Navigate({{Config()}, GoodFrame(3), GoodFrame(3), GoodFrame(-7), GoodFrame(4), GoodFrame(2), GoodFrame(5)});
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 6);
  const std::vector<int64_t> numbers = {3, 3, -7, 4, 2, 5};
  for (size_t i = 0; i < numbers.size(); ++i) {
    const v1::FrameResult& result = answer.frames[i].result;
    EXPECT_EQ(result.frame_number(), numbers[i]);
    const bool grows = i == 0 || i == 3 || i == 5;
    EXPECT_EQ(result.status().code(), grows ? grpc::OK : grpc::INVALID_ARGUMENT) << i;
    EXPECT_EQ(result.has_report(), grows) << i;
  }
  EXPECT_THAT(answer.frames[1].result.status().message(),
              testing::HasSubstr("frame.frame_number: 3 does not grow, the last one was 3"));
  EXPECT_THAT(answer.frames[4].result.status().message(), testing::HasSubstr("2 does not grow, the last one was 4"));
}

TEST_P(NavigateTest, AWrongOrderOfMessagesEndsTheStream) {
  PutResident();
  v1::NavigateRequest nothing, chunk;
  *chunk.mutable_chunk() = MakeChunk(0, "0123");
  auto expect = [&](const std::vector<std::vector<v1::NavigateRequest>>& parts, const std::string& text) {
    const grpc::Status status = Navigate(parts).status;
    EXPECT_STATUS(status, grpc::INVALID_ARGUMENT, text);
  };
  expect({}, "config: is missing");
  expect({GoodFrame(1)}, "config: must be the first message");
  expect({{chunk}}, "config: must be the first message");
  expect({{Config(), Config()}}, "config: is sent twice");
  expect({{Config(), chunk}}, "chunk: belongs to no frame");
  expect({{Config(), nothing}}, "payload: ");
  std::vector<v1::NavigateRequest> too_long = GoodFrame(1);
  too_long.push_back(chunk);
  expect({{Config()}, too_long}, "chunk: belongs to no frame");
  EXPECT_TRUE(Eventually([this] { return context().transforms.size() == 0; }));
}

TEST_P(NavigateTest, NamesWhatIsWrongWithAConfig) {
  PutResident();
  auto expect = [&](const std::function<void(v1::NavigateConfig&)>& change, grpc::StatusCode code,
                    const std::string& text, const std::string& field) {
    v1::NavigateRequest config = Config();
    change(*config.mutable_config());
    const grpc::Status status = Navigate({{config}}).status;
    EXPECT_STATUS(status, code, text);
    EXPECT_EQ(FieldOf(status), field);
  };
  const auto kInvalid = grpc::INVALID_ARGUMENT;
  expect([](auto& c) { c.clear_fixed(); }, kInvalid, "exactly one", "config.fixed");
  expect([](auto& c) { c.set_moving("volumes/resident"); }, kInvalid, "exactly one", "config.fixed");
  expect([](auto& c) { c.set_fixed("volumes/none"); }, grpc::NOT_FOUND, "volumes/none", "");
  expect([](auto& c) { c.set_max_pending(5); }, kInvalid, "5", "config.max_pending");
  expect([](auto& c) { c.set_max_pending(-1); }, kInvalid, "-1", "config.max_pending");
  expect(
      [](auto& c) {
        for (int i = 0; i < 5; ++i) *c.mutable_options()->add_stages() = c.options().stages(0);
      },
      kInvalid, "6", "config.options.stages");
  expect(
      [](auto& c) {
        c.mutable_options()->clear_stages();
        c.mutable_field();
        c.set_coarse_field(true);
      },
      kInvalid, "named stages", "config.coarse_field");
  expect([](auto& c) { c.set_max_pending(0); }, kInvalid, "0", "config.max_pending");
  expect([](auto& c) { c.mutable_options()->mutable_stages(0)->clear_method(); }, kInvalid, "is not set",
         "config.options.stages[0].method");
  expect([](auto& c) { c.set_overload_policy(v1::OverloadPolicy(9)); }, kInvalid, "9", "config.overload_policy");
  expect(
      [](auto& c) {
        c.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
        c.set_max_pending(1);
      },
      kInvalid, "must be 2 to 4", "config.max_pending");
  expect([](auto& c) { c.set_cancel_running(true); }, kInvalid, "LATEST_WINS", "config.cancel_running");
  expect([](auto& c) { c.set_late_frames(v1::LateFrames(9)); }, kInvalid, "9", "config.late_frames");
  expect([](auto& c) { c.mutable_frame_deadline()->set_seconds(0); }, kInvalid, "", "config.frame_deadline");
  expect([](auto& c) { c.mutable_resume_window()->set_seconds(301); }, kInvalid, "5 minutes", "config.resume_window");
  expect([](auto& c) { c.mutable_resume_window()->set_seconds(-1); }, kInvalid, "", "config.resume_window");
  expect([](auto& c) { c.mutable_idle_timeout()->set_seconds(86401); }, kInvalid, "", "config.idle_timeout");
  for (const double rate : {0.0, -1.0, 1001.0, std::nan("")}) {
    expect([&](auto& c) { c.set_rate_hz(rate); }, kInvalid, "at most 1000", "config.rate_hz");
  }
  expect([](auto& c) { c.mutable_frame_geometry()->add_size(1); }, kInvalid, "", "config.frame_geometry.size");
  expect([](auto& c) { c.set_frame_pixel_type(v1::PixelType(99)); }, kInvalid, "", "config.frame_pixel_type");
  expect([](auto& c) { c.set_coarse_field(true); }, kInvalid, "goes with `field`", "config.coarse_field");
  expect(
      [](auto& c) {
        c.set_coarse_field(true);
        c.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
      },
      kInvalid, "ffd or log_demons", "config.coarse_field");
  expect([](auto& c) { c.set_session_id("-"); }, kInvalid, "must match", "config.session_id");
  expect([](auto& c) { c.set_resume(true); }, kInvalid, "", "config.session_id");
  expect([](auto& c) { c.mutable_field()->set_encoding(v1::FieldEncoding(9)); }, kInvalid, "9",
         "config.field.encoding");
  expect([](auto& c) { c.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS); }, kInvalid,
         "CONTROL_POINTS come from ffd", "config.field.encoding");
  expect([](auto& c) { c.mutable_field()->set_encoding(v1::FIELD_ENCODING_VELOCITY); }, kInvalid,
         "VELOCITY comes from log_demons", "config.field.encoding");
  expect(
      [](auto& c) {
        c.mutable_field()->clear_encoding();
        c.mutable_field();
      },
      kInvalid, "must be given", "config.field.encoding");
}

TEST_P(NavigateTest, AMaskOfTheFramesMustFitThem) {
  PutResident();
  Geometry other = Grid();
  other.size = {30, 30, 20};
  PutVolume("mask", Grid(), std::vector<float>(Grid().voxels(), 1.0f));
  v1::NavigateRequest config = Config();
  config.mutable_config()->mutable_options()->set_moving_mask("volumes/mask");
  const Answer answer = Navigate({{config}, GoodFrame(1), Frame(2, other, MovingFrame(other, 2))});

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 2);
  EXPECT_EQ(answer.frames[0].result.status().code(), 0) << answer.frames[0].result.status().message();
  EXPECT_EQ(FieldOf(answer.frames[1].result.status()), "config.options.moving_mask");
}

class LimitedNavigateTest : public NavigateTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.max_volume_bytes = 4 * Grid().voxels();
    limits.pinned_capacity_bytes = 4 * 4 * Grid().voxels();
    return limits;
  }
  LimitedNavigateTest() : NavigateTest(Limits()) {}
};

INTRAWARP_INSTANTIATE_DEVICE_TEST(LimitedNavigateTest);

TEST_P(LimitedNavigateTest, AFrameThatIsTooLargeIsRefusedBeforeItIsReceived) {
  PutResident();
  Geometry large = Grid();
  large.size.z += 1;
  Geometry huge = Grid();
  huge.size = {16384, 16384, 16384};
  v1::NavigateRequest header;
  header.mutable_frame()->set_frame_number(3);
  *header.mutable_frame()->mutable_geometry() = GeometryToProto(huge);
  header.mutable_frame()->set_pixel_type(v1::PIXEL_TYPE_FLOAT64);
  header.mutable_frame()->set_total_bytes(8 * huge.voxels());
  const Answer answer =
      Navigate({{Config()}, Frame(1, large, MovingFrame(large, 1)), GoodFrame(2), {header}, GoodFrame(4)});

  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.frames.size(), 4);
  for (const int bad : {0, 2}) {
    EXPECT_EQ(answer.frames[bad].result.status().code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(answer.frames[bad].result.status().message(), testing::StartsWith("frame.total_bytes: "));
  }
  EXPECT_EQ(answer.frames[1].result.status().code(), 0) << answer.frames[1].result.status().message();
  EXPECT_EQ(answer.frames[3].result.status().code(), 0) << answer.frames[3].result.status().message();
}

}  // namespace
}  // namespace intrawarp::server
