// SPDX-License-Identifier: Apache-2.0
// The server answers whatever the rest of it does: questions beside bulk that waits, health beside a device that hangs,
// and limits to what one client can take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
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
#include "tests/server/http_client.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

constexpr char kUpload[] = "/intrawarp.v1.BulkService/Upload";
constexpr char kDownload[] = "/intrawarp.v1.BulkService/Download";
constexpr char kInfo[] = "/intrawarp.v1.ServerService/GetServerInfo";

// More than the threads on which gRPC reacts.
constexpr int kMany = 40;

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 12000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
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

  test.clock.Advance(std::chrono::seconds(31));
  test.server->Housekeep();
  test.server->Housekeep();
  EXPECT_EQ(CheckHealth(test.channel), kNotServing);
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
  test.clock.Advance(std::chrono::seconds(61));
  test.server->Housekeep();
  EXPECT_EQ(given_up, 1);

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
  std::vector<std::unique_ptr<RawCall>> watches;
  for (int i = 0; i < 3; ++i) {
    watches.push_back(std::make_unique<RawCall>(test.channel, "/grpc.health.v1.Health/Watch"));
    watches.back()->Write(HealthRequest(""));
    EXPECT_EQ(watches.back()->Read(), kServing);
  }
  // Of any kind.
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

std::shared_ptr<grpc::Channel> NewConnection(const TestServer& test) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(test.server->grpc_address(), grpc::InsecureChannelCredentials(), arguments);
}

grpc::StatusCode Ask(const std::shared_ptr<grpc::Channel>& channel) {
  RawCall call(channel, kInfo);
  call.Write(std::string());
  call.WritesDone();
  while (call.Read().has_value()) {
  }
  return call.Finish().error_code();
}

TEST(Availability, ConnectionsBeyondTheLimitAreClosed) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits.max_connections = 2;
  TestServer test(options);
  auto first = NewConnection(test);
  auto second = NewConnection(test);
  EXPECT_EQ(Ask(first), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(second), grpc::StatusCode::OK);
  EXPECT_EQ(Ask(NewConnection(test)), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ask(first), grpc::StatusCode::OK);
  const std::string text = HttpGet(test.server->http_address(), "/metrics").body;
  EXPECT_THAT(text, HasSubstr("intrawarp_table_used{table=\"connections\"} 2\n"));
  EXPECT_THAT(text, testing::ContainsRegex("reason=\"too_many_connections\"} [1-9]"));
  // A place that is free again serves the next one.
  second.reset();
  EXPECT_TRUE(Eventually([&] { return Ask(NewConnection(test)) == grpc::StatusCode::OK; }));
}

TEST(Availability, HeadersAreBounded) {
  TestServer test;
  grpc::ClientContext context;
  context.AddMetadata("x-large", std::string(64 << 10, 'x'));
  v1::GetServerInfoResponse response;
  const grpc::Status status = test.Stub<v1::ServerService>()->GetServerInfo(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(Availability, HealthBesideHalfSentRequests) {
  TestServer test;
  std::vector<std::unique_ptr<HttpConnection>> held;
  for (int i = 0; i < 100; ++i) {
    held.push_back(std::make_unique<HttpConnection>(test.server->http_address()));
    held.back()->Send("GET /metrics HTTP/1.1\r\n");
  }
  EXPECT_EQ(HttpGet(test.server->http_address(), "/healthz").status, 200);
}

}  // namespace
}  // namespace intrawarp::server
