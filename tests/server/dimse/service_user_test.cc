// SPDX-License-Identifier: Apache-2.0
// Requests to an archive that answers on and on.
#include "server/dimse/service_user.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <thread>

#include "server/dimse/association.h"
#include "server/dimse/connection.h"
#include "server/dimse/elements.h"

namespace intrawarp::dimse {
namespace {

using std::chrono::milliseconds;

// A guard against a hang, not a claim on time.
constexpr std::chrono::seconds kGuard{60};

// Receives a C-MOVE and sends pending responses whose counts alternate, until the other side goes.
void AlternateCounts(Association& association) {
  const absl::StatusOr<ReceivedCommand> request = association.ReceiveCommand();
  ASSERT_TRUE(request.ok()) << request.status();
  const auto ignore = [](absl::string_view) { return absl::OkStatus(); };
  ASSERT_TRUE(association.ReceiveData(request->context, 1 << 10, ignore).ok());
  const Clock::time_point end = Clock::now() + kGuard;
  for (uint16_t i = 0; Clock::now() < end; ++i) {
    Command response = ResponseTo(request->command, kPending);
    response.has_data = false;
    response.elements.Set16(kRemaining, 5 - i % 2);
    response.elements.Set16(kRemaining + 1, 1 + i % 2);  // completed
    if (!association.Send(request->context, response).ok()) return;
    std::this_thread::sleep_for(milliseconds(5));
  }
  ADD_FAILURE() << "the request goes on while nothing moves";
}

TEST(ServiceUserTest, CountsThatOnlyAlternateAreNoProgress) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  const auto here = std::make_shared<Connection>(fds[0], "here");
  const auto there = std::make_shared<Connection>(fds[1], "there");
  std::thread archive([&] {
    const auto accepted = Association::Accept(there, {}, [](const AssociateRequest& request) {
      Association::Answer answer;
      answer.accepted = true;
      answer.accept.contexts = {{1, ContextResult::kAccepted, request.contexts[0].transfer_syntaxes[0]}};
      return answer;
    });
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    AlternateCounts(**accepted);
  });
  const auto association =
      Association::Request(here, {}, {"A", "B", {{1, kStudyRootMove, {"1.2.840.10008.1.2"}}}, {}, 16384});
  EXPECT_TRUE(association.ok()) << association.status();
  if (association.ok()) {
    RequestBounds bounds;
    bounds.stalled = milliseconds(300);
    int64_t responses = 0;
    const auto count = [&](const SubOperations&) { ++responses; };
    const auto moved = ServiceUser(**association).Move(Elements(), "B", 1, count, bounds);
    EXPECT_EQ(moved.status().code(), absl::StatusCode::kDeadlineExceeded) << moved.status();
    EXPECT_GT(responses, 0);
  }
  here->Abort();
  archive.join();
}

}  // namespace
}  // namespace intrawarp::dimse
