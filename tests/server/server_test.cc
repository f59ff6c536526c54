// SPDX-License-Identifier: Apache-2.0
// The server as a whole: information, health, metrics, reflection, stop.
#include "server/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "intrawarp/v1/volume.grpc.pb.h"
#include "server/base/version.h"
#include "tests/server/health_client.h"
#include "tests/server/http_client.h"
#include "tests/server/promtool.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace intrawarp::server {
namespace {

using ::testing::HasSubstr;

TEST(Server, TellsWhatItIs) {
  TestServer test;
  const v1::ServerInfo info = test.Info();
  EXPECT_EQ(info.version(), ThisBuild().version);
  EXPECT_NE(info.revision(), "");
  EXPECT_GT(info.start_time().seconds(), 1700000000);
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).name(), test.server->device_name());
  EXPECT_NE(info.devices(0).model(), "");
  EXPECT_TRUE(info.devices(0).healthy());
  EXPECT_GT(info.devices(0).memory_total_bytes(), info.devices(0).memory_free_bytes());
  EXPECT_EQ(info.limits().max_chunk_bytes(), 1 << 20);
  EXPECT_EQ(info.limits().resident_capacity_bytes(), 1 << 28);
  EXPECT_EQ(info.limits().upload_ttl().seconds(), 300);
  EXPECT_EQ(info.usage().SerializeAsString(), "");  // all zero
  EXPECT_EQ(info.pixel_types_size(), 8);
  EXPECT_GT(info.methods_size(), 0);
  EXPECT_GT(info.metrics_size(), 0);
}

TEST(Server, ChoosesCapacitiesFromMemory) {
  ServerOptions options = TestServer::DefaultOptions();
  options.limits = ServerLimits();
  TestServer test(options);
  EXPECT_GT(test.server->context().limits.resident_capacity_bytes, int64_t{1} << 28);
  EXPECT_GT(test.server->context().limits.pinned_capacity_bytes, int64_t{1} << 28);
  EXPECT_LE(test.server->context().limits.pinned_capacity_bytes, int64_t{8} << 30);
}

