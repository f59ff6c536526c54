// SPDX-License-Identifier: Apache-2.0
// Which server a call goes to, and what follows when that one does not serve; against servers of the test's own.
#include "client/cpp/routed_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cpp/routed_session.h"
#include "client/cpp/rpc_status.h"
#include "google/rpc/error_details.pb.h"
#include "intrawarp/v1/error.pb.h"
#include "tests/client/fake_server.h"
#include "tests/server/identity/certificates.h"
#include "wire/convert.h"

namespace intrawarp::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

grpc::Status WithReason(grpc::StatusCode code, v1::ErrorReason reason) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message("refused");
  google::rpc::ErrorInfo info;
  info.set_domain("intrawarp");
  info.set_reason(v1::ErrorReason_Name(reason));
  status.add_details()->PackFrom(info);
  return grpc::Status(code, "refused", status.SerializeAsString());
}

class RoutedClientTest : public testing::Test {
 protected:
  void SetUp() override {
    for (auto& server : servers_) server = std::make_unique<FakeServer>();
  }

  std::string Targets() {
    return absl::StrJoin(servers_, ",", [](std::string* out, const auto& server) { *out += server->target(); });
  }
  std::unique_ptr<RoutedClient> Connect(RoutingOptions routing = {std::chrono::seconds(5)}) {
    auto client = RoutedClient::Connect(Targets(), {}, routing);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  FakeServer& At(const std::string& address) {
    return **std::find_if(servers_.begin(), servers_.end(), [&](const auto& s) { return s->target() == address; });
  }
  static absl::Status Visit(RoutedClient& client, const Route& route, const absl::Status& answer,
                            std::vector<std::string>* visited) {
    return client.Run(route, {}, [&](Client&, const std::string& address) {
      visited->push_back(address);
      return visited->size() == 1 ? answer : absl::OkStatus();
    });
  }

  std::array<std::unique_ptr<FakeServer>, 3> servers_;
};

TEST_F(RoutedClientTest, AKeyStaysWithItsServer) {
  const auto client = Connect();
  std::set<std::string> owners;
  for (int i = 0; i < 30; ++i) {
    const Route route{absl::StrCat("volume ", i)};
    std::vector<std::string> visited;
    ASSERT_TRUE(Visit(*client, route, absl::OkStatus(), &visited).ok());
    EXPECT_THAT(visited, ElementsAre(ServerSet(client->addresses()).Order(route.key).front()));
    owners.insert(visited.front());
  }
  EXPECT_EQ(owners.size(), 3u);
}

TEST_F(RoutedClientTest, ServersThatDoNotServeArePassedOver) {
  const auto client = Connect();
  const Route route{"volume"};
  const std::vector<std::string> order = client->Order(route);
  At(order[0]).server().GetHealthCheckService()->SetServingStatus(false);
  for (auto& server : servers_) {
    if (server->target() == order[1]) server.reset();
  }
  std::vector<std::string> visited;
  EXPECT_TRUE(Visit(*client, route, absl::OkStatus(), &visited).ok());
  EXPECT_THAT(visited, ElementsAre(order[2]));
}

TEST_F(RoutedClientTest, NoServerIsUnavailable) {
  const auto client = Connect();
  for (auto& server : servers_) server->server().GetHealthCheckService()->SetServingStatus(false);
  std::vector<std::string> visited;
  const absl::Status status = Visit(*client, {"volume"}, absl::OkStatus(), &visited);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no server is left of 3"));
  EXPECT_THAT(visited, IsEmpty());
}

TEST_F(RoutedClientTest, OnlyTheServersFaultsMoveWork) {
  const auto client = Connect();
  const Route route{"volume"};
  const std::vector<std::string> order = client->Order(route);
  const auto visits = [&](const absl::Status& answer) {
    std::vector<std::string> visited;
    const absl::Status status = Visit(*client, route, answer, &visited);
    EXPECT_EQ(status.ok(), visited.size() == 2) << status;
    return visited.size();
  };
  EXPECT_EQ(visits(absl::UnavailableError("broken")), 2u);
  EXPECT_EQ(visits(absl::InternalError("Received RST_STREAM")), 2u);
  EXPECT_EQ(visits(FromGrpcStatus(WithReason(grpc::StatusCode::UNAVAILABLE, v1::SERVER_STOPPING))), 2u);
  EXPECT_EQ(visits(FromGrpcStatus(WithReason(grpc::StatusCode::UNAVAILABLE, v1::DEVICE_LOST))), 2u);
  EXPECT_EQ(visits(FromGrpcStatus(WithReason(grpc::StatusCode::RESOURCE_EXHAUSTED, v1::RESIDENT_MEMORY))), 2u);
  EXPECT_EQ(visits(FromGrpcStatus(WithReason(grpc::StatusCode::RESOURCE_EXHAUSTED, v1::TOO_MANY_SESSIONS))), 2u);

  EXPECT_EQ(visits(FromGrpcStatus(WithReason(grpc::StatusCode::RESOURCE_EXHAUSTED, v1::OWNER_QUOTA))), 1u);
  EXPECT_EQ(visits(FromGrpcStatus(WithReason(grpc::StatusCode::RESOURCE_EXHAUSTED, v1::CALL_RATE))), 1u);
  EXPECT_EQ(visits(FromGrpcStatus(WithReason(grpc::StatusCode::INTERNAL, v1::INTERNAL_ERROR))), 1u);
  EXPECT_EQ(visits(absl::ResourceExhaustedError("larger than max_answer_bytes")), 1u);
  EXPECT_EQ(visits(absl::InvalidArgumentError("wrong")), 1u);
  EXPECT_EQ(visits(absl::DeadlineExceededError("late")), 1u);
  EXPECT_EQ(visits(absl::NotFoundError("gone")), 1u);
}

TEST_F(RoutedClientTest, TheFirstOfARouteGoesBeforeTheOrder) {
  const auto client = Connect();
  const std::vector<std::string> order = client->Order({"volume"});
  EXPECT_THAT(client->Order({"volume", order[2]}), ElementsAre(order[2], order[0], order[1]));
  EXPECT_THAT(client->Order({"volume", "elsewhere:1"}), ElementsAre(order[0], order[1], order[2]));
}

TEST_F(RoutedClientTest, ALoneServerIsNeitherAskedNorTriedAgain) {
  const auto client = RoutedClient::Connect(servers_[0]->target());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_FALSE((*client)->has_several());
  servers_[0]->server().GetHealthCheckService()->SetServingStatus(false);
  std::vector<std::string> visited;
  EXPECT_TRUE(Visit(**client, {"volume"}, absl::OkStatus(), &visited).ok());
  visited.clear();
  EXPECT_EQ(Visit(**client, {"volume"}, absl::UnavailableError("broken"), &visited).message(), "broken");
  EXPECT_THAT(visited, ElementsAre(servers_[0]->target()));
}

TEST_F(RoutedClientTest, ANameIsLookedUpAgainWhenServersFail) {
  std::vector<std::string> found = {servers_[0]->target(), servers_[1]->target()};
  RoutingOptions routing;
  routing.resolve = [&](const std::string& name,
                        std::chrono::milliseconds) -> absl::StatusOr<std::vector<std::string>> {
    EXPECT_EQ(name, "servers.example:50051");
    if (found.empty()) return absl::UnavailableError("no address");
    return found;
  };
  auto client = RoutedClient::Connect("dns:///servers.example:50051", {}, routing);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_THAT((*client)->addresses(), UnorderedElementsAre(servers_[0]->target(), servers_[1]->target()));
  servers_[0].reset();
  servers_[1].reset();
  found = {servers_[2]->target(), "127.0.0.1:1"};
  std::vector<std::string> visited;
  EXPECT_TRUE(absl::IsUnavailable(Visit(**client, {"volume"}, absl::OkStatus(), &visited)));
  EXPECT_TRUE(Visit(**client, {"volume"}, absl::OkStatus(), &visited).ok());
  EXPECT_THAT(visited, ElementsAre(servers_[2]->target()));
  found.clear();
  (*client)->Refresh();
  EXPECT_TRUE((*client)->has_several());
  EXPECT_TRUE(absl::IsUnavailable(RoutedClient::Connect("dns:///servers.example:50051", {}, routing).status()));
}

// Servers behind addresses of a name prove that they are of that name.
TEST(RoutedClientTlsTest, CertificatesMustNameWhatWasLookedUp) {
  grpc_init();
  const server::TestCertificate authority = server::MakeAuthority("hospital");
  FakeVolumes volumes;
  const auto start = [&](const std::string& name, std::string* address) {
    const server::TestCertificate own = server::MakeCertificate(authority, {.alternative_names = "DNS:" + name});
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({own.key, own.certificate});
    grpc::EnableDefaultHealthCheckService(true);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
    builder.RegisterService(&volumes);  // one without a service is not polled
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    *address = absl::StrCat("ipv4:127.0.0.1:", port);
    return server;
  };
  std::string good, other;
  const std::array<std::unique_ptr<grpc::Server>, 2> servers = {start("servers.example", &good),
                                                                start("elsewhere.example", &other)};
  const server::TestFolder folder;
  ClientOptions options;
  options.security.tls_ca = folder.Write("ca.pem", authority.certificate);
  RoutingOptions routing{std::chrono::seconds(5)};
  routing.resolve = [&](const std::string&, std::chrono::milliseconds) {
    return std::vector<std::string>{good, other};
  };
  const auto client = RoutedClient::Connect("dns:///servers.example:50051", options, routing);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->IsWell(good));
  EXPECT_FALSE((*client)->IsWell(other));
  for (const auto& server : servers) {
    server->Shutdown(std::chrono::system_clock::now());
    server->Wait();
  }
}

