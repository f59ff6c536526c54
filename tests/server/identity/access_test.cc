// SPDX-License-Identifier: Apache-2.0
// Who gets in: certificates, tokens, what a reload takes away, limits of one caller, and where a server may listen.
#include <gmock/gmock.h>
#include <openssl/ssl.h>

#include <chrono>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "intrawarp/v1/bulk.grpc.pb.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "server/identity/message_limits.h"
#include "server/monitor/registry.h"
#include "tests/server/health_client.h"
#include "tests/server/http_client.h"
#include "tests/server/identity/access_fixture.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/raw_call.h"
#include "tests/server/stages.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kInfo[] = "/intrawarp.v1.ServerService/GetServerInfo";
constexpr char kNavigate[] = "/intrawarp.v1.RegistrationService/Navigate";

class TlsTest : public AccessTest {
 protected:
  TestCertificate Navigator(TestSubject subject = {}) const {
    subject.common_name = "navigator";
    subject.alternative_names = "URI:spiffe://hospital/nav";
    return MakeCertificate(authority_, subject);
  }
  static constexpr char kIdentities[] = "or3 frame uri:spiffe://hospital/nav\n";
};

TEST_F(TlsTest, TakesTheCertificatesOfItsAuthorityThatAreListed) {
  using std::chrono::hours;
  StartWithCertificates(kIdentities);
  const TestCertificate stranger = MakeCertificate(
      MakeAuthority("elsewhere"), {.common_name = "navigator", .alternative_names = "URI:spiffe://hospital/nav"});
  const TestCertificate unlisted =
      MakeCertificate(authority_, {.common_name = "navigator", .alternative_names = "URI:spiffe://hospital/x"});
  EXPECT_EQ(Code(WithCertificate(Navigator())), StatusCode::OK);
  EXPECT_EQ(Code(WithCertificate({})), StatusCode::UNAVAILABLE) << "none";
  EXPECT_EQ(Code(WithCertificate(stranger)), StatusCode::UNAVAILABLE) << "another authority's";
  EXPECT_EQ(Code(WithCertificate(Navigator({.begins = hours(-48), .ends = hours(-1)}))), StatusCode::UNAVAILABLE)
      << "expired";
  EXPECT_EQ(Code(WithCertificate(Navigator({.begins = hours(1), .ends = hours(2)}))), StatusCode::UNAVAILABLE)
      << "not valid yet";
  EXPECT_EQ(Code(WithCertificate(unlisted)), StatusCode::UNAUTHENTICATED) << "unlisted";
  EXPECT_EQ(Code({}), StatusCode::UNAVAILABLE) << "plain text";
  Shown deceived = WithCertificate(Navigator());
  deceived.trusts = MakeAuthority("elsewhere").certificate;
  EXPECT_EQ(Code(deceived), StatusCode::UNAVAILABLE) << "a client that trusts another authority";
}

TEST_F(TlsTest, SpeaksTls12AndNothingOlder) {
  AddToken("or3", Role::kFrame);
  StartWithTokens();
  EXPECT_EQ(Handshake(server_->grpc_address(), TLS1_3_VERSION), "ok");
  EXPECT_EQ(Handshake(server_->grpc_address(), TLS1_2_VERSION), "ok");
  // gRPC closes the connection without an alert.
  EXPECT_EQ(Handshake(server_->grpc_address(), TLS1_1_VERSION), "unexpected eof while reading");
  EXPECT_EQ(Handshake(server_->grpc_address(), TLS1_VERSION), "unexpected eof while reading");
}

