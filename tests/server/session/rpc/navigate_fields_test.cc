// SPDX-License-Identifier: Apache-2.0
// The fields that Navigate sends: coarse and final, whole and in their native form.
#include "server/session/rpc/navigate_stream.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/session/rpc/navigate_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {
namespace {

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

}  // namespace
}  // namespace intrawarp::server