TEST_F(RoutedClientTest, WrongOptionsAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(RoutedClient::Connect("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RoutedClient::Connect("a:1,b").status()));
  for (const RoutingOptions& routing : {RoutingOptions{std::chrono::milliseconds(0)},
                                        RoutingOptions{std::chrono::seconds(1), Resolve, std::chrono::seconds(0)}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RoutedClient::Connect("a:1", {}, routing).status()));
  }
  ClientOptions options;
  options.chunk_bytes = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(RoutedClient::Connect("a:1,b:2", options).status()));
}

TEST_F(RoutedClientTest, ACallCarriesItsRoutingKey) {
  std::string seen;
  servers_[0]->volumes.get = [&](grpc::ServerContext* context, auto*, auto*) {
    const auto found = context->client_metadata().find(kRoutingKeyMetadata);
    seen = found == context->client_metadata().end() ? "none" : std::string(found->second.data(), found->second.size());
    return grpc::Status::OK;
  };
  const auto client = Client::Connect(servers_[0]->target());
  const auto sent = [&](const std::string& key) {
    EXPECT_TRUE((*client)->GetVolume("volumes/a", {.routing_key = key}).ok());
    return seen;
  };
  EXPECT_EQ(sent(""), "none");
  EXPECT_EQ(sent("patient-7"), "patient-7");
  const std::string digest = VolumeDigest("abc");
  EXPECT_EQ(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sent(digest), digest);
  EXPECT_EQ(sent(std::string("a\nb")), VolumeDigest("a\nb"));
  EXPECT_EQ(sent(std::string(129, 'k')), VolumeDigest(std::string(129, 'k')));
}

