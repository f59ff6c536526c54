// SPDX-License-Identifier: Apache-2.0
// The server answers whatever the rest of it does: questions beside bulk that waits, health beside a device that hangs,
// and limits to what one client can take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "intrawarp/v1/transform.grpc.pb.h"
#include "intrawarp/v1/volume.grpc.pb.h"
#include "tests/server/gated_device.h"
#include "tests/server/health_client.h"
#include "tests/server/http2_client.h"
#include "tests/server/http_client.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

constexpr char kUpload[] = "/intrawarp.v1.BulkService/Upload";
constexpr char kDownload[] = "/intrawarp.v1.BulkService/Download";
constexpr char kInfo[] = "/intrawarp.v1.ServerService/GetServerInfo";

// More than the threads on which gRPC reacts.
constexpr int kMany = 40;

grpc::StatusCode Ask(const std::shared_ptr<grpc::Channel>& channel) {
  RawCall call(channel, kInfo);
  call.Write(std::string());
  call.WritesDone();
  while (call.Read().has_value()) {
  }
  return call.Finish().error_code();
}

ServerOptions OnGatedDevice(DeviceGates& gates) {
  ServerOptions options = TestServer::DefaultOptions();
  options.open_device = [&gates](absl::string_view spec) -> absl::StatusOr<std::unique_ptr<Device>> {
    absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(spec);
    if (!device.ok()) return device.status();
    return std::make_unique<GatedDevice>(*std::move(device), gates);
  };
  return options;
}

std::string HeaderMessage(const UploadData& data) {
  v1::UploadRequest request;
  *request.mutable_header() = data.header;
  return request.SerializeAsString();
}

// A download takes a larger buffer than an upload, which therefore leaves none for it.
UploadData SmallVolume(const std::string& id) {
  const Geometry geometry = BoxGeometry(16, 15, 14);
  return MakeVolume(geometry, RandomVoxels<uint8_t>(geometry, 1), "upload-" + id, id);
}

void ExpectAnswers(TestServer& test) {
  EXPECT_EQ(test.Info().devices_size(), 1);
  EXPECT_EQ(CheckHealth(test.channel), kServing);
  EXPECT_EQ(HttpGet(test.server->http_address(), "/healthz").status, 200);
  EXPECT_EQ(HttpGet(test.server->http_address(), "/metrics").status, 200);
}

TEST(Availability, QuestionsAndCancelsDoNotWaitForPageLocking) {
  DeviceGates gates;
  TestServer test(OnGatedDevice(gates));
  ASSERT_TRUE(Upload(*test.Stub<v1::BulkService>(), SmallVolume("v")).ok());
  gates.pinned.Close();
  v1::DownloadRequest download;
  download.set_name("volumes/v");
  std::vector<std::unique_ptr<RawCall>> calls;
  for (int i = 0; i < kMany / 2; ++i) {
    calls.push_back(std::make_unique<RawCall>(test.channel, kUpload));
    calls.back()->Write(HeaderMessage(SmallVolume(absl::StrCat("w", i))));
    calls.push_back(std::make_unique<RawCall>(test.channel, kDownload));
    calls.back()->Write(download.SerializeAsString());
    calls.back()->WritesDone();
  }
  gates.pinned.AwaitSomebody();
  const Ledger& ledger = test.server->context().ledger;
  EXPECT_TRUE(Eventually([&] { return ledger.in_use(Resource::kStreams) == kMany; }));

  ExpectAnswers(test);
  calls.back()->Cancel();
  EXPECT_TRUE(Eventually([&] { return ledger.in_use(Resource::kStreams) == kMany - 1; }));

  gates.pinned.Open();
  calls.clear();
  EXPECT_TRUE(Eventually([&] { return ledger.in_use(Resource::kStreams) == 0; }));
}

TEST(Availability, QuestionsDoNotWaitForWorkers) {
  TestServer test;
  Gate gate;
  gate.Close();
  for (int i = 0; i < kMany; ++i) test.server->context().workers.Submit([&gate] { gate.Pass(); });
  std::vector<std::unique_ptr<RawCall>> calls;
  for (int i = 0; i < kMany; ++i) {
    calls.push_back(std::make_unique<RawCall>(test.channel, kUpload));
    calls.back()->Write(HeaderMessage(SmallVolume(absl::StrCat("w", i))));
  }
  const Ledger& ledger = test.server->context().ledger;
  EXPECT_TRUE(Eventually([&] { return ledger.in_use(Resource::kStreams) == kMany; }));
  ExpectAnswers(test);
  calls.front()->Cancel();
  EXPECT_TRUE(Eventually([&] { return ledger.in_use(Resource::kStreams) == kMany - 1; }));
  gate.Open();
  calls.clear();
  EXPECT_TRUE(Eventually([&] { return ledger.in_use(Resource::kStreams) == 0; }));
}

