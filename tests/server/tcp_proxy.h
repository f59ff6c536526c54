// SPDX-License-Identifier: Apache-2.0
// A TCP proxy in front of a server, whose connections a test can cut: how a client that loses power, or its cable,
// looks to the server.
#ifndef INTRAWARP_TESTS_SERVER_TCP_PROXY_H_
#define INTRAWARP_TESTS_SERVER_TCP_PROXY_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace intrawarp {

class TcpProxy {
 public:
  // `server` is IPV4:PORT.
  explicit TcpProxy(const std::string& server) : server_(Address(server)) {
    sockaddr_in any = Address("127.0.0.1:0");
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener_, reinterpret_cast<sockaddr*>(&any), sizeof(any));
    listen(listener_, 8);
    socklen_t size = sizeof(any);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
    thread_ = std::thread([this] { Loop(); });
  }
  ~TcpProxy() { Cut(); }

  const std::string& address() const { return address_; }

  // Resets all connections and takes no more.
  void Cut() {
    cut_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  static sockaddr_in Address(const std::string& address) {
    const size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(address.c_str() + colon + 1)));
    inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
    return to;
  }

  static bool Forward(int from, int to) {
    char buffer[1 << 16];
    const ssize_t n = read(from, buffer, sizeof(buffer));
    for (ssize_t at = 0; at < n;) {
      const ssize_t written = send(to, buffer + at, n - at, MSG_NOSIGNAL);
      if (written <= 0) return false;
      at += written;
    }
    return n > 0;
  }

  static void Reset(int fd) {
    const linger now{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close(fd);
  }

  void Loop() {
    std::vector<std::pair<int, int>> pairs;  // client, server
    while (!cut_) {
      std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
      for (const auto& [client, server] : pairs) fds.insert(fds.end(), {{client, POLLIN, 0}, {server, POLLIN, 0}});
      if (poll(fds.data(), fds.size(), /*ms=*/10) <= 0) continue;
      for (size_t i = 0; i < pairs.size(); ++i) {
        const auto [client, server] = pairs[i];
        if (fds[1 + 2 * i].revents != 0 && !Forward(client, server)) cut_ = true;
        if (fds[2 + 2 * i].revents != 0 && !Forward(server, client)) cut_ = true;
      }
      if (fds[0].revents != 0) {
        const int client = accept(listener_, nullptr, nullptr);
        const int server = socket(AF_INET, SOCK_STREAM, 0);
        connect(server, reinterpret_cast<const sockaddr*>(&server_), sizeof(server_));
        pairs.emplace_back(client, server);
      }
    }
    close(listener_);
    for (const auto& [client, server] : pairs) Reset(client), Reset(server);
  }

  const sockaddr_in server_;
  std::string address_;
  int listener_ = -1;
  std::atomic<bool> cut_{false};
  std::thread thread_;
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_SERVER_TCP_PROXY_H_