// Answers each frame with an affine map that moves by the frame's number; ends the stream at `fails_at`.
class SessionServer {
 public:
  explicit SessionServer(FakeServer& server) {
    server.registration.navigate = [this](grpc::ServerContext*, auto* stream) {
      v1::NavigateRequest request;
      stream->Read(&request);
      configs.push_back(request.config());
      if (refuses) return *refuses;
      if (request.config().resume() && !resumes) {
        return WithReason(grpc::StatusCode::FAILED_PRECONDITION, v1::SESSION_NOT_RESUMABLE);
      }
      v1::NavigateResponse opened;
      opened.mutable_opened()->mutable_session()->mutable_config()->set_session_id("s");
      stream->Write(opened);
      while (stream->Read(&request)) {
        if (!request.has_frame()) continue;
        const int64_t number = request.frame().frame_number();
        if (number == fails_at) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost");
        AffineMap map = AffineMap::Identity();
        map.m[0][3] = static_cast<double>(number);
        v1::NavigateResponse response;
        response.mutable_result()->set_frame_number(number);
        v1::Report& report = *response.mutable_result()->mutable_report();
        *report.mutable_affine() = AffineMapToProto(map);
        report.set_verdict(number == reviews ? v1::VERDICT_REVIEW : v1::VERDICT_OK);
        stream->Write(response);
      }
      return grpc::Status::OK;
    };
  }

