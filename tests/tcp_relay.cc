// SPDX-License-Identifier: Apache-2.0
#include "tests/tcp_relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

// A connection that has carried this much is more than a handshake.
constexpr int64_t kResumedBytes = 4096;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Bytes passed on, at most `most`; 0 at the end or after an error.
int64_t Forward(int from, int to, int64_t most) {
  char buffer[16384];
  const ssize_t got = read(from, buffer, static_cast<size_t>(std::min<int64_t>(sizeof(buffer), most)));
  for (ssize_t at = 0; at < got;) {
    const ssize_t put = send(to, buffer + at, static_cast<size_t>(got - at), MSG_NOSIGNAL);
    if (put <= 0) return 0;
    at += put;
  }
  return got > 0 ? got : 0;
}

}  // namespace

struct TcpRelay::Impl {
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
    if (connect(server, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0) Carry(client, server);
    close(client);
    close(server);
  }

  void Carry(int client, int server) {
    const Clock::time_point accepted = Clock::now();
    int64_t most = cuts.bytes ? cuts.bytes() : std::numeric_limits<int64_t>::max();
    int64_t carried = 0;
    pollfd fds[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    while (WaitFor(fds, 2)) {
      for (const int from : {0, 1}) {
        if (fds[from].revents == 0) continue;
        const int64_t bytes = Forward(fds[from].fd, fds[1 - from].fd, most - carried);
        if (bytes == 0) return;
        carried += bytes;
        if (carried >= kResumedBytes) NoteResumed(accepted);
        if (carried < most) continue;
        if (TakeCut()) return BreakOff();
        most = std::numeric_limits<int64_t>::max();
      }
    }
  }

  // Closes what is cut, or holds it until the relay ends.
  void BreakOff() {
    while (cuts.silent && !stopping) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  // One of the cuts that are left.
  bool TakeCut() {
    std::lock_guard<std::mutex> lock(mutex);
    if (cuts_made == cuts.count) return false;
    ++cuts_made;
    last_cut = Clock::now();
    return true;
  }

  // By a connection accepted after the last cut.
  void NoteResumed(Clock::time_point accepted) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!last_cut || accepted < *last_cut) return;
    waits.push_back(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - *last_cut));
    last_cut.reset();
  }

  uint16_t target_port = 0;
  Cuts cuts;
  std::atomic<bool> stopping{false};
  int listener = -1;
  uint16_t port = 0;
  std::mutex mutex;
  int cuts_made = 0;
  std::optional<Clock::time_point> last_cut;  // from which nobody has gone on yet
  std::vector<std::chrono::milliseconds> waits;
  std::thread acceptor;
  std::vector<std::thread> connections;  // of the acceptor, until it has ended
};

TcpRelay::TcpRelay(const std::string& target, Cuts cuts) : impl_(std::make_unique<Impl>()) {
  impl_->target_port = static_cast<uint16_t>(std::stoi(target.substr(target.rfind(':') + 1)));
  impl_->cuts = std::move(cuts);
  impl_->listener = socket(AF_INET, SOCK_STREAM, 0);
  const int receive_buffer_bytes = impl_->cuts.receive_buffer_bytes;
  if (receive_buffer_bytes > 0) {  // connections inherit it
    setsockopt(impl_->listener, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool ready = bind(impl_->listener, generic, length) == 0 && listen(impl_->listener, 64) == 0 &&
                     getsockname(impl_->listener, generic, &length) == 0;
  if (!ready) return;
  impl_->port = ntohs(address.sin_port);
  impl_->acceptor = std::thread([this] { impl_->Accept(); });
}

TcpRelay::~TcpRelay() {
  Cut();
  if (impl_->acceptor.joinable()) impl_->acceptor.join();
  for (std::thread& connection : impl_->connections) connection.join();
  close(impl_->listener);
}

std::string TcpRelay::address() const { return "127.0.0.1:" + std::to_string(impl_->port); }

void TcpRelay::Cut() { impl_->stopping = true; }

int TcpRelay::cuts() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->cuts_made;
}

void TcpRelay::EndWait() {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->last_cut.reset();
}

std::vector<std::chrono::milliseconds> TcpRelay::waits() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->waits;
}

}  // namespace intrawarp
