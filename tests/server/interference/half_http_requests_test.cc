// SPDX-License-Identifier: Apache-2.0
// A hundred clients of the HTTP port send half a request each, and wait.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/server/interference/interference_fixture.h"

namespace intrawarp::server {
namespace {

// A connection to IPV4:PORT.
class Socket {
 public:
  explicit Socket(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    // A guard: whoever is not answered for so long is not answered.
    timeval guard{};
    guard.tv_sec = 20;
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &guard, sizeof(guard));
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool Write(const std::string& text) const {
    return connected_ && send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  std::string ReadAll() const {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof(buffer), 0)) > 0;) all.append(buffer, n);
    return all;
  }

 private:
  const int fd_;
  bool connected_ = false;
};

class HalfHttpRequestsTest : public InterferenceTest {
 protected:
  void HangOn() {
    for (int n = 0; n < 100; ++n) {
      half_.push_back(std::make_unique<Socket>(test_.server->http_address()));
      half_.back()->Write("GET /metrics HTTP/1.1\r\nHost: slow");
    }
  }
  std::string Get(const std::string& path) const {
    const Socket socket(test_.server->http_address());
    socket.Write("GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
    return socket.ReadAll();
  }

  std::vector<std::unique_ptr<Socket>> half_;
};

TEST_F(HalfHttpRequestsTest, LeaveHealthAndFramesAlone) {
  NavigationClient client(address(), PatientSession());
  ExpectFrames("before", client, 2);
  EXPECT_THAT(Get("/healthz"), testing::HasSubstr(" 200 "));
  HangOn();
  ExpectFrames("in an open session", client);
  ExpectNewSession("in a new session");
  const std::string health = Get("/healthz"), metrics = Get("/metrics");
  std::cout << "[ FRAMES   ] /healthz: " << health.size() << " bytes, /metrics: " << metrics.size() << " bytes\n";
  EXPECT_THAT(health, testing::HasSubstr(" 200 "));
  EXPECT_THAT(metrics, testing::HasSubstr(" 200 "));
}

}  // namespace
}  // namespace intrawarp::server