TEST(Availability, ADeviceThatDoesNotComeBackTurnsHealthOff) {
  DeviceGates gates;
  std::atomic<int> given_up{0};
  ServerOptions options = OnGatedDevice(gates);
  options.watchdog = {.timeout = std::chrono::seconds(30), .exit_after = std::chrono::seconds(60)};
  options.give_up = [&given_up] { ++given_up; };
  TestServer test(options);
  test.server->Housekeep();
  gates.synchronize.Close();
  test.server->Housekeep();
  gates.synchronize.AwaitSomebody();
  EXPECT_EQ(CheckHealth(test.channel), kServing);

  // One long step would be a process that was stopped, and a step in which a thread computes is short.
  const auto after_a_second = [&test](const auto& condition) {
    test.clock.Advance(std::chrono::seconds(1));
    test.server->Housekeep();
    return condition();
  };
  EXPECT_TRUE(Eventually([&] { return after_a_second([&] { return CheckHealth(test.channel) == kNotServing; }); }));
  EXPECT_EQ(HttpGet(test.server->http_address(), "/healthz").status, 503);
  EXPECT_FALSE(test.Info().devices(0).healthy());
  RawCall refused(test.channel, kUpload);
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DetailsOf(status).reason, "DEVICE_HUNG");
  EXPECT_TRUE(DetailsOf(status).retry);
  const std::string text = HttpGet(test.server->http_address(), "/metrics").body;
  EXPECT_THAT(text, HasSubstr("error=\"hung\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("state=\"hung\"} 1\n"));

  EXPECT_EQ(given_up, 0);
  EXPECT_TRUE(Eventually([&] { return after_a_second([&] { return given_up == 1; }); }));

  gates.synchronize.Open();
  EXPECT_TRUE(Eventually([&] {
    test.server->Housekeep();
    return CheckHealth(test.channel) == kServing;
  }));
}

TEST(Availability, AJobThatDoesNotCheckInTurnsHealthOff) {
  std::atomic<int> since_checkpoint_s{0};
  ServerOptions options = TestServer::DefaultOptions();
  options.watchdog.timeout = std::chrono::seconds(30);
  options.running_jobs = [&] {
    const std::chrono::seconds since(since_checkpoint_s.load());
    return std::vector<WatchedJob>{{JobClass::kBatch, since, since}};
  };
  TestServer test(options);
  test.server->Housekeep();
  EXPECT_EQ(CheckHealth(test.channel), kServing);
  since_checkpoint_s = 31;
  test.server->Housekeep();
  test.server->Housekeep();
  EXPECT_EQ(CheckHealth(test.channel), kNotServing);
  EXPECT_THAT(HttpGet(test.server->http_address(), "/metrics").body,
              HasSubstr("intrawarp_since_checkpoint_seconds{class=\"batch\"} 31\n"));
  since_checkpoint_s = 0;
  test.server->Housekeep();
  EXPECT_EQ(CheckHealth(test.channel), kServing);
}

TEST(Availability, CallsBeyondTheLimitAreRefusedAndQuestionsAreNot) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.max_calls = 3;
  TestServer test(options);
  EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);  // a known connection
  std::vector<std::unique_ptr<RawCall>> watches;
  for (int i = 0; i < 3; ++i) {
    watches.push_back(std::make_unique<RawCall>(test.channel, "/grpc.health.v1.Health/Watch"));
    watches.back()->Write(HealthRequest(""));
    EXPECT_EQ(watches.back()->Read(), kServing);
  }
  // A call of any kind.
  RawCall watch(test.channel, "/grpc.health.v1.Health/Watch");
  watch.Write(HealthRequest(""));
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::MapPointsRequest points;
  points.set_transform("transforms/t");
  const std::pair<std::string, std::string> calls[] = {{"TransformService/MapPoints", points.SerializeAsString()},
                                                       {"VolumeService/ListVolumes", ""},
                                                       {"RegistrationService/Register", ""},
                                                       {"RegistrationService/Navigate", ""},
                                                       {"SparseMatrixService/Multiply", ""},
                                                       {"BulkService/Upload", ""},
                                                       {"BulkService/Download", ""}};
  for (const auto& [method, request] : calls) {
    SCOPED_TRACE(method);
    RawCall call(test.channel, "/intrawarp.v1." + method);
    call.Write(request);
    while (call.Read().has_value()) {
    }
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DetailsOf(status).reason, "TOO_MANY_STREAMS");
    EXPECT_TRUE(DetailsOf(status).retry);
  }
  ExpectAnswers(test);

  watches.pop_back();
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    v1::ListVolumesResponse response;
    return test.Stub<v1::VolumeService>()->ListVolumes(&context, {}, &response).ok();
  }));
}

