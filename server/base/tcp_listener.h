// SPDX-License-Identifier: Apache-2.0
// TcpListener: a listening socket, for the ports that the server accepts connections on itself.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_SERVER_BASE_TCP_LISTENER_H_
#define INTRAWARP_SERVER_BASE_TCP_LISTENER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace intrawarp::server {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

class TcpListener {
 public:
  // `address` is HOST:PORT, with an IPv6 address in brackets; port 0 takes a free one. INVALID_ARGUMENT for another
  // form; UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<TcpListener> Bind(const std::string& address);

  // HOST:PORT with the real port.
  const std::string& address() const { return address_; }
  // Does not block.
  int fd() const { return fd_.get(); }
  // The next connection, which does not block either; empty when there is none just now, or no descriptor for it.
  Fd Accept() const;

 private:
  TcpListener(Fd fd, std::string address) : fd_(std::move(fd)), address_(std::move(address)) {}

  Fd fd_;
  std::string address_;
};

// An event that one thread raises and another one polls for.
class WakeEvent {
 public:
  WakeEvent();
  int fd() const { return fd_.get(); }
  void Raise() const;
  void Clear() const;

 private:
  const Fd fd_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_TCP_LISTENER_H_
