// SPDX-License-Identifier: Apache-2.0
#include "tests/client/cutting_relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace intrawarp::client {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Bytes passed on; 0 at the end or after an error.
int64_t Forward(int from, int to) {
  char buffer[16384];
  const ssize_t got = read(from, buffer, sizeof(buffer));
  for (ssize_t at = 0; at < got;) {
    const ssize_t put = send(to, buffer + at, static_cast<size_t>(got - at), MSG_NOSIGNAL);
    if (put <= 0) return 0;
    at += put;
  }
  return got > 0 ? got : 0;
}

}  // namespace

struct CuttingRelay::Impl {
  // Until one of the sockets can be read; false when the relay ends.
  bool WaitFor(pollfd* fds, nfds_t count) const {
    while (!stopping) {
      if (poll(fds, count, 10) > 0) return true;
    }
    return false;
  }

  void Accept() {
    pollfd waiting{listener, POLLIN, 0};
    while (WaitFor(&waiting, 1)) {
      const int client = accept(listener, nullptr, nullptr);
      connections.emplace_back([this, client] { Relay(client); });
    }
  }

  void Relay(int client) {
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in target = Loopback(target_port);
    int64_t carried = 0;
    bool open = connect(server, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0;
    pollfd fds[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    while (open && WaitFor(fds, 2)) {
      for (int from : {0, 1}) {
        if (!open || fds[from].revents == 0) continue;
        const int64_t bytes = Forward(fds[from].fd, fds[1 - from].fd);
        carried += bytes;
        open = bytes > 0 && !(carried > bytes_before_cut && Cut());
      }
    }
    close(client);
    close(server);
  }

  // Takes one of the cuts that are left.
  bool Cut() {
    int left = cuts_left;
    while (left > 0 && !cuts_left.compare_exchange_weak(left, left - 1)) {
    }
    if (left > 0) ++cuts_made;
    return left > 0;
  }

  uint16_t target_port = 0;
  int64_t bytes_before_cut = 0;
  std::atomic<int> cuts_left{0};
  std::atomic<int> cuts_made{0};
  std::atomic<bool> stopping{false};
  int listener = -1;
  uint16_t port = 0;
  std::thread acceptor;
  std::vector<std::thread> connections;  // of the acceptor, until it has ended
};

CuttingRelay::CuttingRelay(const std::string& target, int64_t bytes_before_cut, int cuts)
    : impl_(std::make_unique<Impl>()) {
  impl_->target_port = static_cast<uint16_t>(std::stoi(target.substr(target.rfind(':') + 1)));
  impl_->bytes_before_cut = bytes_before_cut;
  impl_->cuts_left = cuts;
  impl_->listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool ready = bind(impl_->listener, generic, length) == 0 && listen(impl_->listener, 8) == 0 &&
                     getsockname(impl_->listener, generic, &length) == 0;
  if (!ready) return;
  impl_->port = ntohs(address.sin_port);
  impl_->acceptor = std::thread([this] { impl_->Accept(); });
}

CuttingRelay::~CuttingRelay() {
  impl_->stopping = true;
  if (impl_->acceptor.joinable()) impl_->acceptor.join();
  for (std::thread& connection : impl_->connections) connection.join();
  close(impl_->listener);
}

std::string CuttingRelay::address() const { return "127.0.0.1:" + std::to_string(impl_->port); }
int CuttingRelay::cuts() const { return impl_->cuts_made; }

}  // namespace intrawarp::client
