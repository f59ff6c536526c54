// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_connections.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <utility>
#include <vector>

#include "server/base/seams.h"
#include "server/base/tcp_listener.h"

namespace intrawarp::server {
namespace {

class Silent final : public PageStream {
 public:
  explicit Silent(const Seams& seams) : PageStream(seams) { SetRecorded(); }

 private:
  bool Begin() override { return false; }
  size_t piece_bytes() const override { return 0; }
  size_t ReadPiece(size_t, char*, size_t) const override { return 0; }
};

// A socket of which the test sees whether it was shut.
class Socket {
 public:
  Socket() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    own_ = Fd(fds[0]);
    other_ = Fd(fds[1]);
  }
  int fd() const { return own_.get(); }
  bool is_shut() const {
    char byte;
    return recv(other_.get(), &byte, 1, 0) == 0;
  }

 private:
  Fd own_, other_;
};

using Time = PageConnections::Time;

TEST(PageConnections, TheNetworkWithMostGivesWay) {
  PageConnections connections(4, 8);
  std::array<Socket, 6> sockets;
  const auto known = connections.Enter(sockets[0].fd(), "theatre", Time());
  connections.CallerKnown(known);
  for (int i = 1; i < 4; ++i) connections.Enter(sockets[i].fd(), "flood", Time());
  connections.Enter(sockets[4].fd(), "flood", Time());
  EXPECT_TRUE(sockets[1].is_shut());
  EXPECT_FALSE(sockets[0].is_shut());
  connections.Enter(sockets[5].fd(), "other", Time());
  EXPECT_TRUE(sockets[2].is_shut());
  EXPECT_FALSE(sockets[0].is_shut());
}

TEST(PageConnections, OfOneNetworkStrangersGiveWayFirst) {
  PageConnections connections(2, 8);
  std::array<Socket, 3> sockets;
  connections.CallerKnown(connections.Enter(sockets[0].fd(), "proxy", Time()));
  connections.Enter(sockets[1].fd(), "proxy", Time());
  connections.Enter(sockets[2].fd(), "proxy", Time());
  EXPECT_FALSE(sockets[0].is_shut());
  EXPECT_TRUE(sockets[1].is_shut());
}

TEST(PageConnections, TheOldestStreamOfACallerEnds) {
  const Seams seams = SystemSeams();
  PageConnections connections(8, 2);
  std::array<Socket, 4> sockets;
  std::vector<std::shared_ptr<Silent>> streams;
  for (const char* caller : {"or3", "or3", "or5", "or3"}) {
    const auto id = connections.Enter(sockets[streams.size()].fd(), "proxy", Time());
    streams.push_back(std::make_shared<Silent>(seams));
    connections.BeginStream(id, caller, streams.back());
  }
  char byte;
  EXPECT_FALSE(streams[0]->Read(&byte, 1));
  EXPECT_EQ(streams[1]->Read(&byte, 1), std::optional<size_t>(0));
  EXPECT_EQ(streams[2]->Read(&byte, 1), std::optional<size_t>(0));
}

TEST(PageConnections, ThoseThatAskNothingAreShut) {
  PageConnections connections(8, 2);
  std::array<Socket, 2> sockets;
  connections.Enter(sockets[0].fd(), "a", Time());
  const auto asked = connections.Enter(sockets[1].fd(), "a", Time());
  connections.RequestCame(asked);
  connections.ShutSilent(Time() + std::chrono::seconds(6), std::chrono::seconds(5));
  EXPECT_TRUE(sockets[0].is_shut());
  EXPECT_FALSE(sockets[1].is_shut());
  connections.RequestEnded(asked, Time() + std::chrono::seconds(6));
  connections.ShutSilent(Time() + std::chrono::seconds(12), std::chrono::seconds(5));
  EXPECT_TRUE(sockets[1].is_shut());
}

}  // namespace
}  // namespace intrawarp::server