TEST(Server, HealthKnowsTheWholeAndEachService) {
  TestServer test;
  for (const std::string service : {"", "intrawarp.v1.ServerService"}) {
    RawCall check(test.channel, "/grpc.health.v1.Health/Check");
    check.Write(HealthRequest(service));
    EXPECT_EQ(check.Read(), kServing) << service;
    EXPECT_TRUE(check.Finish().ok());
  }
  RawCall check(test.channel, "/grpc.health.v1.Health/Check");
  check.Write(HealthRequest("nobody"));
  EXPECT_EQ(check.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(HttpGet(test.server->http_address(), "/healthz").status, 200);
}

TEST(Server, WatchHearsOfAStopWhichThenTakesNoTime) {
  ServerOptions options = TestServer::DefaultOptions();
  options.drain_timeout = std::chrono::minutes(5);
  TestServer test(options);
  RawCall watch(test.channel, "/grpc.health.v1.Health/Watch");
  watch.Write(HealthRequest(""));
  EXPECT_EQ(watch.Read(), kServing);
  const auto begin = std::chrono::steady_clock::now();
  std::future<void> stop = std::async(std::launch::async, [&] { test.server->Stop(); });
  // The stream may end before the news has left.
  const std::optional<std::string> news = watch.Read();
  if (news) {
    EXPECT_EQ(*news, kNotServing);
  }
  stop.wait();
  // The watch did not hold it up.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, options.drain_timeout / 2);
}

TEST(Server, MetricsAreWhatPrometheusWants) {
  TestServer test;
  test.Info();
  test.Info();
  const HttpAnswer answer = HttpGet(test.server->http_address(), "/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("text/plain; version=0.0.4"));
  const std::string method =
      "grpc_method=\"GetServerInfo\",grpc_service=\"intrawarp.v1.ServerService\",grpc_type=\"unary\"";
  EXPECT_THAT(answer.body, HasSubstr("grpc_server_started_total{" + method + "} 2\n"));
  EXPECT_THAT(answer.body, HasSubstr("grpc_server_handled_total{grpc_code=\"OK\"," + method + "} 2\n"));
  EXPECT_THAT(answer.body, HasSubstr("grpc_server_in_flight{" + method + "} 0\n"));
  EXPECT_THAT(answer.body, HasSubstr("grpc_server_handling_seconds_count{" + method + "} 2\n"));
  EXPECT_THAT(answer.body, HasSubstr("grpc_server_msg_received_total{" + method + "} 2\n"));
  EXPECT_THAT(answer.body, HasSubstr("intrawarp_memory_capacity_bytes{kind=\"resident\"} 268435456\n"));
  EXPECT_THAT(answer.body, HasSubstr("intrawarp_table_capacity{table=\"calls\"} 1024\n"));
  EXPECT_THAT(answer.body, HasSubstr("intrawarp_queue_capacity{class=\"batch\"} 64\n"));
  EXPECT_THAT(answer.body, HasSubstr("intrawarp_device_healthy{device=\"" + test.server->device_name() + "\"} 1\n"));
  const PromtoolResult result = PromtoolCheck(answer.body);
  if (!result.available) GTEST_SKIP() << "promtool is not installed";
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

TEST(Server, HttpKnowsItsPagesAndMethods) {
  TestServer test;
  const std::string& address = test.server->http_address();
  EXPECT_EQ(HttpGet(address, "/").status, 404);
  EXPECT_EQ(HttpGet(address, "/../etc/passwd").status, 404);
  EXPECT_EQ(HttpRequest(address, "POST", "/metrics").status, 405);
  const HttpAnswer head = HttpRequest(address, "HEAD", "/healthz");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
}

TEST(Server, ReflectionOnlyWhenAsked) {
  // {string list_services = 7} with "*".
  const grpc::Slice list(std::string("\x3a\x01*"));
  for (const bool reflection : {false, true, false}) {
    ServerOptions options = TestServer::DefaultOptions();
    options.reflection = reflection;
    TestServer test(options);
    RawCall call(test.channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
    call.Write(grpc::ByteBuffer(&list, 1));
    const std::optional<std::string> answer = call.Read();
    ASSERT_EQ(answer.has_value(), reflection);
    if (reflection) {
      EXPECT_THAT(*answer, HasSubstr("intrawarp.v1.ServerService"));
    } else {
      EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
    }
  }
}

// The first message of a stranger is bounded otherwise (availability_test.cc).
TEST(Server, RefusesMessagesMuchLargerThanAChunk) {
  TestServer test;
  test.Info();
  RawCall call(test.channel, "/intrawarp.v1.ServerService/GetServerInfo");
  const grpc::Slice slice(std::string(2 << 20, 'x'));
  call.Write(grpc::ByteBuffer(&slice, 1));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(Server, UnknownMethodsAreUnimplementedAndNotNamedInMetrics) {
  TestServer test;
  RawCall call(test.channel, "/intrawarp.v1.NoSuchService/Secret");
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(HttpGet(test.server->http_address(), "/metrics").body.find("Secret"), std::string::npos);
}

TEST(Server, APortInUseIsUnavailable) {
  TestServer test;
  ServerOptions options = TestServer::DefaultOptions();
  options.listen = test.server->grpc_address();
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kUnavailable);
  options = TestServer::DefaultOptions();
  options.http = test.server->http_address();
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kUnavailable);
}

TEST(Server, AnUnknownDeviceIsRefused) {
  ServerOptions options = TestServer::DefaultOptions();
  options.device = "abacus";
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Server, StopsTwice) {
  TestServer test;
  test.server->Stop();
  test.server->Stop();
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::GetServerInfoResponse response;
  EXPECT_FALSE(test.Stub<v1::ServerService>()->GetServerInfo(&call, {}, &response).ok());
}

}  // namespace
}  // namespace intrawarp::server
