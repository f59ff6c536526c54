// SPDX-License-Identifier: Apache-2.0
// A real Server in this process, a real channel to it, and a clock that tests move.
#ifndef INTRAWARP_TESTS_SERVER_TEST_SERVER_H_
#define INTRAWARP_TESTS_SERVER_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "intrawarp/v1/server.grpc.pb.h"
#include "server/server.h"
#include "tests/server/status_details.h"

namespace intrawarp::server {

// The machine's time, and whatever Advance adds to it. Thread-safe.
class FakeClock {
 public:
  // The clock has to outlive the function.
  std::function<std::chrono::steady_clock::time_point()> now();
  void Advance(std::chrono::nanoseconds by) { ns_ += by.count(); }

 private:
  std::atomic<int64_t> ns_{0};
};

// Starts a server; ends the program with the reason when it does not start.
std::unique_ptr<Server> StartServer(const ServerOptions& options);

// A channel with a connection of its own.
std::shared_ptr<grpc::Channel> NewConnection(
    const Server& server,
    const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials());

// Nothing is in use.
bool Nothing(const v1::Usage& usage);

// The device is the environment's: the GPU where there is one.
class TestServer {
 public:
  // Ports of the kernel's choice, one job at a time, a short drain, no watchdog.
  static ServerOptions DefaultOptions();

  explicit TestServer(ServerOptions options = DefaultOptions());

  template <typename Service>
  std::unique_ptr<typename Service::Stub> Stub() {
    return Service::NewStub(channel);
  }

  v1::ServerInfo Info();

  // Waits for a usage that satisfies the condition, as Eventually does, and returns the last one seen.
  v1::Usage WaitForUsage(const std::function<bool(const v1::Usage&)>& condition);
  // The same, while the hours pass: unfinished uploads expire, also those that the server begins after their client has
  // given up.
  v1::Usage WaitForExpiredUsage(const std::function<bool(const v1::Usage&)>& condition);

  // Waits until nothing is under way, lets unfinished uploads expire, and fails the test for whatever is still used.
  void ExpectNothingLeft();

  FakeClock clock;
  std::unique_ptr<Server> server;
  std::shared_ptr<grpc::Channel> channel;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_TEST_SERVER_H_
