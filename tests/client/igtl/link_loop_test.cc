// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/link_loop.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/eventually.h"

namespace intrawarp::igtl {
namespace {

using std::chrono::milliseconds;

std::string Packed(const std::string& device, absl::string_view content) {
  return PackMessage({.header_version = 1, .type = "STRING", .device = device}, {content});
}

OutMessage Out(const std::string& device, absl::string_view content) {
  return {device, std::make_shared<const std::string>(Packed(device, content))};
}

// A blocking peer.
class Peer {
 public:
  explicit Peer(int port, int receive_buffer = 0) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) {
      setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  explicit Peer(FileDescriptor socket) : socket_(std::move(socket)) {}

  void Put(absl::string_view bytes) {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), bytes.size());
  }
  // Whether the next `size` bytes came before the end.
  std::string Get(size_t size) {
    std::string bytes;
    while (bytes.size() < size) {
      pollfd poll_set = {socket_.get(), POLLIN, 0};
      if (poll(&poll_set, 1, 5000) <= 0) return "nothing came";
      char buffer[4096];
      const ssize_t got = recv(socket_.get(), buffer, std::min(sizeof(buffer), size - bytes.size()), 0);
      if (got <= 0) return bytes;
      bytes.append(buffer, static_cast<size_t>(got));
    }
    return bytes;
  }
  bool IsClosed() { return Get(1).empty(); }

 private:
  FileDescriptor socket_;
};

class LinkLoopTest : public ::testing::Test {
 protected:
  void Start(LinkOptions options = {}) {
    LinkLoop::Handler handler;
    handler.on_message = [this](LinkLoop::PeerId peer, absl::StatusOr<Message> message) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (message.ok()) contents_.push_back(std::string(message->content()));
      if (message.ok() && message->content() == "ask") loop_->Send(peer, Out("Answer", "answer"));
    };
    handler.on_connected = [this](LinkLoop::PeerId, bool) { ++connected_; };
    auto loop = LinkLoop::Create(options, handler, &counters_);
    ASSERT_TRUE(loop.ok());
    loop_ = *std::move(loop);
    port_ = *loop_->Listen({"127.0.0.1", 0});
  }
  void Run() {
    thread_ = std::thread([this] { loop_->Run(); });
  }
  void TearDown() override {
    if (loop_ != nullptr) loop_->Stop();
    if (thread_.joinable()) thread_.join();
  }
  size_t Came() {
    std::lock_guard<std::mutex> lock(mutex_);
    return contents_.size();
  }

  Counters counters_;
  std::unique_ptr<LinkLoop> loop_;
  int port_ = 0;
  std::atomic<int> connected_{0};
  std::mutex mutex_;
  std::vector<std::string> contents_;
  std::thread thread_;
};

TEST_F(LinkLoopTest, AnswersThePeerThatAsksAndBroadcastsToAll) {
  Start();
  Run();
  Peer one(port_), two(port_);
  ASSERT_TRUE(Eventually([&] { return connected_ == 2; }));
  // One byte a write.
  for (const char c : Packed("Device", "ask")) one.Put(absl::string_view(&c, 1));
  const std::string answer = Packed("Answer", "answer");
  EXPECT_EQ(one.Get(answer.size()), answer);
  loop_->Broadcast(Out("All", "all"));
  const std::string all = Packed("All", "all");
  EXPECT_EQ(one.Get(all.size()), all);
  EXPECT_EQ(two.Get(all.size()), all);
}

TEST_F(LinkLoopTest, AHostileSizeEndsOnlyItsConnection) {
  Start();
  Run();
  Peer hostile(port_), good(port_);
  std::string bytes = Packed("Device", "body");
  bytes[42] = '\x80';  // body size 2^63 + 4
  hostile.Put(bytes);
  EXPECT_TRUE(hostile.IsClosed());
  good.Put(Packed("Device", "good"));
  EXPECT_TRUE(Eventually([&] { return Came() == 1; }));
  EXPECT_EQ(counters_.LostAt(Lost::kContent), 1);
}