TEST(Availability, ARefusedCallDoesNothing) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.max_calls = 1;
  TestServer test(options);
  StoredTransform stored{"t", {}, {}, {}, Transform(AffineMap::Identity())};
  ASSERT_TRUE(test.server->context().transforms.Insert(std::make_shared<StoredTransform>(std::move(stored))).ok());
  EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);  // a known connection
  RawCall watch(test.channel, "/grpc.health.v1.Health/Watch");
  watch.Write(HealthRequest(""));
  EXPECT_EQ(watch.Read(), kServing);
  v1::DeleteTransformRequest request;
  request.set_name("transforms/t");
  RawCall erase(test.channel, "/intrawarp.v1.TransformService/DeleteTransform");
  erase.Write(request.SerializeAsString());
  while (erase.Read().has_value()) {
  }
  EXPECT_EQ(erase.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(test.server->context().transforms.Find("t").ok());
}

TEST(Availability, PointsCountAmongTheStreams) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.max_streams = 1;
  TestServer test(options);
  RawCall upload(test.channel, "/intrawarp.v1.BulkService/Upload");
  EXPECT_EQ(test.WaitForUsage([](const v1::Usage& u) { return u.streams() == 1; }).streams(), 1);
  grpc::ClientContext context;
  v1::MapPointsRequest request;
  request.set_transform("transforms/t");
  v1::MapPointsResponse response;
  const grpc::Status status = test.Stub<v1::TransformService>()->MapPoints(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailsOf(status).reason, "TOO_MANY_STREAMS");
}

bool IsClosedConnectionCounted(const TestServer& test, const std::string& reason) {
  const std::string text = HttpGet(test.server->http_address(), "/metrics").body;
  return text.find(absl::StrCat("intrawarp_connections_closed_total{reason=\"", reason, "\"} 0\n")) ==
         std::string::npos;
}

TEST(Availability, ConnectionsWithCallsKeepTheirPlaces) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.max_connections = 2;
  TestServer test(options);
  auto first = NewConnection(*test.server);
  auto second = NewConnection(*test.server);
  RawCall first_call(first, kUpload), second_call(second, kUpload);
  const Ledger& ledger = test.server->context().ledger;
  ASSERT_TRUE(Eventually([&] { return ledger.in_use(Resource::kStreams) == 2; }));
  EXPECT_NE(Ask(NewConnection(*test.server)), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(first), grpc::StatusCode::OK);
  const std::string text = HttpGet(test.server->http_address(), "/metrics").body;
  EXPECT_THAT(text, HasSubstr("intrawarp_table_used{table=\"connections\"} 2\n"));
  EXPECT_THAT(text, testing::ContainsRegex("reason=\"too_many_connections\"} [1-9]"));
  // One without calls gives way.
  second_call.Cancel();
  EXPECT_TRUE(Eventually([&] { return Ask(NewConnection(*test.server)) == grpc::StatusCode::OK; }));
  EXPECT_EQ(ledger.in_use(Resource::kStreams), 1);
}

// More connections that say nothing than strangers, or all together, have places.
TEST(Availability, StrangersKeepNobodyOut) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.max_connections = 16;
  TestServer test(options);
  std::vector<std::unique_ptr<Http2Connection>> held;
  for (int i = 0; i < 60; ++i) held.push_back(std::make_unique<Http2Connection>(test.server->grpc_address()));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Ask(NewConnection(*test.server)), grpc::StatusCode::OK);
    EXPECT_EQ(CheckHealth(NewConnection(*test.server)), kServing);
    held.push_back(std::make_unique<Http2Connection>(test.server->grpc_address()));
  }
  EXPECT_TRUE(held.front()->AwaitEnd());
}