TEST_F(TlsTest, AServerCertificateIsTakenUpWhileItRuns) {
  const std::string token = AddToken("or3", Role::kFrame);
  StartWithTokens();
  EXPECT_EQ(Code(WithToken(token)), StatusCode::OK);
  const TestCertificate authority = MakeAuthority("new");
  const TestCertificate certificate = MakeServerCertificate(authority);
  Shown after = WithToken(token);
  after.trusts = authority.certificate;
  EXPECT_EQ(Code(after), StatusCode::UNAVAILABLE);
  folder_.Write("server.pem", certificate.certificate);
  TakeUpFiles();
  EXPECT_EQ(Code(WithToken(token)), StatusCode::OK) << "half of a change leaves the old certificate";
  folder_.Write("server.key", certificate.key);
  // By itself, within seconds.
  EXPECT_TRUE(Eventually([&] { return Code(after) == StatusCode::OK; }));
  EXPECT_EQ(Code(WithToken(token)), StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, AnAuthorityThatIsReplacedLetsItsCertificatesInNoMore) {
  StartWithCertificates(kIdentities);
  const TestCertificate before = Navigator();
  EXPECT_EQ(Code(WithCertificate(before)), StatusCode::OK);
  const TestCertificate authority = MakeAuthority("new");
  folder_.Write("clients.pem", authority.certificate);
  TakeUpFiles();
  EXPECT_EQ(Code(WithCertificate(before)), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Code(WithCertificate(
                MakeCertificate(authority, {.common_name = "n", .alternative_names = "URI:spiffe://hospital/nav"}))),
            StatusCode::OK);
}

TEST_F(TlsTest, ARevokedCertificateIsOutAtOnceAlsoOnItsOpenConnection) {
  StartWithCertificates(kIdentities);
  const TestCertificate lost = Navigator(), kept = Navigator();
  const auto open = NewChannel(WithCertificate(lost));
  EXPECT_TRUE(Ask(open).ok());
  folder_.Write(
      "identities",
      absl::StrCat(kIdentities, "revoked sha256:", absl::BytesToHexString(CertificateDigest(lost.certificate)), "\n"));
  TakeUpFiles();
  EXPECT_EQ(Ask(open).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Code(WithCertificate(kept)), StatusCode::OK);
  folder_.Write("identities", "# nobody\n");
  TakeUpFiles();
  EXPECT_EQ(Code(WithCertificate(kept)), StatusCode::UNAUTHENTICATED);
}

class TokenTest : public AccessTest {
 protected:
  // Calls of Navigate under way.
  bool NavigationsAre(int count) const {
    const std::string scrape = server_->context().metrics.registry.Scrape();
    const size_t begin = scrape.find("grpc_server_in_flight{grpc_method=\"Navigate\"");
    const std::string line = scrape.substr(begin, scrape.find('\n', begin) - begin);
    return line.substr(line.rfind(' ')) == absl::StrCat(" ", count);
  }
};

TEST_F(TokenTest, LetsItsBearerIn) {
  const std::string token = AddToken("or3", Role::kFrame);
  StartWithTokens();
  EXPECT_EQ(Code(WithToken(token)), StatusCode::OK);
  EXPECT_EQ(Code(WithToken(token + "x")), StatusCode::UNAUTHENTICATED) << "wrong";
  EXPECT_EQ(Code(WithToken("")), StatusCode::UNAUTHENTICATED) << "absent";
  EXPECT_EQ(Code({}), StatusCode::UNAVAILABLE) << "over plain text";
  const grpc::Status refused = Ask(NewChannel(WithToken("wrong")));
  EXPECT_EQ(DetailsOf(refused).reason, "NOT_AUTHENTICATED");
  EXPECT_THAT(refused.error_message(), Not(HasSubstr("wrong")));
  EXPECT_THAT(server_->context().metrics.registry.Scrape(),
              HasSubstr("intrawarp_callers_refused_total{reason=\"not_authenticated\"} 3\n"));
}

// A refused handler must not run, and the bytes of an answer must not travel beside the error.
TEST_F(TokenTest, ARefusedCallIsSentNothing) {
  const std::string frame = AddToken("or3", Role::kFrame);
  StartWithTokens();
  for (const char* method : {kInfo, "/intrawarp.v1.VolumeService/ListVolumes", kNavigate,
                             "/intrawarp.v1.BulkService/Upload", "/intrawarp.v1.SparseMatrixService/Multiply"}) {
    RawCall call(NewChannel(WithToken("")), method, std::chrono::seconds(30));
    call.Write(std::string());
    call.WritesDone();
    EXPECT_EQ(call.Read().value_or(""), "") << method;
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << method;
    EXPECT_EQ(DetailsOf(status).reason, "NOT_AUTHENTICATED") << method;
  }
  RawCall call(NewChannel(WithToken(frame)), "/intrawarp.v1.BulkService/Upload", std::chrono::seconds(30));
  call.WritesDone();
  EXPECT_EQ(call.Read(), std::nullopt);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(DetailsOf(status).reason, "ROLE_MISSING");
}

TEST_F(TokenTest, HealthNeedsNoneAndTellsNothingElse) {
  StartWithTokens();
  EXPECT_EQ(CheckHealth(NewChannel(WithToken(""))), kServing);
  EXPECT_EQ(HttpGet(server_->http_address(), "/healthz").body, "serving\n");
}

TEST_F(TokenTest, ATokenThatIsTakenBackEndsItsCalls) {
  const std::string token = AddToken("or3", Role::kFrame), other = AddToken("or4", Role::kFrame);
  StartWithTokens();
  const auto channel = NewChannel(WithToken(token));
  RawCall lost(channel, kNavigate), kept(NewChannel(WithToken(other)), kNavigate);
  EXPECT_TRUE(Ask(channel).ok());
  EXPECT_TRUE(Eventually([&] { return NavigationsAre(2); }));
  folder_.Write("tokens", tokens_.substr(tokens_.find('\n') + 1));
  TakeUpFiles();
  EXPECT_EQ(lost.Read(), std::nullopt);
  EXPECT_EQ(lost.Finish().error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Ask(channel).error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Eventually([&] { return NavigationsAre(1); }));
  kept.Cancel();
}

TEST_F(TokenTest, ABrokenFileLeavesTheOldOne) {
  const std::string token = AddToken("or3", Role::kFrame);
  StartWithTokens();
  folder_.Write("tokens", "broken");
  TakeUpFiles();
  EXPECT_EQ(Code(WithToken(token)), StatusCode::OK);
  EXPECT_THAT(server_->context().metrics.registry.Scrape(),
              HasSubstr("intrawarp_access_reloads_total{file=\"tokens\",outcome=\"failed\"} 1\n"));
  const std::string added = AddToken("or4", Role::kFrame);
  TakeUpFiles();
  EXPECT_EQ(Code(WithToken(added)), StatusCode::OK);
  EXPECT_THAT(server_->context().metrics.registry.Scrape(),
              HasSubstr("intrawarp_access_reloads_total{file=\"tokens\",outcome=\"ok\"} 1\n"));
}

// A file that is written in place is empty, or ends at a line, for a moment.
TEST_F(TokenTest, AFileThatIsBeingWrittenTakesNobodysTokenBack) {
  const std::string first = AddToken("or3", Role::kFrame), second = AddToken("or4", Role::kFrame);
  StartWithTokens();
  const auto channel = NewChannel(WithToken(second));
  RawCall call(channel, kNavigate);
  EXPECT_TRUE(Ask(channel).ok());
  for (const std::string& cut : {std::string(), tokens_.substr(0, tokens_.find('\n') + 1), tokens_.substr(0, 9)}) {
    folder_.Write("tokens", cut);
    server_->ReloadAccess();
    EXPECT_EQ(Code(WithToken(second)), StatusCode::OK) << cut.size();
    folder_.Write("tokens", tokens_);
    TakeUpFiles();
  }
  // An empty file is never meant, however long it stays.
  folder_.Write("tokens", "");
  TakeUpFiles();
  EXPECT_EQ(Code(WithToken(first)), StatusCode::OK);
  EXPECT_TRUE(Ask(channel).ok());
  EXPECT_TRUE(NavigationsAre(1));
  folder_.Write("tokens", "# nobody\n");
  TakeUpFiles();
  EXPECT_EQ(call.Finish().error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(TokenTest, ReachesTheServerThroughTheClientLibrary) {
  const std::string token = AddToken("or3", Role::kFrame);
  StartWithTokens();
  client::ClientOptions options;
  options.security.token_file = folder_.Write("token", token + "\n");
  EXPECT_TRUE(absl::IsInvalidArgument(client::Client::Connect(server_->grpc_address(), options).status()))
      << "a token over plain text";
  options.security.tls_ca = folder_.Write("ca.pem", authority_.certificate);
  const auto client = client::Client::Connect(server_->grpc_address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->GetServerInfo().ok());
  EXPECT_TRUE(absl::IsPermissionDenied((*client)->DeleteVolume("volumes/x")));
  options.security.token_file = folder_.Write("token", "two words");
  EXPECT_TRUE(absl::IsInvalidArgument(client::Client::Connect(server_->grpc_address(), options).status()));
  options.security.token_file = folder_.Path("absent");
  EXPECT_TRUE(absl::IsNotFound(client::Client::Connect(server_->grpc_address(), options).status()));
}

TEST_F(TokenTest, ACallersCallsAreCounted) {
  const std::string token = AddToken("or3", Role::kFrame), other = AddToken("or4", Role::kFrame);
  StartWithTokens([](ServerOptions& options) { options.call_limits.identity_calls = 2; });
  RawCall one(NewChannel(WithToken(token)), kNavigate), two(NewChannel(WithToken(token)), kNavigate);
  grpc::Status refused;
  EXPECT_TRUE(Eventually([&] { return !(refused = Ask(NewChannel(WithToken(token)))).ok(); }));
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(refused).reason, "TOO_MANY_CALLS");
  EXPECT_TRUE(DetailsOf(refused).retry);
  EXPECT_EQ(Code(WithToken(other)), StatusCode::OK);
  one.Cancel();
  EXPECT_TRUE(Eventually([&] { return Code(WithToken(token)) == StatusCode::OK; }));
  two.Cancel();
}

TEST_F(TokenTest, AConnectionsCallsAreCounted) {
  const std::string token = AddToken("or3", Role::kFrame);
  StartWithTokens([](ServerOptions& options) { options.call_limits.connection_calls = 1; });
  const auto channel = NewChannel(WithToken(token));
  RawCall one(channel, kNavigate);
  grpc::Status refused;
  EXPECT_TRUE(Eventually([&] { return !(refused = Ask(channel)).ok(); }));
  EXPECT_EQ(DetailsOf(refused).reason, "TOO_MANY_CALLS");
  EXPECT_EQ(Code(WithToken(token)), StatusCode::OK) << "another connection";
  one.Cancel();
}

TEST_F(TokenTest, ACallersRateIsBounded) {
  const std::string token = AddToken("or3", Role::kFrame), other = AddToken("or4", Role::kFrame);
  const auto now = std::make_shared<std::atomic<int64_t>>(0);
  StartWithTokens([&](ServerOptions& options) {
    options.call_limits.identity_rate = 2;
    options.watchdog.timeout = std::chrono::seconds(0);
    const auto begin = std::chrono::steady_clock::now();
    options.seams.steady_now = [now, begin] { return begin + std::chrono::seconds(now->load()); };
  });
  const auto channel = NewChannel(WithToken(token));
  EXPECT_TRUE(Ask(channel).ok());
  EXPECT_TRUE(Ask(channel).ok());
  const grpc::Status refused = Ask(channel);
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(refused).reason, "CALL_RATE");
  EXPECT_EQ(Code(WithToken(other)), StatusCode::OK);
  ++*now;
  EXPECT_TRUE(Ask(channel).ok());
}

// Streams of many small messages, which end at the limit of their connection or of their identity.
class MessageRateTest : public TokenTest {
 protected:
  void StartWithLimits(int connection_rate, int identity_rate) {
    StartWithTokens([&](ServerOptions& options) {
      options.message_limits = {connection_rate, identity_rate};
      options.watchdog.timeout = std::chrono::seconds(0);
      const auto begin = std::chrono::steady_clock::now();
      options.seams.steady_now = [now = now_, begin] { return begin + std::chrono::seconds(now->load()); };
    });
  }
  // An upload of so many chunks, a voxel each, behind its header.
  static grpc::Status UploadIn(int chunks, const std::shared_ptr<grpc::Channel>& channel, const std::string& id) {
    const auto voxels = static_cast<size_t>(chunks);
    const UploadData volume =
        MakeVolume(BoxGeometry(chunks, 1, 1), std::vector<float>(voxels, static_cast<float>(chunks)), id, id);
    const auto stub = v1::BulkService::NewStub(channel);
    UploadCall call(*stub);
    call.SendHeader(volume.header);
    for (size_t at = 0; at < volume.bytes.size(); at += 4) {
      if (!call.SendChunk(static_cast<int64_t>(at), volume.bytes.substr(at, 4))) break;
    }
    return call.Finish();
  }

  void PutResident(const std::string& token) {
    const UploadData volume = MakeVolume(Grid(), ResidentImage(), "resident", "resident");
    const auto stub = v1::BulkService::NewStub(NewChannel(WithToken(token)));
    const grpc::Status done = Upload(*stub, volume, nullptr, 1 << 20);
    ASSERT_TRUE(done.ok()) << done.error_message();
  }
  // A stream of the session `id`, which brings its config and a frame: a header and so many chunks.
  struct Navigated {
    grpc::Status status;
    bool opened = false;
    // Unset: the frame has no answer.
    std::optional<int> frame_code;
  };
  static Navigated NavigateIn(int chunks, const std::shared_ptr<grpc::Channel>& channel, const std::string& id,
                              bool resume = false) {
    v1::NavigateRequest config;
    if (!resume) {
      *config.mutable_config() = RigidConfig();
      SetIterations(*config.mutable_config()->mutable_options()->mutable_stages(0), 2);
      config.mutable_config()->mutable_resume_window()->set_seconds(60);
    }
    config.mutable_config()->set_session_id(id);
    config.mutable_config()->set_resume(resume);
    const std::vector<float> voxels = MovingFrame(Grid(), 1);
    const size_t bytes = 4 * voxels.size();
    const std::vector<v1::NavigateRequest> frame =
        FrameRequests(resume ? 2 : 1, Grid(), voxels, (bytes + chunks - 1) / chunks);
    EXPECT_EQ(frame.size(), static_cast<size_t>(chunks) + 1);
    grpc::ClientContext call;
    const auto stub = v1::RegistrationService::NewStub(channel);
    const auto stream = stub->Navigate(&call);
    bool open = stream->Write(config);
    for (size_t n = 0; open && n < frame.size(); ++n) open = stream->Write(frame[n]);
    if (open) stream->WritesDone();
    Navigated navigated;
    for (v1::NavigateResponse response; stream->Read(&response);) {
      navigated.opened |= response.has_opened();
      if (response.has_result()) navigated.frame_code = response.result().status().code();
    }
    navigated.status = stream->Finish();
    return navigated;
  }

  const std::shared_ptr<std::atomic<int64_t>> now_ = std::make_shared<std::atomic<int64_t>>(0);
};

TEST_F(MessageRateTest, AConnectionsStreamsEndAtItsLimitAndComeBack) {
  const std::string token = AddToken("or3", Role::kStage);
  StartWithLimits(/*connection_rate=*/20, 0);
  const auto channel = NewChannel(WithToken(token));
  EXPECT_TRUE(UploadIn(10, channel, "few").ok());
  const grpc::Status refused = UploadIn(30, channel, "many");
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_EQ(DetailsOf(refused).reason, "MESSAGE_RATE");
  EXPECT_TRUE(DetailsOf(refused).retry);
  EXPECT_THAT(refused.error_message(), HasSubstr("connection bring more than 20 messages a second"));
  EXPECT_EQ(UploadIn(11, channel, "again").error_code(), StatusCode::RESOURCE_EXHAUSTED) << "no new stream helps";
  EXPECT_TRUE(UploadIn(12, NewChannel(WithToken(token)), "elsewhere").ok()) << "another connection";
  EXPECT_EQ(Code(WithToken(token)), StatusCode::OK);
  ++*now_;
  EXPECT_TRUE(UploadIn(11, channel, "again").ok());
}

TEST_F(MessageRateTest, AnIdentitysStreamsEndAtItsLimitOnAllConnections) {
  const std::string token = AddToken("or3", Role::kStage), other = AddToken("or4", Role::kStage);
  StartWithLimits(0, /*identity_rate=*/15);
  EXPECT_TRUE(UploadIn(10, NewChannel(WithToken(token)), "few").ok());
  const grpc::Status refused = UploadIn(11, NewChannel(WithToken(token)), "more");
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("identity"));
  EXPECT_TRUE(UploadIn(10, NewChannel(WithToken(other)), "few").ok());
  ++*now_;
  EXPECT_TRUE(UploadIn(11, NewChannel(WithToken(token)), "more").ok());
}