TEST_F(LinkLoopTest, ASlowConsumerGetsTheNewestAndDelaysNobody) {
  Start({.stall_timeout = milliseconds(20000)});
  Run();
  Peer slow(port_, 4096), fast(port_);
  ASSERT_TRUE(Eventually([&] { return connected_ == 2; }));
  const std::string filling(size_t{1} << 20, 'x');
  constexpr int kMessages = 40;
  for (int i = 0; i < kMessages; ++i) {
    const OutMessage message = Out("Image", absl::StrCat(1000 + i, filling));
    loop_->Broadcast(message);
    EXPECT_EQ(fast.Get(message.bytes->size()), *message.bytes) << i;
  }
  // The slow one gets the message that it had begun, and then the newest.
  EXPECT_GE(counters_.LostAt(Lost::kConsumer), kMessages - 10);
  const size_t size = Packed("Image", absl::StrCat(1000, filling)).size();
  std::string last;
  for (int64_t i = 0; i < kMessages - counters_.LostAt(Lost::kConsumer); ++i) last = slow.Get(size);
  EXPECT_EQ(last.substr(kHeaderBytes, 4), absl::StrCat(1000 + kMessages - 1));
}

TEST_F(LinkLoopTest, DisconnectsPeersThatStall) {
  Start({.stall_timeout = milliseconds(200)});
  Run();
  Peer idle(port_), within(port_), deaf(port_, 4096);
  within.Put(Packed("Device", "a message").substr(0, 60));
  EXPECT_TRUE(within.IsClosed());
  loop_->Broadcast(Out("Image", std::string(size_t{32} << 20, 'x')));
  std::thread reader([&] { idle.Get(size_t{32} << 20); });
  EXPECT_TRUE(Eventually([&] { return counters_.disconnections == 2; }));
  reader.join();
  // A peer that is between messages may be silent.
  idle.Put(Packed("Device", "still here"));
  EXPECT_TRUE(Eventually([&] { return Came() == 1; }));
}

TEST_F(LinkLoopTest, ConnectsAgainToAPeerThatComesBack) {
  const SocketAddress any = *Resolve({"127.0.0.1", 0});
  FileDescriptor listener = *ListenOn(any);
  const int port = BoundPort(listener);
  Start({.reconnect_pause = milliseconds(20)});
  ASSERT_TRUE(loop_->Connect({"127.0.0.1", port}, true).ok());
  Run();
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(Eventually([&] { return connected_ == i; }));
    Peer peer(FileDescriptor(accept4(listener.get(), nullptr, nullptr, 0)));
    loop_->Broadcast(Out("All", "all"));
    const std::string all = Packed("All", "all");
    EXPECT_EQ(peer.Get(all.size()), all) << i;
  }
}

TEST_F(LinkLoopTest, RefusesOnePeerTooMany) {
  Start({.max_peers = 1});
  Run();
  Peer first(port_);
  ASSERT_TRUE(Eventually([&] { return connected_ == 1; }));
  Peer second(port_);
  EXPECT_TRUE(second.IsClosed());
}

TEST_F(LinkLoopTest, ServesMetrics) {
  Start();
  const int port = *loop_->ServeMetrics({"127.0.0.1", 0}, [this] { return counters_.Text(); });
  Run();
  Peer scraper(port);
  scraper.Put("GET /metrics HTTP/1.1\r\n\r\n");
  const std::string text = scraper.Get(size_t{1} << 20);
  EXPECT_NE(text.find("200 OK"), std::string::npos);
  EXPECT_NE(text.find("intrawarp_igtl_messages_lost_total{where=\"consumer\"} 0"), std::string::npos);
  Peer other(port);
  other.Put("POST / HTTP/1.1\r\n\r\n");
  EXPECT_NE(other.Get(size_t{1} << 20).find("405"), std::string::npos);
}

}  // namespace
}  // namespace intrawarp::igtl
