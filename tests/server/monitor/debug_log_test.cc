// SPDX-License-Identifier: Apache-2.0
// The log of a server at level debug: a line for each call, frame, registration and product, with its trace, and
// nothing that a client named. The level changes while the server runs, for admins alone, and reverts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/client.h"
#include "server/monitor/log_levels.h"
#include "tests/server/identity/access_fixture.h"
#include "tests/server/matrix_client.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace intrawarp::server {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr char kPatient[] = "Mueller-Hans-1950";
constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kTraceparent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

std::string Volume(const std::string& id) { return absl::StrCat("volumes/", id); }

// What reached stderr since the last time, as lines that tell of an event.
class LogCapture {
 public:
  LogCapture() { testing::internal::CaptureStderr(); }
  ~LogCapture() { Text(); }
  std::string Text() {
    if (is_open_) text_ = testing::internal::GetCapturedStderr();
    is_open_ = false;
    return text_;
  }
  std::vector<std::string> Lines(const std::string& event) {
    std::vector<std::string> lines;
    for (const absl::string_view line : absl::StrSplit(Text(), '\n')) {
      if (absl::StrContains(absl::StrCat(line, " "), absl::StrCat(" event=", event, " "))) lines.emplace_back(line);
    }
    return lines;
  }

 private:
  bool is_open_ = true;
  std::string text_;
};