TEST(Availability, AConnectionWithoutACallIsClosedAndOneThatWatchesHealthIsNot) {
  ServerOptions options = TestServer::DefaultOptions();
  options.first_call_timeout = std::chrono::milliseconds(100);
  TestServer test(options);
  // On a busy machine the connection of a call may be there for so long before the call is.
  std::unique_ptr<RawCall> watch;
  ASSERT_TRUE(Eventually([&] {
    watch = std::make_unique<RawCall>(test.channel, "/grpc.health.v1.Health/Watch");
    watch->Write(HealthRequest(""));
    return watch->Read() == kServing;
  }));
  Http2Connection silent(test.server->grpc_address());
  EXPECT_TRUE(silent.AwaitEnd());
  EXPECT_TRUE(IsClosedConnectionCounted(test, "not_identified"));
  test.server->Stop();  // ends the watch
  while (watch->Read().has_value()) {
  }
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(Availability, HeadersAreBounded) {
  TestServer test;
  grpc::ClientContext context;
  context.AddMetadata("x-large", std::string(64 << 10, 'x'));
  v1::GetServerInfoResponse response;
  const grpc::Status status = test.Stub<v1::ServerService>()->GetServerInfo(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// Others share the connection through a proxy.
TEST(Availability, ALargeHeaderDoesNotEndTheConnection) {
  TestServer test;
  RawCall watch(test.channel, "/grpc.health.v1.Health/Watch");
  watch.Write(HealthRequest(""));
  EXPECT_EQ(watch.Read(), kServing);
  grpc::ClientContext context;
  context.AddMetadata("x-large", std::string(40 << 10, 'x'));
  v1::GetServerInfoResponse response;
  EXPECT_TRUE(test.Stub<v1::ServerService>()->GetServerInfo(&context, {}, &response).ok());
  watch.Cancel();
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::CANCELLED);  // until now it went on
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// A header that never ends: how it begins, what follows over and over, and the MiB that the server may grow by.
struct EndlessHeader {
  const char* name;
  std::string begin;
  std::string more;
  int64_t most_mib = 8;
};

std::vector<EndlessHeader> EndlessHeaders() {
  using Http2 = Http2Connection;
  std::string small;
  for (int i = 0; i < 180; ++i) small += Http2::Field("a", "b");
  const std::string scheme = "\x83\x86";
  const std::string named = scheme + "\x40\x01" + "a\x01" + "b";  // and a field to refer to
  return {{"whole fields", scheme, Http2::Field("a", std::string(4000, 'b'))},
          {"small fields", scheme, small},
          // Each byte of these takes the memory of a field.
          {"references", named, std::string(240, '\xbe'), 48},
          {"a string", scheme + "\x10\x7f\x80\xff\xff\xff\x07", std::string(1 << 20, 'a')},
          {"a length", scheme + "\x10\x7f", std::string(4096, '\x80')}};
}

// Sends 64 MiB of it, unless the server closes the connection.
void SendEndless(Http2Connection& connection, uint32_t stream, const EndlessHeader& header) {
  using Http2 = Http2Connection;
  std::string more = Http2::Frame(Http2::kContinuation, 0, stream, header.more);
  while (more.size() < 1 << 16) more += more;
  bool goes_on = connection.Send(Http2::Frame(Http2::kHeaders, 0, stream, header.begin));
  for (size_t sent = 0; goes_on && sent < 64 << 20; sent += more.size()) goes_on = connection.Send(more);
  EXPECT_FALSE(goes_on);
}

TEST(Availability, HeadersThatNeverEndAreBounded) {
  ServerOptions options = TestServer::DefaultOptions();
  options.unaccounted_timeout = std::chrono::milliseconds(50);
  TestServer test(options);
  EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);
  for (const EndlessHeader& header : EndlessHeaders()) {
    SCOPED_TRACE(header.name);
    const int64_t before = ResidentBytes();
    Http2Connection connection(test.server->grpc_address());
    SendEndless(connection, 1, header);
    EXPECT_LE(ResidentBytes() - before, header.most_mib << 20);
    EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);
  }
  EXPECT_TRUE(IsClosedConnectionCounted(test, "unaccounted"));
}

TEST(Availability, HeadersThatNeverEndOnManyConnectionsAreBounded) {
  ServerOptions options = TestServer::DefaultOptions();
  options.unaccounted_timeout = std::chrono::milliseconds(50);
  TestServer test(options);
  EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);
  const EndlessHeader header = EndlessHeaders().front();
  const int64_t before = ResidentBytes();
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([&] {
      Http2Connection connection(test.server->grpc_address());
      SendEndless(connection, 1, header);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Some 4 MiB a connection, of the 64 that each would send.
  EXPECT_LE(ResidentBytes() - before, 128 << 20);
  EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);
}

// Whether the server opens the connection, and answers these settings five times.
bool HasAnswers(Http2Connection& connection, const std::string& settings) {
  using Http2 = Http2Connection;
  constexpr size_t kOpening = 61, kAcknowledgement = 9;
  bool answers = connection.Receive(kOpening);
  for (int k = 0; answers && k < 5; ++k) {
    answers = connection.Send(Http2::Frame(Http2::kSettings, 0, 0, settings)) && connection.Receive(kAcknowledgement);
  }
  return answers;
}

// The server answers settings, which earns nobody the memory of many unfinished headers.
TEST(Availability, HeadersBehindAnswersAreBoundedTogether) {
  using Http2 = Http2Connection;
  ServerOptions options = TestServer::DefaultOptions();
  options.unaccounted_timeout = std::chrono::milliseconds(50);
  TestServer test(options);
  EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);
  const EndlessHeader header = EndlessHeaders()[1];
  const std::string kSetting("\0\4\0\0\xff\xff", 6);
  std::string settings;
  for (int i = 0; i < 2700; ++i) settings += kSetting;
  const int64_t before = ResidentBytes();
  std::vector<std::thread> threads;
  for (int i = 0; i < 24; ++i) {
    threads.emplace_back([&] {
      // A busy server may close a connection whose settings it has not come to answer.
      std::unique_ptr<Http2> connection;
      EXPECT_TRUE(Eventually([&] {
        connection = std::make_unique<Http2>(test.server->grpc_address());
        return HasAnswers(*connection, settings);
      }));
      SendEndless(*connection, 1, header);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(ResidentBytes() - before, int64_t{256} << 20);
  EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);
}

// The message of a new client's first call is let in, also when many begin at once.
TEST(Availability, ManyClientsMayBeginWithLargeMessages) {
  TestServer test;
  const std::string chunk(1 << 20, 'x');
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      RawCall refused(NewConnection(*test.server), kUpload);
      (void)refused.Write(chunk);  // no header
      EXPECT_EQ(refused.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(IsClosedConnectionCounted(test, "unaccounted"));
}

// Whoever has made a call may send more at once, and is watched instead of bounded from the beginning.
TEST(Availability, HeadersThatNeverEndAreBoundedAfterACall) {
  using Http2 = Http2Connection;
  ServerOptions options = TestServer::DefaultOptions();
  options.unaccounted_timeout = std::chrono::milliseconds(50);
  TestServer test(options);
  for (const EndlessHeader& header : {EndlessHeaders().front(), EndlessHeaders()[3]}) {
    SCOPED_TRACE(header.name);
    Http2Connection connection(test.server->grpc_address());
    connection.Send(Http2::Frame(Http2::kHeaders, Http2::kEndHeaders, 1, Http2::CallHeader(kInfo)) +
                    Http2::Frame(Http2::kData, 1, 1, std::string(5, '\0')));
    ASSERT_TRUE(Eventually([&] {
      return HttpGet(test.server->http_address(), "/metrics").body.find("{table=\"stranger_connections\"} 0\n") !=
             std::string::npos;
    }));
    const int64_t before = ResidentBytes();
    SendEndless(connection, 3, header);
    EXPECT_LE(ResidentBytes() - before, 24 << 20);
  }
  EXPECT_EQ(Ask(test.channel), grpc::StatusCode::OK);
}

// A good caller's data is never taken for such a header, however long it is, and whether or not the call is refused.
TEST(Availability, NothingThatBelongsToCallsIsHeld) {
  ServerOptions options = TestServer::DefaultOptions();
  options.unaccounted_timeout = std::chrono::milliseconds(50);
  TestServer test(options);
  const std::string chunk(1 << 20, 'x');
  for (int i = 0; i < 20; ++i) {
    RawCall refused(test.channel, kUpload);
    (void)refused.Write(chunk);  // no header
    EXPECT_FALSE(refused.Finish().ok());
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Upload(*test.Stub<v1::BulkService>(), SmallVolume(absl::StrCat("v", i))).ok());
  }
  EXPECT_TRUE(Eventually([&] { return test.Info().usage().streams() == 0; }));
  EXPECT_FALSE(IsClosedConnectionCounted(test, "unaccounted"));
  EXPECT_FALSE(IsClosedConnectionCounted(test, "refused_calls"));
}

// The process may open this many descriptors while one lives.
class MostDescriptors {
 public:
  explicit MostDescriptors(rlim_t most) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = most;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  MostDescriptors(const MostDescriptors&) = delete;
  ~MostDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// More than there are places, which a process with few descriptors has few of.
TEST(Availability, HealthBesideHalfSentRequests) {
  const MostDescriptors most(1024);
  TestServer test;
  std::vector<std::unique_ptr<HttpConnection>> held;
  for (int i = 0; i < 330; ++i) {
    held.push_back(std::make_unique<HttpConnection>(test.server->http_address()));
    held.back()->Send("GET /metrics HTTP/1.1\r\n");
  }
  EXPECT_EQ(HttpGet(test.server->http_address(), "/healthz").status, 200);
}

}  // namespace
}  // namespace intrawarp::server