TEST_F(MessageRateTest, ASessionOutlivesAStreamThatPassesTheLimitOfItsConnection) {
  const std::string token = AddToken("or3", Role::kFrame), staging = AddToken("or3", Role::kStage);
  StartWithLimits(/*connection_rate=*/20, 0);
  PutResident(staging);
  const auto channel = NewChannel(WithToken(token));
  const Navigated few = NavigateIn(10, channel, "few");
  EXPECT_TRUE(few.status.ok()) << few.status.error_message();
  EXPECT_EQ(few.frame_code, 0);
  const Navigated many = NavigateIn(30, channel, "many");
  EXPECT_EQ(many.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << many.status.error_message();
  EXPECT_EQ(DetailsOf(many.status).reason, "MESSAGE_RATE");
  EXPECT_TRUE(DetailsOf(many.status).retry);
  EXPECT_THAT(many.status.error_message(), HasSubstr("connection bring more than 20 messages a second"));
  EXPECT_EQ(many.frame_code, std::nullopt);
  EXPECT_EQ(NavigateIn(10, channel, "many", /*resume=*/true).status.error_code(), StatusCode::RESOURCE_EXHAUSTED)
      << "no new stream helps";
  EXPECT_EQ(Code(WithToken(token)), StatusCode::OK);
  const Navigated resumed = NavigateIn(10, NewChannel(WithToken(token)), "many", /*resume=*/true);
  EXPECT_TRUE(resumed.status.ok()) << "over another connection: " << resumed.status.error_message();
  EXPECT_TRUE(resumed.opened);
  EXPECT_EQ(resumed.frame_code, 0);
  ++*now_;
  const Navigated again = NavigateIn(18, channel, "again");
  EXPECT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.frame_code, 0);
}

