// SPDX-License-Identifier: Apache-2.0
#include "server/service/navigate_stream.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>

#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"
#include "tests/tcp_relay.h"

namespace intrawarp::server {
namespace {

class NavigateTest : public ServiceTest {
 protected:
  using ServiceTest::ServiceTest;
  using Stream = grpc::ClientReaderWriter<v1::NavigateRequest, v1::NavigateResponse>;

  void PutResident() { PutVolume("resident", Grid(), ResidentImage()); }
  static v1::NavigateRequest Config(bool resident_is_fixed = true) {
    v1::NavigateRequest request;
    *request.mutable_config() = RigidConfig(resident_is_fixed);
    return request;
  }
  static v1::NavigateRequest NamedConfig(const std::string& id) {
    v1::NavigateRequest request = Config();
    request.mutable_config()->set_session_id(id);
    return request;
  }
  static std::vector<v1::NavigateRequest> Frame(int64_t number, const Geometry& grid, const std::vector<float>& voxels,
                                                size_t chunk_bytes = 50000) {
    return FrameRequests(number, grid, voxels, chunk_bytes);
  }
  // Waits for the first message.
  static v1::SessionOpened ReadOpened(Stream& stream) {
    v1::NavigateResponse response;
    EXPECT_TRUE(stream.Read(&response));
    EXPECT_TRUE(response.has_opened()) << response.ShortDebugString();
    return response.opened();
  }
  static bool WriteAll(Stream& stream, const std::vector<v1::NavigateRequest>& requests) {
    for (const auto& request : requests) {
      if (!stream.Write(request)) return false;
    }
    return true;
  }

