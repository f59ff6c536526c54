// SPDX-License-Identifier: Apache-2.0
// Against the kernel's TCP over the loopback device.
#include "server/rpc/receive_bound.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "server/base/tcp_listener.h"
#include "tests/support/eventually.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kSegment = int64_t{64} << 10;

// Both ends of a connection; neither blocks.
struct Connection {
  Fd client;
  Fd server;
};

Connection Connect(const TcpListener& listener) {
  Connection made;
  made.client = Fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(connect(made.client.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(fcntl(made.client.get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_TRUE(Eventually([&] {
    made.server = listener.Accept();
    return static_cast<bool>(made.server);
  }));
  return made;
}

TcpListener Listen(bool keeps_first = true) {
  TcpListener listener = *TcpListener::Bind("127.0.0.1:0");
  if (keeps_first) KeepFirstSegments(listener.fd());
  return listener;
}

// A client that sends so many bytes, as they are taken, and a server that reads what comes.
class Flow {
 public:
  Flow(const Connection& connection, int64_t bytes) : connection_(connection), left_(bytes) {}
  // The bytes that the server has received.
  int64_t Step() {
    static const std::string bytes(1 << 16, 'x');
    if (left_ > 0) {
      const size_t part = std::min<size_t>(bytes.size(), static_cast<size_t>(left_));
      left_ -= std::max<ssize_t>(send(connection_.client.get(), bytes.data(), part, MSG_NOSIGNAL), 0);
    }
    char read_into[1 << 16];
    while (recv(connection_.server.get(), read_into, sizeof(read_into), MSG_DONTWAIT) > 0) {
    }
    return TrafficOf(connection_.server.get())->received;
  }

 private:
  const Connection& connection_;
  int64_t left_;
};

TEST(ReceiveBound, TheFirstSequenceNumberIsToldOnce) {
  const TcpListener listener = Listen();
  const Connection connection = Connect(listener);
  EXPECT_TRUE(FirstSequence(connection.server.get()).has_value());
  EXPECT_FALSE(FirstSequence(connection.server.get()).has_value());
  EXPECT_FALSE(FirstSequence(connection.client.get()).has_value()) << "it was not accepted";
}

TEST(ReceiveBound, AListenerThatWasNotAskedKeepsNoNumber) {
  const TcpListener listener = Listen(/*keeps_first=*/false);
  EXPECT_FALSE(FirstSequence(Connect(listener).server.get()).has_value());
  EXPECT_FALSE(FirstSequence(-1).has_value());
}

TEST(ReceiveBound, CountsWhatCameAndWhatWasSent) {
  const TcpListener listener = Listen();
  const Connection connection = Connect(listener);
  const int server = connection.server.get();
  Traffic traffic = TrafficOf(server).value();
  EXPECT_EQ(traffic.received, 0);
  EXPECT_EQ(traffic.sent, 0);
  EXPECT_EQ(traffic.answers, 0);
  ASSERT_EQ(send(connection.client.get(), "12345", 5, 0), 5);
  EXPECT_TRUE(Eventually([&] { return TrafficOf(server)->received == 5; })) << "it is not read";
  ASSERT_EQ(send(server, "123", 3, 0), 3);
  ASSERT_EQ(send(server, "4567", 4, 0), 4);
  EXPECT_TRUE(Eventually([&] { return TrafficOf(server)->acked == 7; })) << TrafficOf(server)->acked;
  traffic = TrafficOf(server).value();
  EXPECT_EQ(traffic.sent, 7);
  EXPECT_GE(traffic.answers, 1);
  EXPECT_LE(traffic.answers, 2);
  EXPECT_EQ(traffic.received, 5);
}

// The bytes that the kernel dropped arrive, all of them, once the bound is raised.
TEST(ReceiveBound, HoldsUntilItIsRaisedOrLifted) {
  constexpr int64_t kAll = 6 * kSegment, kFirst = 1000, kSecond = 3 * kSegment;
  const TcpListener listener = Listen();
  const Connection connection = Connect(listener);
  const int server = connection.server.get();
  const std::optional<uint32_t> first = FirstSequence(server);
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(BoundReceived(server, *first, kFirst));
  Flow flow(connection, kAll);
  ASSERT_TRUE(Eventually([&] { return flow.Step() >= kFirst; }));
  for (int i = 0; i < 100; ++i) {
    ASSERT_LE(flow.Step(), kFirst + kSegment);
    usleep(1000);
  }
  ASSERT_TRUE(BoundReceived(server, *first, kSecond));
  ASSERT_TRUE(Eventually([&] { return flow.Step() >= kSecond; }));
  for (int i = 0; i < 100; ++i) {
    ASSERT_LE(flow.Step(), kSecond + kSegment);
    usleep(1000);
  }
  LiftBound(server);
  EXPECT_TRUE(Eventually([&] { return flow.Step() == kAll; })) << TrafficOf(server)->received;
}

// The client's number is any of 2^32, so that bytes are counted modulo that.
TEST(ReceiveBound, ABoundBeforeTheFirstByteLetsNothingIn) {
  const TcpListener listener = Listen();
  const Connection connection = Connect(listener);
  const int server = connection.server.get();
  const std::optional<uint32_t> first = FirstSequence(server);
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(BoundReceived(server, *first - 10, 5));
  Flow flow(connection, 100);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(flow.Step(), 0);
    usleep(1000);
  }
  LiftBound(server);
  EXPECT_TRUE(Eventually([&] { return flow.Step() == 100; }));
}

TEST(ReceiveBound, WhatIsNotATcpSocketHasNeitherBoundNorTraffic) {
  EXPECT_FALSE(BoundReceived(-1, 0, 1));
  EXPECT_FALSE(TrafficOf(-1).has_value());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd out(ends[0]), in(ends[1]);
  EXPECT_FALSE(BoundReceived(out.get(), 0, 1));
  EXPECT_FALSE(TrafficOf(out.get()).has_value());
  const Fd local(socket(AF_UNIX, SOCK_STREAM, 0));
  EXPECT_FALSE(TrafficOf(local.get()).has_value());
  LiftBound(-1);
}

TEST(ReceiveBound, ACookieTellsSocketsApart) {
  const TcpListener listener = Listen();
  uint64_t before = 0;
  {
    const Connection connection = Connect(listener);
    before = CookieOf(connection.server.get());
    EXPECT_NE(before, 0);
    EXPECT_EQ(CookieOf(connection.server.get()), before);
    EXPECT_NE(CookieOf(connection.client.get()), before);
    const Fd again(dup(connection.server.get()));
    EXPECT_EQ(CookieOf(again.get()), before) << "the same socket by another descriptor";
  }
  const Connection later = Connect(listener);
  EXPECT_NE(CookieOf(later.server.get()), before) << "also where the descriptor has the same number";
  EXPECT_EQ(CookieOf(-1), 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Fd out(ends[0]), in(ends[1]);
  EXPECT_EQ(CookieOf(out.get()), 0);
}

}  // namespace
}  // namespace intrawarp::server