TEST_F(MessageRateTest, AnIdentitysSessionsShareItsLimit) {
  const std::string token = AddToken("or3", Role::kFrame), staging = AddToken("or3", Role::kStage);
  const std::string other = AddToken("or4", Role::kFrame), other_staging = AddToken("or4", Role::kStage);
  StartWithLimits(0, /*identity_rate=*/15);
  PutResident(staging);
  PutResident(other_staging);
  ++*now_;
  const Navigated few = NavigateIn(10, NewChannel(WithToken(token)), "few");
  EXPECT_TRUE(few.status.ok()) << few.status.error_message();
  const Navigated more = NavigateIn(10, NewChannel(WithToken(token)), "more");
  EXPECT_EQ(more.status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << more.status.error_message();
  EXPECT_EQ(DetailsOf(more.status).reason, "MESSAGE_RATE");
  EXPECT_THAT(more.status.error_message(), HasSubstr("identity"));
  EXPECT_EQ(more.frame_code, std::nullopt);
  const Navigated others = NavigateIn(10, NewChannel(WithToken(other)), "few");
  EXPECT_TRUE(others.status.ok()) << others.status.error_message();
  EXPECT_EQ(others.frame_code, 0);
  ++*now_;
  const Navigated resumed = NavigateIn(10, NewChannel(WithToken(token)), "more", /*resume=*/true);
  EXPECT_TRUE(resumed.status.ok()) << resumed.status.error_message();
  EXPECT_EQ(resumed.frame_code, 0);
}

TEST(MessageLimitsTest, BucketsFillAndGo) {
  MessageLimits limits({.connection_rate = 2, .identity_rate = 3});
  MessageLimits::Time now{std::chrono::hours(1)};
  using Limit = MessageLimits::Limit;
  {
    const MessageLimits::Sender a = limits.Enter("c1", "ann", now), b = limits.Enter("c2", "ann", now);
    EXPECT_EQ(a.Take(now), Limit::kNone);
    EXPECT_EQ(a.Take(now), Limit::kNone);
    EXPECT_EQ(a.Take(now), Limit::kConnection);
    EXPECT_EQ(b.Take(now), Limit::kNone);
    EXPECT_EQ(b.Take(now), Limit::kIdentity);
    now += std::chrono::milliseconds(500);
    EXPECT_EQ(a.Take(now), Limit::kNone);
    EXPECT_EQ(a.Take(now), Limit::kConnection);
  }
  EXPECT_EQ(limits.Enter("c1", "", now).Take(now), Limit::kConnection) << "a new stream gets no new tokens";
  EXPECT_EQ(limits.size(), 3);
  now += std::chrono::hours(1);
  (void)limits.Enter("c9", "bob", now);
  EXPECT_EQ(limits.size(), 2) << "the others are full and have no stream";
  EXPECT_EQ(MessageLimits({0, 0}).Enter("c", "ann", now).Take(now), Limit::kNone);
}

// Strangers' calls have places of their own, and the oldest of them gives way.
TEST_F(AccessTest, CallsOfStrangersTakeNobodysPlaces) {
  const std::string token = AddToken("ann", Role::kFrame);
  StartWithTokens([](ServerOptions& options) { options.limits.max_calls = 2; });
  const std::shared_ptr<grpc::Channel> stranger = NewChannel({.trusts = authority_.certificate});
  std::vector<std::unique_ptr<RawCall>> watches;
  for (int i = 0; i < 20; ++i) {
    watches.push_back(std::make_unique<RawCall>(stranger, "/grpc.health.v1.Health/Watch"));
    watches.back()->Write(HealthRequest(""));
    EXPECT_EQ(watches.back()->Read(), kServing);
  }
  EXPECT_EQ(Code(WithToken(token)), grpc::OK);
  EXPECT_EQ(CheckHealth(NewChannel({.trusts = authority_.certificate})), kServing);
  EXPECT_EQ(watches.front()->Finish().error_code(), grpc::RESOURCE_EXHAUSTED);
  // Calls that are refused take none, either.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Code(WithToken("wrong")), grpc::UNAUTHENTICATED);
  EXPECT_EQ(Code(WithToken(token)), grpc::OK);
}

// A connection on which calls are refused over and over is closed; a good caller's goes on.
TEST_F(AccessTest, AFloodOfRefusedCallsEndsItsConnection) {
  const std::string token = AddToken("ann", Role::kFrame);
  StartWithTokens();
  const std::shared_ptr<grpc::Channel> good = NewChannel(WithToken(token));
  EXPECT_TRUE(Ask(good).ok());
  const std::shared_ptr<grpc::Channel> stranger = NewChannel({.trusts = authority_.certificate});
  const auto is_closed = [this] {
    return HttpGet(server_->http_address(), "/metrics")
               .body.find("intrawarp_connections_closed_total{reason=\"refused_calls\"} 0\n") == std::string::npos;
  };
  bool closed = false;
  for (int round = 0; round < 100 && !closed; ++round) {
    std::vector<std::unique_ptr<RawCall>> calls;
    for (int i = 0; i < 200; ++i) {
      calls.push_back(std::make_unique<RawCall>(stranger, "/intrawarp.v1.BulkService/Upload"));
    }
    for (const auto& call : calls) EXPECT_FALSE(call->Finish().ok());
    closed = is_closed();
  }
  EXPECT_TRUE(closed);
  EXPECT_TRUE(Ask(good).ok());
}

class ExposureTest : public AccessTest {
 protected:
  absl::Status StartAt(const char* address, const AccessFiles& files, bool allow = false) {
    ServerOptions options = Options();
    options.listen = address;
    options.access = files;
    options.allow_no_identity = allow;
    return Server::Start(options).status();
  }
};

TEST_F(ExposureTest, AServerForEverybodyStaysOnLoopback) {
  EXPECT_THAT(std::string(StartAt("0.0.0.0:0", {}).message()), HasSubstr("--insecure_no_identity_any_address"));
  EXPECT_TRUE(absl::IsInvalidArgument(StartAt("0.0.0.0:0", TlsPaths())));
  EXPECT_TRUE(StartAt("0.0.0.0:0", {}, /*allow=*/true).ok());
  AccessFiles files = TlsPaths();
  files.tokens = folder_.Write("tokens", MakeToken("a", Role::kFrame)->line);
  EXPECT_TRUE(StartAt("0.0.0.0:0", files).ok());
}

TEST_F(ExposureTest, LimitsOfIdentitiesNeedIdentities) {
  const std::vector<std::pair<const char*, std::function<void(ServerOptions&)>>> limits = {
      {"--max_identity_calls", [](ServerOptions& o) { o.call_limits.identity_calls = 3; }},
      {"--max_identity_rate", [](ServerOptions& o) { o.call_limits.identity_rate = 3; }},
      {"--max_identity_message_rate", [](ServerOptions& o) { o.message_limits.identity_rate = 3; }},
      {"--max_owner_operations", [](ServerOptions& o) { o.limits.owner_operations = 3; }},
      {"--max_owner_bytes", [](ServerOptions& o) { o.limits.owner_resident_bytes = 3; }},
      {"--max_owner_uploads", [](ServerOptions& o) { o.limits.owner_uploads = 3; }},
      {"--max_owner_sessions", [](ServerOptions& o) { o.limits.owner_sessions = 3; }},
      {"--max_owner_workspace_bytes", [](ServerOptions& o) { o.limits.owner_workspace_bytes = 3; }},
      {"--max_owner_pinned_bytes", [](ServerOptions& o) { o.limits.owner_pinned_bytes = 3; }},
      {"--max_owner_upload_bytes", [](ServerOptions& o) { o.limits.owner_uploading_bytes = 3; }},
      {"--max_owner_transforms", [](ServerOptions& o) { o.limits.owner_transforms = 3; }},
      {"--max_owner_streams", [](ServerOptions& o) { o.limits.owner_streams = 3; }},
      {"--max_owner_jobs", [](ServerOptions& o) { o.limits.owner_jobs = 3; }}};
  for (const auto& [flag, set] : limits) {
    ServerOptions options = Options();
    set(options);
    const absl::Status status = Server::Start(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << flag;
    EXPECT_THAT(std::string(status.message()), HasSubstr(flag));
  }
}

TEST_F(ExposureTest, AServerWhoseFilesAreBrokenDoesNotStart) {
  AccessFiles files = TlsPaths();
  files.tokens = folder_.Write("tokens", "broken");
  EXPECT_THAT(std::string(StartAt("127.0.0.1:0", files).message()), HasSubstr("--tokens: line 1: "));
  files.tokens = folder_.Path("absent");
  EXPECT_THAT(std::string(StartAt("127.0.0.1:0", files).message()), HasSubstr("--tokens: "));
  files.tokens = folder_.Write("tokens", "");
  files.tls_key = folder_.Write("server.key", MakeServerCertificate(authority_).key);
  EXPECT_THAT(std::string(StartAt("127.0.0.1:0", files).message()), HasSubstr("--tls_key: is not that"));
}

}  // namespace
}  // namespace intrawarp::server