  struct Answered {
    v1::FrameResult result;
    std::optional<v1::FieldHeader> coarse_field;
    ChunkCollector coarse_chunks;
    std::optional<v1::FieldHeader> field;
    ChunkCollector chunks;
  };
  // Reads up to the next result; nullopt at the end of the stream.
  static std::optional<Answered> ReadResult(Stream& stream) {
    Answered answered;
    v1::NavigateResponse response;
    int64_t number = 0;
    while (stream.Read(&response)) {
      if (response.has_field()) {
        number = response.field().frame_number();
        (response.field().coarse() ? answered.coarse_field : answered.field) = response.field().field();
      }
      if (response.has_chunk()) (answered.field ? answered.chunks : answered.coarse_chunks).Add(response.chunk());
      if (!response.has_result()) continue;
      answered.result = response.result();
      if (answered.field.has_value()) {
        EXPECT_EQ(number, answered.result.frame_number());
      }
      return answered;
    }
    return std::nullopt;
  }
  // Writes everything, half-closes, and reads everything; the writer has a thread of its own, as flow control demands.
  struct Answer {
    grpc::Status status;
    std::vector<Answered> frames;
  };
  Answer Navigate(const std::vector<std::vector<v1::NavigateRequest>>& parts) {
    Answer answer;
    grpc::ClientContext rpc;
    auto stream = registration_->Navigate(&rpc);
    std::thread writer([&] {
      for (const auto& part : parts) {
        if (!WriteAll(*stream, part)) return;
      }
      stream->WritesDone();
    });
    while (std::optional<Answered> answered = ReadResult(*stream)) answer.frames.push_back(*std::move(answered));
    writer.join();
    answer.status = stream->Finish();
    return answer;
  }
  bool Scraped(const std::string& line) { return context().metrics.Scrape().find(line + "\n") != std::string::npos; }
};
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

// In the form that the session asks for; the final field is the same as without.
TEST_P(NavigateTest, SendsCoarseFieldsBeforeTheFinalOnes) {
  PutResident();
  for (const auto encoding : {v1::FIELD_ENCODING_FLOAT32, v1::FIELD_ENCODING_INT16, v1::FIELD_ENCODING_VELOCITY}) {
    std::string final_without;
    for (const bool coarse : {false, true}) {
      v1::NavigateRequest config = Config();
      v1::Stage& stage = *config.mutable_config()->mutable_options()->mutable_stages(0);
      SetMethod(stage, StageKind::kLogDemons);
      SetIterations(stage, 10);
      config.mutable_config()->mutable_field()->set_encoding(encoding);
      config.mutable_config()->set_coarse_field(coarse);
      const Answer answer = Navigate({{config}, GoodFrame(1)});
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      ASSERT_EQ(answer.frames.size(), 1);
      const Answered& frame = answer.frames[0];
      EXPECT_EQ(frame.result.status().code(), 0) << frame.result.status().message();
      ASSERT_TRUE(frame.field.has_value());
      ASSERT_EQ(frame.coarse_field.has_value(), coarse);
      if (!coarse) {
        final_without = frame.chunks.bytes();
        continue;
      }
      EXPECT_TRUE(frame.chunks.bytes() == final_without);
      EXPECT_EQ(frame.coarse_field->encoding(), encoding);
      EXPECT_EQ(frame.coarse_field->total_bytes(), frame.field->total_bytes());
      EXPECT_TRUE(*GeometryFromProto(frame.coarse_field->geometry()) == Grid());
      EXPECT_EQ(frame.coarse_chunks.bytes().size(), final_without.size());
      EXPECT_FALSE(frame.coarse_chunks.bytes() == final_without);
    }
  }
}

TEST_P(NavigateTest, SendsFieldsWhenAskedFor) {
  PutResident();
  v1::NavigateRequest config = Config();
  config.mutable_config()->mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(config));
  for (int n = 1; n <= 3; ++n) {
    ASSERT_TRUE(WriteAll(*stream, GoodFrame(n)));
    const std::optional<Answered> answered = ReadResult(*stream);
    ASSERT_TRUE(answered.has_value());
    EXPECT_EQ(answered->result.status().code(), 0) << answered->result.status().message();
    ASSERT_TRUE(answered->field.has_value());
    EXPECT_TRUE(*GeometryFromProto(answered->field->geometry()) == Grid());
    EXPECT_EQ(answered->field->total_bytes(), 12 * Grid().voxels());
    const std::string id = answered->result.transform().substr(std::string("transforms/").size());
    EXPECT_TRUE(answered->chunks.floats() == EngineField(id, Grid()));
  }
  EXPECT_EQ(context().transforms.size(), 3);
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(Eventually([this] { return context().transforms.size() == 0; }));
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

// Methods with a native form, which the next frame goes on from.
constexpr std::pair<StageKind, v1::FieldEncoding> kDeformable[] = {
    {StageKind::kFfd, v1::FIELD_ENCODING_CONTROL_POINTS}, {StageKind::kLogDemons, v1::FIELD_ENCODING_VELOCITY}};

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

TEST_P(NavigateTest, SendsTheNativeFormOfEveryFrame) {
  PutResident();
  for (const auto& [method, encoding] : kDeformable) {
    SCOPED_TRACE(static_cast<int>(method));
    v1::NavigateRequest config = Config();
    v1::Stage& stage = *config.mutable_config()->mutable_options()->mutable_stages(0);
    SetMethod(stage, method);
    SetMetric(stage, v1::METRIC_SSD);
    SetLevels(stage, 1);
    SetIterations(stage, 3);
    config.mutable_config()->mutable_field()->set_encoding(encoding);
    grpc::ClientContext rpc;
    auto stream = registration_->Navigate(&rpc);
    ASSERT_TRUE(stream->Write(config));
    for (int n = 1; n <= 3; ++n) {
      // The second frame fails, and has no field.
      const bool good = n != 2;
      ASSERT_TRUE(WriteAll(*stream, good ? GoodFrame(n) : Frame(n, Grid(), std::vector<float>(Grid().voxels(), 1.0f))));
      const std::optional<Answered> answered = ReadResult(*stream);
      ASSERT_TRUE(answered.has_value());
      EXPECT_EQ(answered->result.status().code() == 0, good) << answered->result.status().message();
      ASSERT_EQ(answered->field.has_value(), good);
      if (!good) continue;
      EXPECT_EQ(answered->field->encoding(), encoding);
      v1::DownloadRequest request = WholeField(answered->result.transform().substr(std::string("transforms/").size()));
      request.mutable_field()->set_encoding(encoding);
      const Download download = GetField(request);
      ASSERT_TRUE(download.status.ok()) << download.status.error_message();
      EXPECT_EQ(download.field->SerializeAsString(), answered->field->SerializeAsString());
      EXPECT_TRUE(download.chunks.bytes() == answered->chunks.bytes());
      EXPECT_THAT(download.chunks.floats(), testing::Contains(testing::Ne(0.0f)));
    }
    stream->WritesDone();
    EXPECT_FALSE(ReadResult(*stream).has_value());
    EXPECT_TRUE(stream->Finish().ok());
  }
}

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

TEST_P(NavigateTest, ReadsAheadNoMoreThanItMay) {
  PutResident();
  v1::NavigateRequest config = Config();
  config.mutable_config()->set_max_pending(1);
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(config));
  std::thread writer([&] {
    for (int n = 1; n <= 8; ++n) ASSERT_TRUE(WriteAll(*stream, GoodFrame(n)));
    stream->WritesDone();
  });
  int results = 0;
  std::optional<v1::Session> closed;
  v1::NavigateResponse response;
  while (stream->Read(&response)) {
    results += response.has_result() ? 1 : 0;
    if (response.has_closed()) closed = response.closed();
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(results, 8);
  // Two frames: the one that is answered, and one ahead.
  ASSERT_TRUE(closed.has_value());
  EXPECT_LE(closed->statistics().peak_frames_in_flight(), 2);
}

TEST_P(NavigateTest, AFloodOfHeadersIsHeldByFlowControl) {
  constexpr int kHeaders = 10000;
  PutResident();
  v1::NavigateRequest config = NamedConfig("flooded");
  config.mutable_config()->set_max_pending(1);
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(config));
  ReadOpened(*stream);
  const size_t leased = context().pinned.leased_bytes();
  const auto session = *context().sessions.Find("flooded");
  std::thread writer([&] {
    v1::NavigateRequest header = GoodFrame(1)[0];
    for (int n = 1; n <= kHeaders; ++n) {
      header.mutable_frame()->set_frame_number(n);
      if (!stream->Write(header)) return;
    }
    stream->WritesDone();
  });
  // Nothing is read until some have been answered.
  EXPECT_TRUE(Eventually([&] { return session->Describe().statistics().frames_failed() > 2; }));
  EXPECT_EQ(context().pinned.leased_bytes(), leased);
  int results = 0;
  while (std::optional<Answered> answered = ReadResult(*stream)) {
    EXPECT_EQ(answered->result.frame_number(), ++results);
    EXPECT_EQ(answered->result.status().code(), grpc::INVALID_ARGUMENT);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(results, kHeaders);
  EXPECT_LE(session->Describe().statistics().peak_frames_in_flight(), 2);
}

TEST_P(NavigateTest, AFrameBehindLongWorkIsNeverOkWhenLate) {
  PutResident();
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  v1::NavigateRequest config = Config();
  // A budget alone does not see the queue.
  config.mutable_config()->mutable_options()->mutable_budget()->set_seconds(60);
  config.mutable_config()->mutable_frame_deadline()->set_nanos(1000000);
  ASSERT_TRUE(stream->Write(config));
  ReadOpened(*stream);
  JobBlocker blocker(context().jobs);
  ASSERT_TRUE(WriteAll(*stream, GoodFrame(1)));
  const std::optional<Answered> answered = ReadResult(*stream);
  ASSERT_TRUE(answered.has_value());
  EXPECT_EQ(answered->result.status().code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(answered->result.status()), v1::DEADLINE_PASSED);
  EXPECT_FALSE(answered->result.has_report());
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_P(NavigateTest, AFrameDoesNotWaitForABatchJobToEnd) {
  PutResident();
  std::atomic<bool> end = false;
  std::promise<void> started, ended;
  Job batch;
  batch.job_class = JobClass::kBatch;
  batch.run = [&](const absl::StatusOr<const ExecContext*>& ctx) {
    started.set_value();
    while (!end) EXPECT_EQ((*ctx)->Checkpoint({}), Decision::kContinue);
    ended.set_value();
  };
  ASSERT_TRUE(context().jobs.Submit(std::move(batch)).ok());
  started.get_future().wait();

  const Answer answer = Navigate({{Config()}, GoodFrame(1), GoodFrame(2)});

  ASSERT_EQ(answer.frames.size(), 2);
  for (const Answered& frame : answer.frames) EXPECT_EQ(frame.result.status().code(), 0);
  EXPECT_EQ(context().jobs.started(JobClass::kBatch), 1);
  end = true;
  ended.get_future().wait();
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

TEST_P(NavigateTest, ACancelLeavesNothingWhereverItComes) {
  PutResident();
  for (const int stage : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(stage);
    grpc::ClientContext rpc;
    auto stream = registration_->Navigate(&rpc);
    std::vector<v1::NavigateRequest> half = GoodFrame(2);
    half.resize(2);
    std::unique_ptr<JobBlocker> blocker;
    if (stage == 1) {  // the session waits for its warm-up
      blocker = std::make_unique<JobBlocker>(context().jobs);
      ASSERT_TRUE(stream->Write(Config()));
    }
    if (stage >= 2) {  // a frame waits for the device
      ASSERT_TRUE(stream->Write(Config()));
      ReadOpened(*stream);
      blocker = std::make_unique<JobBlocker>(context().jobs);
      ASSERT_TRUE(WriteAll(*stream, GoodFrame(1)));
    }
    if (stage >= 3) {  // another is being received
      ASSERT_TRUE(WriteAll(*stream, half));
    }
    if (stage >= 1) {
      ASSERT_TRUE(Eventually([&] { return context().jobs.pending() == 2; }));
    }
    if (stage >= 4) {
      blocker->Release();  // it runs, or is answered
      ASSERT_TRUE(Eventually([&] { return context().jobs.pending() <= 1; }));
    }

    rpc.TryCancel();

    EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
    EXPECT_TRUE(Eventually([&] { return context().ledger.in_use(Resource::kStreams) == 0; }));
    blocker.reset();
    EXPECT_TRUE(Eventually([&] {
      return context().jobs.pending() == 0 && context().pinned.leased_bytes() == 0 && context().transforms.size() == 0;
    }));
  }
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

TEST_P(NavigateTest, ABrokenConnectionIsResumedFromTheLastGoodTransform) {
  PutResident();
  v1::NavigateRequest config = NamedConfig("s");
  {
    TcpRelay relay(server_->grpc_address());
    auto stub =
        v1::RegistrationService::NewStub(grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext rpc;
    auto stream = stub->Navigate(&rpc);
    ASSERT_TRUE(stream->Write(config));
    ASSERT_TRUE(WriteAll(*stream, GoodFrame(7)));
    ASSERT_TRUE(ReadResult(*stream).has_value());
    relay.Cut();
    EXPECT_FALSE(ReadResult(*stream).has_value());
    EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  }
  const auto session = *context().sessions.Find("s");
  ASSERT_TRUE(Eventually([&] { return session->state() == NavigateSession::State::kDetached; }));
  EXPECT_EQ(context().transforms.size(), 1);

  config.mutable_config()->set_resume(true);
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(config));
  const v1::SessionOpened opened = ReadOpened(*stream);
  EXPECT_EQ(opened.resumed_from_frame(), 7);
  EXPECT_EQ(opened.session().last_frame_number(), 7);
  ASSERT_TRUE(WriteAll(*stream, GoodFrame(8)));
  EXPECT_EQ(ReadResult(*stream)->result.status().code(), 0);
  stream->WritesDone();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(context().transforms.size(), 0);
}

TEST_P(NavigateTest, ASecondStreamTakesTheSessionOver) {
  PutResident();
  grpc::ClientContext first_rpc, second_rpc, third_rpc;
  auto first = registration_->Navigate(&first_rpc);
  ASSERT_TRUE(first->Write(NamedConfig("s")));
  ReadOpened(*first);
  ASSERT_TRUE(WriteAll(*first, GoodFrame(1)));
  ASSERT_TRUE(ReadResult(*first).has_value());

  auto refused = registration_->Navigate(&third_rpc);
  ASSERT_TRUE(refused->Write(NamedConfig("s")));
  EXPECT_FALSE(ReadResult(*refused).has_value());
  EXPECT_EQ(ReasonOf(refused->Finish()), v1::RESOURCE_EXISTS);

  v1::NavigateRequest config = NamedConfig("s");
  config.mutable_config()->set_resume(true);
  auto second = registration_->Navigate(&second_rpc);
  ASSERT_TRUE(second->Write(config));
  EXPECT_EQ(ReadOpened(*second).resumed_from_frame(), 1);
  EXPECT_FALSE(ReadResult(*first).has_value());
  const grpc::Status status = first->Finish();
  EXPECT_STATUS(status, grpc::ABORTED, "resumed");
  EXPECT_EQ(ReasonOf(status), v1::SESSION_ENDED);
  ASSERT_TRUE(WriteAll(*second, GoodFrame(2)));
  EXPECT_EQ(ReadResult(*second)->result.status().code(), 0);
  second->WritesDone();
  EXPECT_FALSE(ReadResult(*second).has_value());
  EXPECT_TRUE(second->Finish().ok());
}

// The clock jumps, so that a write whose end was not noted yet would look stalled.
class UnwatchedNavigateTest : public NavigateTest {
 protected:
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.stream_idle_timeout = std::chrono::seconds(0);
    return limits;
  }
  UnwatchedNavigateTest() : NavigateTest(Limits()) {}
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(UnwatchedNavigateTest);

TEST_P(UnwatchedNavigateTest, AnIdleSessionEndsItsStream) {
  PutResident();
  grpc::ClientContext rpc;
  auto stream = registration_->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(Config()));
  ReadOpened(*stream);
  AdvanceClock(std::chrono::minutes(16));
  server_->Housekeep();
  EXPECT_FALSE(ReadResult(*stream).has_value());
  const grpc::Status status = stream->Finish();
  EXPECT_STATUS(status, grpc::ABORTED, "idle");
  EXPECT_EQ(ReasonOf(status), v1::SESSION_ENDED);
  EXPECT_EQ(context().sessions.size(), 0);
}

TEST_P(NavigateTest, AVanishedClientLeavesNothing) {
  PutResident();
  TcpRelay relay(server_->grpc_address());
  auto stub =
      v1::RegistrationService::NewStub(grpc::CreateChannel(relay.address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext rpc;
  auto stream = stub->Navigate(&rpc);
  ASSERT_TRUE(stream->Write(Config()));
  ASSERT_TRUE(WriteAll(*stream, GoodFrame(1)));
  ASSERT_TRUE(ReadResult(*stream).has_value());
  EXPECT_EQ(context().transforms.size(), 1);

  relay.Cut();

  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_TRUE(
      Eventually([&] { return context().ledger.in_use(Resource::kStreams) == 0 && context().transforms.size() == 0; }));
}

TEST_P(NavigateTest, ADeadlineEndsAStream) {
  PutResident();
  grpc::ClientContext rpc;
  rpc.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  auto stream = registration_->Navigate(&rpc);
  stream->Write(Config());
  EXPECT_FALSE(ReadResult(*stream).has_value());
  EXPECT_EQ(stream->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return context().ledger.in_use(Resource::kStreams) == 0; }));
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
