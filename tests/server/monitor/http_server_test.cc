// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http_client.h"

namespace intrawarp::server {
namespace {

// A page that is made when the test says so.
class SlowPage {
 public:
  HttpRoute route() {
    return {"/slow", /*slow=*/true, [this] {
              begun_ = true;
              released_.get_future().wait();
              return HttpPage{200, "text/plain", "slow\n"};
            }};
  }
  bool begun() const { return begun_; }
  void Release() { released_.set_value(); }

 private:
  std::atomic<bool> begun_{false};
  std::promise<void> released_;
};

HttpRoute Quick() {
  return {"/quick", /*slow=*/false, [] { return HttpPage{200, "text/plain", "quick\n"}; }};
}

std::unique_ptr<HttpServer> Serve(std::vector<HttpRoute> routes, const HttpLimits& limits = {}) {
  auto server = HttpServer::Start("127.0.0.1:0", std::move(routes), limits);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(HttpServer, AnswersInTheWordsOfHttp) {
  const auto server = Serve({Quick()});
  const HttpAnswer answer = HttpGet(server->address(), "/quick");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "quick\n");
  EXPECT_NE(answer.head.find("Content-Length: 6\r\n"), std::string::npos) << answer.head;
  EXPECT_NE(answer.head.find("Connection: close"), std::string::npos) << answer.head;
  EXPECT_EQ(HttpGet(server->address(), "/quick?x=1").status, 200);
  EXPECT_EQ(HttpGet(server->address(), "/other").status, 404);
  EXPECT_EQ(HttpRequest(server->address(), "POST", "/quick").status, 405);
  EXPECT_EQ(HttpRequest(server->address(), "HEAD", "/quick").body, "");
}

TEST(HttpServer, RefusesWhatIsNoRequest) {
  const auto server = Serve({Quick()});
  for (const char* text : {"hello\r\n\r\n", "GET /quick\r\n\r\n", "GET quick HTTP/1.1\r\n\r\n", " / HTTP/1.1\r\n\r\n",
                           "\r\n\r\n", "GET /quick HTTP/2.0\r\n\r\n"}) {
    HttpConnection connection(server->address());
    connection.Send(text);
    EXPECT_EQ(connection.Read().status, 400) << text;
  }
}

TEST(HttpServer, BoundsTheHeader) {
  const auto server = Serve({Quick()}, {.header_bytes = 100});
  HttpConnection connection(server->address());
  connection.Send("GET /quick HTTP/1.1\r\nX: " + std::string(200, 'x'));
  EXPECT_EQ(connection.Read().status, 431);
}

TEST(HttpServer, ClosesAConnectionThatDoesNotAskInTime) {
  const auto server = Serve({Quick()}, {.header_timeout = std::chrono::milliseconds(1)});
  HttpConnection connection(server->address());
  connection.Send("GET /quick HTTP/1.1\r\n");
  EXPECT_EQ(connection.Read().status, 0);  // the end of the connection
}

// A limit guards against a hang: with a thread a connection, the request would wait for minutes.
TEST(HttpServer, AnswersBesideHalfSentRequests) {
  const auto server = Serve({Quick()}, {.header_timeout = std::chrono::minutes(10)});
  std::vector<std::unique_ptr<HttpConnection>> held;
  for (int i = 0; i < 100; ++i) {
    held.push_back(std::make_unique<HttpConnection>(server->address()));
    held.back()->Send("GET /quick HT");
  }
  EXPECT_EQ(HttpGet(server->address(), "/quick").status, 200);
}

std::vector<std::unique_ptr<HttpConnection>> HalfSent(const HttpServer& server, int count,
                                                      const std::string& from = "127.0.0.1") {
  std::vector<std::unique_ptr<HttpConnection>> held;
  for (int i = 0; i < count; ++i) {
    held.push_back(std::make_unique<HttpConnection>(server.address(), from));
    held.back()->Send("GET /quick HT");
  }
  return held;
}

TEST(HttpServer, TheOldestOfTheFullestNetworkGivesWay) {
  const auto server = Serve({Quick()}, {.connections = 4, .header_timeout = std::chrono::minutes(10)});
  const auto held = HalfSent(*server, 5);
  EXPECT_EQ(HttpGet(server->address(), "/quick").status, 200);
  EXPECT_EQ(held.front()->Read().status, 0);
  held.back()->Send("TP/1.1\r\n\r\n");
  EXPECT_EQ(held.back()->Read().status, 200);
}

// Far more connections than there are places.
TEST(HttpServer, AFloodClosesItsOwnConnections) {
  const auto server = Serve({Quick()}, {.connections = 8, .header_timeout = std::chrono::minutes(10)});
  const auto others = HalfSent(*server, 8, "127.0.0.2");
  const auto half = HalfSent(*server, 2, "127.0.0.3");
  const auto flood = HalfSent(*server, 40, "127.0.0.2");
  EXPECT_EQ(HttpGet(server->address(), "/quick").status, 200);
  for (const auto& connection : half) {
    connection->Send("TP/1.1\r\n\r\n");
    EXPECT_EQ(connection->Read().status, 200);
  }
}

TEST(HttpServer, WhoWaitsForASlowPageGivesWayLast) {
  SlowPage slow;
  const auto server = Serve({Quick(), slow.route()}, {.connections = 3, .header_timeout = std::chrono::minutes(10)});
  std::future<HttpAnswer> page = std::async(std::launch::async, [&] { return HttpGet(server->address(), "/slow"); });
  while (!slow.begun()) std::this_thread::yield();
  const auto flood = HalfSent(*server, 20);
  EXPECT_EQ(HttpGet(server->address(), "/quick").status, 200);
  slow.Release();
  EXPECT_EQ(page.get().body, "slow\n");
}

TEST(HttpServer, ASlowPageHoldsUpNobodyAndABusyMakerRefuses) {
  SlowPage slow;
  const auto server = Serve({Quick(), slow.route()}, {.slow_pages = 1});
  std::future<HttpAnswer> first = std::async(std::launch::async, [&] { return HttpGet(server->address(), "/slow"); });
  while (!slow.begun()) std::this_thread::yield();
  EXPECT_EQ(HttpGet(server->address(), "/slow").status, 503);
  EXPECT_EQ(HttpGet(server->address(), "/quick").status, 200);
  slow.Release();
  EXPECT_EQ(first.get().body, "slow\n");
}

TEST(HttpServer, APortInUseIsUnavailable) {
  const auto server = Serve({Quick()});
  EXPECT_EQ(HttpServer::Start(server->address(), {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(HttpServer::Start("256.0.0.1:0", {}).status().code(), absl::StatusCode::kUnavailable);
}

// An address that its reader would take for another one.
TEST(HttpServer, AnIpv6AddressStandsInBrackets) {
  for (const char* address : {"::1:0", "::1", "[::1]"}) {
    EXPECT_EQ(HttpServer::Start(address, {}).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  const auto server = HttpServer::Start("[::1]:0", {});
  if (absl::IsUnavailable(server.status())) GTEST_SKIP() << "this machine has no IPv6";
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->address().rfind("[::1]:", 0), 0u) << (*server)->address();
}

}  // namespace
}  // namespace intrawarp::server
