// SPDX-License-Identifier: Apache-2.0
// A Navigate call, message by message, against "volumes/resident".
#ifndef INTRAWARP_TESTS_SERVER_SESSION_RPC_NAVIGATE_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_SESSION_RPC_NAVIGATE_FIXTURE_H_

#include "server/monitor/registry.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/service_fixture.h"
#include "tests/server/stages.h"

namespace intrawarp::server {

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
  bool Scraped(const std::string& line) {
    return context().metrics.registry.Scrape().find(line + "\n") != std::string::npos;
  }
};

// Methods with a native form, which the next frame goes on from.
inline constexpr std::pair<StageKind, v1::FieldEncoding> kDeformable[] = {
    {StageKind::kFfd, v1::FIELD_ENCODING_CONTROL_POINTS}, {StageKind::kLogDemons, v1::FIELD_ENCODING_VELOCITY}};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SESSION_RPC_NAVIGATE_FIXTURE_H_
