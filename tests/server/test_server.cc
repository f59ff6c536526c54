// SPDX-License-Identifier: Apache-2.0
#include "tests/server/test_server.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/support/eventually.h"

namespace intrawarp::server {

std::function<std::chrono::steady_clock::time_point()> FakeClock::now() {
  return [this] { return std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns_.load()); };
}

std::unique_ptr<Server> StartServer(const ServerOptions& options) {
  absl::StatusOr<std::unique_ptr<Server>> started = Server::Start(options);
  EXPECT_TRUE(started.ok()) << started.status();
  return *std::move(started);
}

std::shared_ptr<grpc::Channel> NewConnection(const Server& server,
                                             const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server.grpc_address(), credentials, arguments);
}

bool Nothing(const v1::Usage& usage) { return usage.ByteSizeLong() == 0; }

ServerOptions TestServer::DefaultOptions() {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.http = "127.0.0.1:0";
  options.limits.resident_capacity_bytes = int64_t{1} << 28;
  options.limits.pinned_capacity_bytes = int64_t{1} << 28;
  options.drain_timeout = std::chrono::seconds(5);
  options.watchdog.timeout = std::chrono::seconds(0);  // jumps of the clock would look like a hang
  options.scheduling = SchedulingOptions();            // one job at a time, so that one can block the others
  return options;
}

TestServer::TestServer(ServerOptions options) {
  options.seams.steady_now = clock.now();
  server = StartServer(options);
  channel = grpc::CreateChannel(server->grpc_address(), grpc::InsecureChannelCredentials());
}

v1::ServerInfo TestServer::Info() {
  grpc::ClientContext call;
  v1::GetServerInfoResponse response;
  const grpc::Status status = Stub<v1::ServerService>()->GetServerInfo(&call, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.info();
}

v1::Usage TestServer::WaitForUsage(const std::function<bool(const v1::Usage&)>& condition) {
  v1::Usage usage;
  (void)Eventually([&] {
    usage = Info().usage();
    return condition(usage);
  });
  return usage;
}

v1::Usage TestServer::WaitForExpiredUsage(const std::function<bool(const v1::Usage&)>& condition) {
  return WaitForUsage([&](const v1::Usage& usage) {
    clock.Advance(std::chrono::hours(1));
    server->Housekeep();
    return condition(usage);
  });
}

void TestServer::ExpectNothingLeft() {
  WaitForUsage([](const v1::Usage& usage) { return usage.streams() == 0 && usage.jobs() == 0; });
  const v1::Usage usage = WaitForExpiredUsage(Nothing);
  EXPECT_TRUE(Nothing(usage)) << usage.ShortDebugString();
  EXPECT_TRUE(Eventually([this] { return server->context().pinned.leased_bytes() == 0; }));
}

}  // namespace intrawarp::server