  std::atomic<int64_t> fails_at{-1};
  std::atomic<int64_t> reviews{-1};  // the frame whose verdict is review
  std::atomic<bool> resumes{false};
  std::optional<grpc::Status> refuses;
  std::vector<v1::NavigateConfig> configs;
};

class RoutedSessionTest : public RoutedClientTest {
 protected:
  void SetUp() override {
    RoutedClientTest::SetUp();
    for (size_t i = 0; i < servers_.size(); ++i) sessions_[i] = std::make_unique<SessionServer>(*servers_[i]);
    client_ = Connect({std::chrono::seconds(5), Resolve, std::chrono::seconds(2)});
    order_ = client_->Order({"volume"});
  }

  SessionServer& SessionsAt(const std::string& address) {
    for (size_t i = 0; i < servers_.size(); ++i) {
      if (servers_[i]->target() == address) return *sessions_[i];
    }
    return *sessions_[0];
  }
  RoutedSession MakeSession(CallOptions options = {}) {
    v1::NavigateConfig config;
    config.mutable_options()->add_stages()->mutable_rigid();
    return RoutedSession(
        client_.get(), {"volume"}, config,
        [this](Client&, const std::string& address, v1::NavigateConfig& to) -> absl::Status {
          staged_.push_back(address);
          to.set_fixed("volumes/on-" + std::to_string(staged_.size()));
          return stage_error_;
        },
        options);
  }
  static absl::Status Register(RoutedSession& session, int64_t number) {
    const float voxel = 0;
    Frame frame;
    frame.number = number;
    frame.geometry.size = {1, 1, 1};
    frame.bytes = absl::string_view(reinterpret_cast<const char*>(&voxel), sizeof(voxel));
    (void)session.Send(frame);
    const auto answer = session.Receive(nullptr);
    EXPECT_TRUE(!answer.ok() || (*answer)->result.frame_number() == number);
    return answer.status();
  }

  std::array<std::unique_ptr<SessionServer>, 3> sessions_;
  std::unique_ptr<RoutedClient> client_;
  std::vector<std::string> order_;
  std::vector<std::string> staged_;
  absl::Status stage_error_;
};

TEST_F(RoutedSessionTest, ASessionResumesOnAServerThatKnowsIt) {
  SessionServer& owner = SessionsAt(order_[0]);
  owner.resumes = true;
  owner.fails_at = 2;
  RoutedSession session = MakeSession();
  ASSERT_TRUE(session.Open().ok());
  EXPECT_EQ(session.address(), order_[0]);
  EXPECT_TRUE(Register(session, 1).ok());
  EXPECT_FALSE(session.is_broken());
  EXPECT_EQ(session.Recover().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::IsUnavailable(Register(session, 2)));
  EXPECT_TRUE(session.is_broken());
  owner.fails_at = -1;
  const auto recovery = session.Recover();
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_TRUE(recovery->resumed);
  EXPECT_THAT(staged_, ElementsAre(order_[0]));
  EXPECT_EQ(owner.configs.at(1).session_id(), "s");
  EXPECT_TRUE(Register(session, 2).ok());
}

TEST_F(RoutedSessionTest, ASessionThatIsForgottenStartsFromItsLastGoodMap) {
  SessionServer& owner = SessionsAt(order_[0]);
  owner.fails_at = 4;
  RoutedSession session = MakeSession();
  ASSERT_TRUE(session.Open().ok());
  EXPECT_FALSE(owner.configs.at(0).options().has_initial_affine());
  EXPECT_TRUE(Register(session, 3).ok());
  EXPECT_FALSE(Register(session, 4).ok());
  const auto recovery = session.Recover();
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_FALSE(recovery->resumed);
  EXPECT_EQ(recovery->start, RoutedSession::Recovery::Start::kAffine);
  EXPECT_THAT(staged_, ElementsAre(order_[0], order_[0]));
  ASSERT_EQ(owner.configs.size(), 3u);  // opened, refused to resume, opened
  const v1::NavigateConfig& config = owner.configs.back();
  EXPECT_EQ(config.fixed(), "volumes/on-2");
  EXPECT_EQ(AffineMapFromProto(config.options().initial_affine())->m[0][3], 3);
}