class DebugLogTest : public testing::Test {
 protected:
  DebugLogTest() {
    auto client = client::Client::Connect(test_.server->grpc_address());
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  ~DebugLogTest() override { TheLogLevels().Start(Severity::kInfo); }

  static absl::string_view Bytes(const std::vector<float>& voxels) {
    return {reinterpret_cast<const char*>(voxels.data()), voxels.size() * sizeof(float)};
  }
  absl::Status Put(const std::string& id, const std::vector<float>& voxels, const client::CallOptions& call = {}) {
    client::VolumeUpload upload;
    upload.id = id;
    upload.geometry = Grid();
    upload.bytes = Bytes(voxels);
    return client_->UploadVolume(upload, call).status();
  }
  absl::Status Register(const std::string& moving, const client::CallOptions& call) {
    v1::RegisterRequest request;
    request.set_fixed(Volume(kPatient));
    request.set_moving(moving);
    request.set_transform_id(absl::StrCat(kPatient, "-transform"));
    SetMethod(*request.mutable_options()->add_stages(), StageKind::kRigid);
    return client_->Register(request, nullptr, nullptr, call).status();
  }
  absl::Status Multiply(const client::CallOptions& call) {
    v1::MultiplyRequest request;
    request.set_a(absl::StrCat("sparseMatrices/", kPatient));
    request.set_b(absl::StrCat("sparseMatrices/", kPatient));
    request.mutable_keep()->set_id(absl::StrCat(kPatient, "-product"));
    return client_->Multiply(request, nullptr, nullptr, call).status();
  }
  void Navigate(const client::CallOptions& call) {
    v1::NavigateConfig config = RigidConfig();
    config.set_fixed(Volume(kPatient));
    config.set_session_id(kPatient);
    const auto stream = client_->Navigate(config, call);
    const std::vector<float> voxels = MovingFrame(Grid(), 1);
    for (int n = 1; n <= 2; ++n) {
      client::Frame frame;
      frame.number = n;
      frame.geometry = Grid();
      frame.bytes = Bytes(voxels);
      ASSERT_TRUE(stream->Send(frame).ok());
      ASSERT_TRUE(stream->Receive(nullptr).ok());
    }
    ASSERT_TRUE(stream->CloseSend().ok());
    EXPECT_FALSE(stream->Receive(nullptr)->has_value());
  }
  void UploadMatrixOf(const std::string& id) {
    ASSERT_TRUE(
        Upload(*test_.Stub<v1::BulkService>(), MakeMatrix(RandomCsr<float>(30, 30, 4, 1), "upload-" + id, id)).ok());
  }
  v1::SetLogLevelRequest Level(v1::LogLevel level, const std::string& room = "") {
    v1::SetLogLevelRequest request;
    request.set_level(level);
    request.set_room(room);
    return request;
  }
  std::string FieldAtFault(const v1::SetLogLevelRequest& request) {
    grpc::ClientContext context;
    v1::SetLogLevelResponse response;
    const grpc::Status status = test_.Stub<v1::ServerService>()->SetLogLevel(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    return DetailsOf(status).field;
  }

  TestServer test_;
  std::unique_ptr<client::Client> client_;
};

TEST_F(DebugLogTest, TellsOfEveryCallAndItsTraceAndOfNoPatient) {
  ASSERT_TRUE(client_->SetLogLevel(Level(v1::LOG_LEVEL_DEBUG)).ok());
  LogCapture log;
  const client::CallOptions traced{.traceparent = kTraceparent};
  ASSERT_TRUE(Put(kPatient, ResidentImage(), traced).ok());
  ASSERT_TRUE(Put("moving", MovingFrame(Grid(), 1), traced).ok());
  ASSERT_TRUE(Register(Volume("moving"), traced).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Register(Volume("moving"), traced)));
  Navigate(traced);
  UploadMatrixOf(kPatient);
  ASSERT_TRUE(Multiply(traced).ok());
  const Vec3d point{19.50, 1, 2};
  ASSERT_TRUE(client_->MapPoints(absl::StrCat("transforms/", kPatient, "-transform"), {&point, 1}, false, traced).ok());
  EXPECT_TRUE(absl::IsNotFound(client_->DeleteVolume(Volume(absl::StrCat(kPatient, "-absent")), traced)));
  ASSERT_TRUE(client_->DeleteVolume(Volume(kPatient), traced).ok());
  RawCall unknown(test_.channel, absl::StrCat("/", kPatient, "/", kPatient));
  unknown.WritesDone();
  EXPECT_EQ(unknown.Finish().error_code(), grpc::UNIMPLEMENTED);
  // The end of a call is noted after its status was sent.
  test_.server->Stop();

  EXPECT_THAT(log.Text(), Not(HasSubstr("Mueller")));
  for (const char* method :
       {"BulkService/Upload", "RegistrationService/Register", "RegistrationService/Navigate",
        "SparseMatrixService/Multiply", "TransformService/MapPoints", "VolumeService/DeleteVolume"}) {
    for (const char* event : {"call_begin", "call_end"}) {
      const auto lines = log.Lines(event);
      EXPECT_TRUE(std::any_of(lines.begin(), lines.end(),
                              [&](const std::string& line) { return absl::StrContains(line, method); }))
          << event << " " << method;
    }
  }
  for (const std::string& line : log.Lines("call_end")) {
    EXPECT_THAT(line, HasSubstr("level=debug"));
    EXPECT_THAT(line, HasSubstr(" code="));
    EXPECT_THAT(line, HasSubstr(" ms="));
  }
  const std::vector<std::string> frames = log.Lines("frame");
  EXPECT_THAT(frames, SizeIs(2));
  EXPECT_THAT(frames, Each(HasSubstr(absl::StrCat("trace=", kTrace))));
  for (const char* phase : {"receive_ms=", "optimise_ms=", "assess_ms=", "frame=", "code=OK"}) {
    EXPECT_THAT(frames, Each(HasSubstr(phase)));
  }
  const std::vector<std::string> registrations = log.Lines("registration");
  ASSERT_THAT(registrations, SizeIs(testing::Ge(1u)));
  EXPECT_THAT(registrations[0], HasSubstr("optimise_ms="));
  EXPECT_THAT(registrations, Each(HasSubstr(absl::StrCat("trace=", kTrace))));
  EXPECT_THAT(log.Lines("product"), Each(HasSubstr(absl::StrCat("trace=", kTrace))));
  EXPECT_THAT(log.Lines("product"), SizeIs(1));
  EXPECT_THAT(log.Text(), HasSubstr("reason=RESOURCE_NOT_FOUND"));
}

TEST_F(DebugLogTest, IsQuietAtInfo) {
  LogCapture log;
  ASSERT_TRUE(Put(kPatient, ResidentImage()).ok());
  Navigate({});
  test_.server->Stop();
  EXPECT_THAT(log.Text(), Not(HasSubstr("level=debug")));
}

TEST_F(DebugLogTest, ChangesByRoom) {
  const auto levels = client_->SetLogLevel(Level(v1::LOG_LEVEL_DEBUG, "registration"));
  ASSERT_TRUE(levels.ok()) << levels.status();
  ASSERT_THAT(*levels, SizeIs(kLogRooms));
  for (const v1::RoomLogLevel& level : *levels) {
    EXPECT_EQ(level.level(), level.room() == "registration" ? v1::LOG_LEVEL_DEBUG : v1::LOG_LEVEL_INFO);
    EXPECT_FALSE(level.has_reverts_after());
  }
  EXPECT_EQ(test_.Info().log_levels_size(), kLogRooms);
  LogCapture log;
  ASSERT_TRUE(Put(kPatient, ResidentImage()).ok());
  Navigate({});
  test_.server->Stop();
  EXPECT_THAT(log.Lines("frame"), SizeIs(2));
  EXPECT_THAT(log.Lines("call_end"), IsEmpty());
}

TEST_F(DebugLogTest, RevertsAfterAWhile) {
  v1::SetLogLevelRequest request = Level(v1::LOG_LEVEL_DEBUG);
  request.mutable_revert_after()->set_seconds(600);
  const auto levels = client_->SetLogLevel(request);
  ASSERT_TRUE(levels.ok()) << levels.status();
  for (const v1::RoomLogLevel& level : *levels) {
    EXPECT_LE(level.reverts_after().seconds(), 600);
    EXPECT_GE(level.reverts_after().seconds(), 500);
  }
  test_.clock.Advance(std::chrono::minutes(9));
  test_.server->Housekeep();
  EXPECT_EQ(test_.Info().log_levels(0).level(), v1::LOG_LEVEL_DEBUG);
  LogCapture log;
  test_.clock.Advance(std::chrono::minutes(2));
  test_.server->Housekeep();
  EXPECT_EQ(test_.Info().log_levels(0).level(), v1::LOG_LEVEL_INFO);
  EXPECT_FALSE(test_.Info().log_levels(0).has_reverts_after());
  EXPECT_THAT(log.Lines("log_level_reverted"), SizeIs(1));
}

TEST_F(DebugLogTest, NamesTheFieldAtFault) {
  EXPECT_EQ(FieldAtFault(v1::SetLogLevelRequest()), "level");
  EXPECT_EQ(FieldAtFault(Level(static_cast<v1::LogLevel>(5))), "level");
  EXPECT_EQ(FieldAtFault(Level(static_cast<v1::LogLevel>(-1))), "level");
  EXPECT_EQ(FieldAtFault(Level(v1::LOG_LEVEL_DEBUG, "rooms")), "room");
  v1::SetLogLevelRequest request = Level(v1::LOG_LEVEL_DEBUG);
  request.mutable_revert_after()->set_seconds(8 * 24 * 3600);
  EXPECT_EQ(FieldAtFault(request), "revert_after");
  request.mutable_revert_after()->set_seconds(-1);
  EXPECT_EQ(FieldAtFault(request), "revert_after");
  const v1::ServerInfo info = test_.Info();
  for (const v1::RoomLogLevel& level : info.log_levels()) EXPECT_EQ(level.level(), v1::LOG_LEVEL_INFO);
}

TEST_F(DebugLogTest, AMalformedTraceIsNeverRepeated) {
  ASSERT_TRUE(client_->SetLogLevel(Level(v1::LOG_LEVEL_DEBUG, "rpc")).ok());
  LogCapture log;
  const auto ask = [this](const std::vector<std::string>& traceparents) {
    grpc::ClientContext context;
    for (const std::string& value : traceparents) context.AddMetadata("traceparent", value);
    v1::GetServerInfoResponse response;
    EXPECT_TRUE(test_.Stub<v1::ServerService>()->GetServerInfo(&context, {}, &response).ok());
  };
  ask({kPatient});
  ask({absl::StrCat("ff", std::string(kTraceparent).substr(2))});
  ask({kTraceparent, kTraceparent});
  ask({absl::StrCat(kTraceparent, "-", kPatient)});
  test_.server->Stop();
  EXPECT_THAT(log.Text(), Not(HasSubstr("Mueller")));
  EXPECT_THAT(log.Text(), Not(HasSubstr(kTrace)));
  const std::vector<std::string> lines = log.Lines("call_end");
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) { return absl::StrContains(line, " traceparent=malformed "); }),
            4);
}

