// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::igtl {
namespace {

constexpr int kUnsentBytes = 64 << 10;
constexpr int kBacklog = 16;

absl::Status SystemError(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<FileDescriptor> NewSocket(const SocketAddress& address) {
  FileDescriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) return SystemError("socket");
  return socket;
}

void SetOption(const FileDescriptor& socket, int level, int option, int value) {
  (void)setsockopt(socket.get(), level, option, &value, sizeof(value));
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<SocketAddress> Resolve(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(FormatHostPort(address), ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  SocketAddress resolved;
  std::memcpy(&resolved.storage, list->ai_addr, list->ai_addrlen);
  resolved.bytes = list->ai_addrlen;
  return resolved;
}

absl::StatusOr<FileDescriptor> ListenOn(const SocketAddress& address) {
  INTRAWARP_ASSIGN_OR_RETURN(FileDescriptor socket, NewSocket(address));
  SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0) {
    return SystemError("bind");
  }
  if (listen(socket.get(), kBacklog) != 0) return SystemError("listen");
  return socket;
}

absl::StatusOr<FileDescriptor> StartConnecting(const SocketAddress& address) {
  INTRAWARP_ASSIGN_OR_RETURN(FileDescriptor socket, NewSocket(address));
  const int result = connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes);
  if (result != 0 && errno != EINPROGRESS) return SystemError("connect");
  return socket;
}

int BoundPort(const FileDescriptor& socket) {
  SocketAddress bound;
  bound.bytes = sizeof(bound.storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.bytes) != 0) return 0;
  return bound.storage.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(bound.storage).sin6_port)
                                             : ntohs(reinterpret_cast<const sockaddr_in&>(bound.storage).sin_port);
}

void PrepareStream(const FileDescriptor& socket, std::chrono::milliseconds stall_timeout) {
  SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytes);
  SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(stall_timeout.count()));
  SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
}

}  // namespace intrawarp::igtl