TEST_F(RoutedSessionTest, AResultForReviewIsNobodysStart) {
  SessionServer& owner = SessionsAt(order_[0]);
  owner.reviews = 3;
  owner.fails_at = 4;
  {
    RoutedSession session = MakeSession();
    ASSERT_TRUE(session.Open().ok());
    EXPECT_TRUE(Register(session, 2).ok());
    EXPECT_TRUE(Register(session, 3).ok());
    EXPECT_FALSE(Register(session, 4).ok());
    const auto recovery = session.Recover();
    ASSERT_TRUE(recovery.ok()) << recovery.status();
    EXPECT_EQ(recovery->start, RoutedSession::Recovery::Start::kAffine);
    const v1::NavigateConfig& config = owner.configs.back();
    EXPECT_EQ(AffineMapFromProto(config.options().initial_affine())->m[0][3], 2) << "the one before";
  }
  RoutedSession session = MakeSession();
  ASSERT_TRUE(session.Open().ok());
  EXPECT_TRUE(Register(session, 3).ok());
  EXPECT_FALSE(Register(session, 4).ok());
  const auto recovery = session.Recover();
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_EQ(recovery->start, RoutedSession::Recovery::Start::kAnew);
  EXPECT_FALSE(owner.configs.back().options().has_initial_affine());
}

TEST_F(RoutedSessionTest, AnOldResultIsNobodysStart) {
  RoutingOptions routing{std::chrono::seconds(5), Resolve, std::chrono::seconds(2)};
  routing.max_start_age = std::chrono::milliseconds(0);
  client_ = Connect(routing);
  SessionServer& owner = SessionsAt(order_[0]);
  owner.fails_at = 4;
  RoutedSession session = MakeSession();
  ASSERT_TRUE(session.Open().ok());
  EXPECT_TRUE(Register(session, 3).ok());
  EXPECT_FALSE(Register(session, 4).ok());
  const auto recovery = session.Recover();
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_EQ(recovery->start, RoutedSession::Recovery::Start::kAnew);
  EXPECT_FALSE(owner.configs.back().options().has_initial_affine());
}

TEST_F(RoutedSessionTest, ASessionGoesToTheNextServerAndStagesThere) {
  RoutedSession session = MakeSession();
  SessionsAt(order_[0]).fails_at = 2;
  ASSERT_TRUE(session.Open().ok());
  EXPECT_TRUE(Register(session, 1).ok());
  EXPECT_FALSE(Register(session, 2).ok());
  At(order_[0]).server().GetHealthCheckService()->SetServingStatus(false);
  SessionsAt(order_[1]).refuses = WithReason(grpc::StatusCode::RESOURCE_EXHAUSTED, v1::TOO_MANY_SESSIONS);
  const auto recovery = session.Recover();
  ASSERT_TRUE(recovery.ok()) << recovery.status();
  EXPECT_EQ(session.address(), order_[2]);
  EXPECT_THAT(staged_, ElementsAre(order_[0], order_[1], order_[2]));
  EXPECT_TRUE(Register(session, 2).ok());
}

TEST_F(RoutedSessionTest, AnErrorOfTheCallersEndsTheSearch) {
  stage_error_ = absl::NotFoundError("volumes/a");
  RoutedSession session = MakeSession();
  EXPECT_TRUE(absl::IsNotFound(session.Open()));
  EXPECT_FALSE(session.is_broken());
  EXPECT_THAT(staged_, ElementsAre(order_[0]));
}

TEST_F(RoutedSessionTest, RecoveryGivesUpAfterItsTime) {
  RoutedSession session = MakeSession();
  SessionsAt(order_[0]).fails_at = 1;
  ASSERT_TRUE(session.Open().ok());
  EXPECT_FALSE(Register(session, 1).ok());
  for (auto& server : servers_) server->server().GetHealthCheckService()->SetServingStatus(false);
  EXPECT_TRUE(absl::IsUnavailable(session.Recover().status()));
}

TEST_F(RoutedSessionTest, ACancelledCallerIsNotRecovered) {
  Cancellation cancellation;
  RoutedSession session = MakeSession({.cancellation = &cancellation});
  ASSERT_TRUE(session.Open().ok());
  cancellation.Cancel();
  EXPECT_FALSE(Register(session, 1).ok());
  EXPECT_FALSE(session.Recover().ok());
  EXPECT_THAT(staged_, ElementsAre(order_[0]));
}

}  // namespace
}  // namespace intrawarp::client
