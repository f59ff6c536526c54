// SPDX-License-Identifier: Apache-2.0
// A TCP relay on a port of its own, which can be cut: what a server sees when its client's machine or cable goes.
#ifndef INTRAWARP_TESTS_SERVER_TCP_RELAY_H_
#define INTRAWARP_TESTS_SERVER_TCP_RELAY_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

namespace intrawarp::server {

// Relays one connection to 127.0.0.1:PORT.
class TcpRelay {
 public:
  // `target`: HOST:PORT, of which the port counts.
  explicit TcpRelay(const std::string& target)
      : target_port_(static_cast<uint16_t>(std::stoi(target.substr(target.rfind(':') + 1)))),
        listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t length = sizeof(address);
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener_, 1) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      return;
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~TcpRelay() {
    Cut();
    if (thread_.joinable()) thread_.join();
    close(listener_);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Closes the connection on both sides, and takes no other.
  void Cut() { cut_ = true; }

 private:
  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }
  // False once cut.
  bool WaitFor(pollfd* fds, int count) const {
    while (!cut_) {
      if (poll(fds, count, 10) > 0) return true;
    }
    return false;
  }
  static bool Forward(int from, int to) {
    char buffer[16384];
    const ssize_t got = read(from, buffer, sizeof(buffer));
    for (ssize_t at = 0; at < got;) {
      const ssize_t put = send(to, buffer + at, got - at, MSG_NOSIGNAL);
      if (put <= 0) return false;
      at += put;
    }
    return got > 0;
  }
  void Run() {
    pollfd waiting{listener_, POLLIN, 0};
    if (!WaitFor(&waiting, 1)) return;
    const int client = accept(listener_, nullptr, nullptr), server = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in target = Loopback(target_port_);
    bool open = connect(server, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0;
    pollfd fds[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    while (open && WaitFor(fds, 2)) {
      if (fds[0].revents != 0) open = Forward(client, server);
      if (open && fds[1].revents != 0) open = Forward(server, client);
    }
    close(client);
    close(server);
  }

  const uint16_t target_port_;
  const int listener_;
  uint16_t port_ = 0;
  std::atomic<bool> cut_ = false;
  std::thread thread_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_TCP_RELAY_H_
