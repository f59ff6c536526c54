// SPDX-License-Identifier: Apache-2.0
// Deadlines of an association that its other side tries to put off by sending on.
#include "server/dimse/association.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "server/dimse/connection.h"
#include "server/dimse/pdu.h"

namespace intrawarp::dimse {
namespace {

using std::chrono::milliseconds;

// A guard against a hang, not a claim on time.
constexpr std::chrono::seconds kGuard{30};

std::array<std::shared_ptr<Connection>, 2> ConnectedPair() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  return {std::make_shared<Connection>(fds[0], "here"), std::make_shared<Connection>(fds[1], "there")};
}

// Sends the same bytes over and over until it goes.
class Flood {
 public:
  Flood(std::shared_ptr<Connection> to, std::string bytes) : end_(Clock::now() + kGuard) {
    thread_ = std::thread([this, to = std::move(to), bytes = std::move(bytes)] {
      while (!over_ && Clock::now() < end_ && to->Write(bytes, end_).ok()) {
      }
    });
  }
  ~Flood() {
    over_ = true;
    thread_.join();
  }
  // Whether it still sends.
  bool IsRunning() const { return Clock::now() < end_; }

 private:
  const Clock::time_point end_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

TEST(ConnectionTest, CloseEndsWhileTheOtherSideSends) {
  auto [closing, sending] = ConnectedPair();
  Flood flood(sending, std::string(4096, 'x'));
  closing->Close(Clock::now() + milliseconds(200));
  EXPECT_TRUE(flood.IsRunning());
  closing->Abort();
}

TEST(AssociationTest, EmptyFragmentsPutOffNoDeadline) {
  auto [accepting, requesting] = ConnectedPair();
  // The negotiation has it, too.
  const Patience patience{milliseconds(1000), milliseconds(1000)};
  absl::StatusOr<std::unique_ptr<Association>> accepted = absl::UnknownError("");
  std::thread acceptor([&, to = accepting] {
    accepted = Association::Accept(to, patience, [](const AssociateRequest& request) {
      Association::Answer answer;
      answer.accepted = true;
      answer.accept.contexts = {{1, ContextResult::kAccepted, request.contexts[0].transfer_syntaxes[0]}};
      return answer;
    });
  });
  const auto requested = Association::Request(requesting, {}, {"A", "B", {{1, "1.2.3", {"1.2.4"}}}, {}, 16384});
  acceptor.join();
  ASSERT_TRUE(requested.ok()) << requested.status();
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  Flood flood(requesting, EncodeFragmentHeader(1, /*is_command=*/true, /*is_last=*/false, 0));
  EXPECT_EQ((*accepted)->ReceiveCommand().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(flood.IsRunning());
  accepting->Abort();
}

}  // namespace
}  // namespace intrawarp::dimse