TEST_F(DebugLogTest, TheClientSendsNoTraceThatIsNone) {
  ASSERT_TRUE(client_->SetLogLevel(Level(v1::LOG_LEVEL_DEBUG, "rpc")).ok());
  LogCapture log;
  for (const char* text : {"", "\n\x01", kPatient}) {
    EXPECT_TRUE(client_->GetServerInfo({.traceparent = text}).ok());
  }
  test_.server->Stop();
  EXPECT_THAT(log.Lines("call_end"), SizeIs(testing::Ge(3u)));
  EXPECT_THAT(log.Text(), Not(HasSubstr("trace")));
}

class LogLevelAccessTest : public AccessTest {
 protected:
  ~LogLevelAccessTest() override { TheLogLevels().Start(Severity::kInfo); }
};

TEST_F(LogLevelAccessTest, BelongsToAdmins) {
  const std::string frame = AddToken("or3", Roles(Role::kFrame) | Role::kStage);
  const std::string admin = AddToken("root", Role::kAdmin);
  StartWithTokens(nullptr);
  v1::SetLogLevelRequest request;
  request.set_level(v1::LOG_LEVEL_WARNING);
  const auto set = [&](const std::string& token) {
    grpc::ClientContext context;
    v1::SetLogLevelResponse response;
    return v1::ServerService::NewStub(NewChannel(WithToken(token)))
        ->SetLogLevel(&context, request, &response)
        .error_code();
  };
  EXPECT_EQ(set(frame), grpc::PERMISSION_DENIED);
  EXPECT_EQ(TheLogLevels().level(LogRoom::kRpc), Severity::kInfo);
  EXPECT_EQ(set(admin), grpc::OK);
  EXPECT_EQ(TheLogLevels().level(LogRoom::kRpc), Severity::kWarning);
}

}  // namespace
}  // namespace intrawarp::server
