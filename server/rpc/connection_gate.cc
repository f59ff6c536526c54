// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/connection_gate.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace intrawarp::server {
namespace {

// How long a full table of descriptors keeps the listener from being polled.
constexpr int kNoDescriptorPauseMs = 100;

// The number of a socket; 0 when the descriptor is none.
ino_t SocketOf(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

// As gRPC sets the sockets that it accepts itself.
void SetOptions(int fd, std::chrono::milliseconds silence_timeout) {
  const int on = 1;
  const auto timeout_ms = static_cast<unsigned>(silence_timeout.count());
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

}  // namespace

ConnectionGate::ConnectionGate(TcpListener listener, Acceptor acceptor, int max_connections,
                               std::chrono::milliseconds silence_timeout, Metrics& metrics)
    : listener_(std::move(listener)),
      acceptor_(std::move(acceptor)),
      max_connections_(max_connections),
      silence_timeout_(silence_timeout),
      metrics_(metrics),
      thread_([this] { Loop(); }) {}

ConnectionGate::~ConnectionGate() { Stop(); }

void ConnectionGate::Stop() {
  if (!thread_.joinable()) return;
  stop_.Raise();
  thread_.join();
  listener_.reset();
}

int64_t ConnectionGate::connections() const {
  std::lock_guard<std::mutex> lock(mutex_);
  ForgetClosed();
  return static_cast<int64_t>(open_.size());
}

void ConnectionGate::Loop() {
  int pause_ms = -1;
  while (true) {
    pollfd polled[] = {{stop_.fd(), POLLIN, 0}, {listener_->fd(), POLLIN, 0}};
    poll(polled, pause_ms < 0 ? 2 : 1, pause_ms);
    if (polled[0].revents != 0) return;
    while (Fd fd = listener_->Accept()) Admit(std::move(fd));
    pause_ms = errno == EMFILE || errno == ENFILE ? kNoDescriptorPauseMs : -1;
  }
}

void ConnectionGate::Admit(Fd fd) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (static_cast<int>(open_.size()) >= max_connections_) ForgetClosed();
    if (static_cast<int>(open_.size()) >= max_connections_) return metrics_.CountRefusedConnection();
    open_.push_back({fd.get(), SocketOf(fd.get())});
  }
  SetOptions(fd.get(), silence_timeout_);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = fd.release();
  acceptor_->HandleNewConnection(&connection);
}

void ConnectionGate::ForgetClosed() const {
  std::erase_if(open_, [](const Open& open) { return SocketOf(open.fd) != open.socket; });
}

}  // namespace intrawarp::server
