// SPDX-License-Identifier: Apache-2.0
// A real Server in this process, a real channel to it, and a clock that tests move.
#ifndef INTRAWARP_TESTS_SERVER_TEST_SERVER_H_
#define INTRAWARP_TESTS_SERVER_TEST_SERVER_H_

#include <google/protobuf/any.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "intrawarp/v1/server.grpc.pb.h"
#include "server/server.h"

namespace intrawarp::server {

// The machine's time, and whatever Advance adds to it.
class FakeClock {
 public:
  std::function<std::chrono::steady_clock::time_point()> now() {
    return [this] { return std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns_.load()); };
  }
  void Advance(std::chrono::nanoseconds by) { ns_ += by.count(); }

 private:
  std::atomic<int64_t> ns_{0};
};

// The device is that of the environment: the GPU where there is one.
class TestServer {
 public:
  static ServerOptions DefaultOptions() {
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

  explicit TestServer(ServerOptions options = DefaultOptions()) {
    options.seams.steady_now = clock.now();
    auto started = Server::Start(options);
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    channel = grpc::CreateChannel(server->grpc_address(), grpc::InsecureChannelCredentials());
  }

  template <typename Service>
  std::unique_ptr<typename Service::Stub> Stub() {
    return Service::NewStub(channel);
  }

  v1::ServerInfo Info() {
    grpc::ClientContext call;
    v1::GetServerInfoResponse response;
    const grpc::Status status = Stub<v1::ServerService>()->GetServerInfo(&call, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.info();
  }

  // Waits up to ten seconds for a usage that satisfies the condition, and returns the last one seen.
  v1::Usage WaitForUsage(const std::function<bool(const v1::Usage&)>& condition) {
    v1::Usage usage;
    for (int i = 0; i < 1000; ++i) {
      usage = Info().usage();
      if (condition(usage)) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return usage;
  }
  // The same, while the hours pass: unfinished uploads expire, also those that the server begins after their client has
  // given up.
  v1::Usage WaitForExpiredUsage(const std::function<bool(const v1::Usage&)>& condition) {
    return WaitForUsage([&](const v1::Usage& usage) {
      clock.Advance(std::chrono::hours(1));
      server->Housekeep();
      return condition(usage);
    });
  }

  FakeClock clock;
  std::unique_ptr<Server> server;
  std::shared_ptr<grpc::Channel> channel;
};

// What a client reads out of the details of an error.
struct ErrorDetails {
  std::string reason;
  std::string field;  // of the first violation
  std::string resource;
  bool retry = false;
};
inline ErrorDetails DetailsOf(const grpc::Status& status) {
  ErrorDetails details;
  google::rpc::Status proto;
  EXPECT_TRUE(proto.ParseFromString(status.error_details()));
  EXPECT_EQ(proto.code(), static_cast<int>(status.error_code()));
  for (const google::protobuf::Any& any : proto.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad;
    google::rpc::ResourceInfo resource;
    if (any.UnpackTo(&info)) {
      EXPECT_EQ(info.domain(), "intrawarp");
      details.reason = info.reason();
      v1::ErrorReason reason;
      EXPECT_TRUE(v1::ErrorReason_Parse(info.reason(), &reason)) << info.reason() << " is not in error.proto";
    }
    if (any.UnpackTo(&bad)) details.field = bad.field_violations(0).field();
    if (any.UnpackTo(&resource)) details.resource = resource.resource_name();
    if (any.Is<google::rpc::RetryInfo>()) details.retry = true;
  }
  EXPECT_NE(details.reason, "") << status.error_message();
  return details;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_TEST_SERVER_H_
