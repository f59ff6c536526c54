// SPDX-License-Identifier: Apache-2.0
// An archive of a test's own: it accepts every association and does with it what the test says.
#ifndef INTRAWARP_TESTS_SERVER_PACS_FAKE_ARCHIVE_H_
#define INTRAWARP_TESTS_SERVER_PACS_FAKE_ARCHIVE_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/dimse/association.h"
#include "server/dimse/elements.h"
#include "server/dimse/service_user.h"

namespace intrawarp::server {

class FakeArchive {
 public:
  using Serve = std::function<void(dimse::Association&, dimse::Connection&)>;

  // `serve` runs on a thread for each association.
  explicit FakeArchive(Serve serve) : serve_(std::move(serve)) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(name);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &size), 0);
    port_ = ntohs(name.sin_port);
    listening_ = std::thread([this] { Listen(); });
  }
  ~FakeArchive() {
    stopping_ = true;
    listening_.join();
    for (const auto& connection : connections_) connection->Abort();
    for (std::thread& thread : threads_) thread.join();
    close(fd_);
  }

  int port() const { return port_; }

  // The response to a request of queries and retrievals; `counts`: remaining, completed, failed, warning.
  static dimse::Command Response(const dimse::Command& request, uint16_t status,
                                 const std::vector<uint16_t>& counts = {}, bool has_data = false) {
    dimse::Command response = dimse::ResponseTo(request, status);
    response.has_data = has_data;
    for (size_t i = 0; i < counts.size(); ++i) {
      response.elements.Set16(dimse::kRemaining + static_cast<dimse::Tag>(i), counts[i]);
    }
    return response;
  }
  // The identifier of a request, which must be received.
  static dimse::Elements Identifier(dimse::Association& association, const dimse::ReceivedCommand& request) {
    std::string bytes;
    EXPECT_TRUE(association
                    .ReceiveData(request.context, 1 << 20,
                                 [&](absl::string_view part) {
                                   bytes += std::string(part);
                                   return absl::OkStatus();
                                 })
                    .ok());
    return dimse::Elements::Parse(bytes).value_or(dimse::Elements());
  }
  // A match of a query for the instances of a series.
  static dimse::Elements Image(const std::string& series, const std::string& uid, const std::string& sop_class) {
    dimse::Elements match;
    match.SetUid(0x00080016, sop_class);
    match.SetUid(0x00080018, uid);
    match.SetText(0x00080052, "IMAGE");
    match.SetUid(0x0020000e, series);
    return match;
  }

 private:
  void Listen() {
    while (!stopping_) {
      pollfd polled{fd_, POLLIN, 0};
      if (poll(&polled, 1, 50) <= 0) continue;
      const int taken = accept4(fd_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (taken < 0) continue;
      auto connection = std::make_shared<dimse::Connection>(taken, "127.0.0.1");
      connections_.push_back(connection);
      threads_.emplace_back([this, connection] { Take(connection); });
    }
  }
  void Take(const std::shared_ptr<dimse::Connection>& connection) {
    auto association = dimse::Association::Accept(connection, {}, [](const dimse::AssociateRequest& request) {
      dimse::Association::Answer answer;
      answer.accepted = true;
      answer.accept.max_pdu_bytes = dimse::kMaxPduBytes;
      answer.accept.roles = request.roles;
      for (const dimse::PresentationContext& context : request.contexts) {
        answer.accept.contexts.push_back(
            {context.id, dimse::ContextResult::kAccepted, context.transfer_syntaxes.front()});
      }
      return answer;
    });
    if (association.ok()) serve_(**association, *connection);
  }

  const Serve serve_;
  int fd_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::list<std::shared_ptr<dimse::Connection>> connections_;
  std::list<std::thread> threads_;
  std::thread listening_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_PACS_FAKE_ARCHIVE_H_
