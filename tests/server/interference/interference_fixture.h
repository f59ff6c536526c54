// SPDX-License-Identifier: Apache-2.0
// A server with small limits, a navigation client, and room for another client that misbehaves. Everything goes over
// the wire. The tests ask whether frames succeed, never how long they take.
#ifndef INTRAWARP_TESTS_SERVER_INTERFERENCE_INTERFERENCE_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_INTERFERENCE_INTERFERENCE_FIXTURE_H_

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "intrawarp/v1/bulk.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "tests/server/bulk_client.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "wire/convert.h"

namespace intrawarp::server {

// The frames' grid, and the resident volume's.
inline Geometry PatientGrid() { return BoxGeometry(24, 24, 24); }

// The seed of the resident volume's voxels.
inline constexpr uint32_t kPatientSeed = 7;

// The answer to one frame, or the end of its stream.
struct FrameSeen {
  bool in_stream = false;  // false: the stream has ended, with this code
  int code = 0;            // of grpc::StatusCode
  std::string reason;      // ErrorReason; empty for code 0 and for errors of gRPC itself
  v1::FrameResult result;

  bool ok() const { return in_stream && code == 0; }
  std::string Name() const {
    if (ok()) return "ok";
    return absl::StrCat(in_stream ? "code " : "stream ended, code ", code, reason.empty() ? "" : " ", reason);
  }
};

// The options of a session and of its frames.
struct SessionOptions {
  v1::NavigateConfig config;
  // The deadline of each frame; unset: none.
  std::optional<std::chrono::milliseconds> deadline;
  // Every frame is the resident volume; otherwise each has random voxels of its own.
  bool still = false;
};

// Frames on PatientGrid() to volumes/patient by a few iterations of log-demons, with the whole field in the answer: a
// frame needs pinned memory both ways, workspace, resident memory and a place for its result.
inline SessionOptions PatientSession() {
  SessionOptions options;
  options.config.set_fixed("volumes/patient");
  v1::LogDemonsStage& stage = *options.config.mutable_options()->add_stages()->mutable_log_demons();
  stage.set_levels(1);
  stage.set_iterations(2);
  options.config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  return options;
}

inline std::string ReasonIn(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const google::protobuf::Any& detail : status.details()) detail.UnpackTo(&info);
  return info.reason();
}

inline std::string ReasonIn(const grpc::Status& status) {
  google::rpc::Status proto;
  return proto.ParseFromString(status.error_details()) ? ReasonIn(proto) : "";
}

// One session on a connection of its own, frame by frame. Thread-compatible.
class NavigationClient {
 public:
  NavigationClient(const std::string& address, SessionOptions options)
      : options_(std::move(options)), stub_(v1::RegistrationService::NewStub(OwnChannel(address))) {
    // A guard against a hang.
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(240));
    stream_ = stub_->Navigate(&context_);
    v1::NavigateRequest request;
    *request.mutable_config() = options_.config;
    open_ = stream_->Write(request);
  }
  ~NavigationClient() {
    if (!end_) context_.TryCancel();
    End();
  }

  static std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }

  // A frame on the given grid.
  void Send(const Geometry& grid) {
    ++number_;
    const std::vector<float> voxels = RandomVoxels<float>(grid, options_.still ? kPatientSeed : 100 + number_);
    const std::string bytes(reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(float));
    v1::NavigateRequest request;
    *request.mutable_frame() = Header(grid, bytes.size());
    open_ = open_ && stream_->Write(request);
    for (size_t at = 0; open_ && at < bytes.size(); at += kChunkBytes) {
      *request.mutable_chunk() = MakeChunk(at, bytes.substr(at, kChunkBytes));
      open_ = stream_->Write(request);
    }
  }
  FrameSeen Receive() {
    v1::NavigateResponse response;
    while (stream_->Read(&response)) {
      if (!response.has_result()) continue;
      const google::rpc::Status& status = response.result().status();
      return {true, status.code(), ReasonIn(status), response.result()};
    }
    const grpc::Status& end = End();
    return {false, end.error_code(), ReasonIn(end), {}};
  }
  FrameSeen Next() {
    Send(PatientGrid());
    return Receive();
  }

 private:
  static constexpr size_t kChunkBytes = size_t{1} << 20;

  v1::FrameHeader Header(const Geometry& grid, size_t bytes) const {
    v1::FrameHeader header;
    header.set_frame_number(number_);
    *header.mutable_geometry() = GeometryToProto(grid);
    header.set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
    header.set_total_bytes(static_cast<int64_t>(bytes));
    if (options_.deadline) *header.mutable_deadline() = DurationToProto(*options_.deadline);
    return header;
  }
  const grpc::Status& End() {
    if (!end_) end_ = stream_->Finish();
    return *end_;
  }

  const SessionOptions options_;
  std::unique_ptr<v1::RegistrationService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NavigateRequest, v1::NavigateResponse>> stream_;
  bool open_ = false;
  std::optional<grpc::Status> end_;
  int64_t number_ = 0;
};

class InterferenceTest : public testing::Test {
 protected:
  static ServerOptions SmallServer() {
    ServerOptions options = TestServer::DefaultOptions();
    options.device = "cpu";
    options.limits.resident_capacity_bytes = int64_t{64} << 20;
    options.limits.pinned_capacity_bytes = int64_t{32} << 20;
    return options;
  }

  explicit InterferenceTest(const ServerOptions& options = SmallServer()) : test_(options) {
    Put("patient", PatientGrid());
  }

  std::string address() const { return test_.server->grpc_address(); }

  void Put(const std::string& id, const Geometry& grid) {
    const UploadData volume = MakeVolume(grid, RandomVoxels<float>(grid, kPatientSeed), "put-" + id, id);
    const grpc::Status status = Upload(*test_.Stub<v1::BulkService>(), volume, nullptr, size_t{1} << 20);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  // The session's next frames are answered well. Their figures are printed, so that a run's output is a table.
  static void ExpectFrames(const std::string& when, NavigationClient& client, int frames = 8) {
    std::map<std::string, int> seen;
    for (int i = 0; i < frames; ++i) {
      const FrameSeen frame = client.Next();
      ++seen[frame.Name()];
      if (!frame.in_stream) break;
    }
    const auto pair = [](std::string* out, const auto& item) { absl::StrAppend(out, item.second, " ", item.first); };
    const std::string all = absl::StrJoin(seen, ", ", pair);
    std::cout << "[ FRAMES   ] " << when << ": " << all << "\n";
    EXPECT_EQ(seen, (std::map<std::string, int>{{"ok", frames}})) << when;
  }
  void ExpectNewSession(const std::string& when) {
    NavigationClient client(address(), PatientSession());
    ExpectFrames(when, client);
  }

  // Waits for the usage; a failure when it does not come within the guard.
  void AwaitUsage(const std::string& what, const std::function<bool(const v1::Usage&)>& condition) {
    const v1::Usage usage = test_.WaitForUsage(condition);
    EXPECT_TRUE(condition(usage)) << what << ": " << usage.ShortDebugString();
  }

  TestServer test_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_INTERFERENCE_INTERFERENCE_FIXTURE_H_
