// SPDX-License-Identifier: Apache-2.0
#include "server/base/tcp_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/host_port.h"

namespace intrawarp::server {
namespace {

// In a flood, whoever comes waits behind those that came before instead of being lost.
constexpr int kBacklog = 4096;

int PortOf(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return 0;
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(name).sin_port);
}

// Empty when it cannot be bound; errno says why.
Fd Listen(const addrinfo& to) {
  Fd fd(socket(to.ai_family, to.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, to.ai_protocol));
  if (!fd) return fd;
  const int on = 1, off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (to.ai_family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  const bool listens = bind(fd.get(), to.ai_addr, to.ai_addrlen) == 0 && listen(fd.get(), kBacklog) == 0;
  return listens ? std::move(fd) : Fd();
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<TcpListener> TcpListener::Bind(const std::string& address) {
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", address, ": ", parsed.status().message()));
  }
  HostPort to_serve = *std::move(parsed);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(to_serve.host.c_str(), absl::StrCat(to_serve.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    if (Fd fd = Listen(*to)) {
      to_serve.port = PortOf(fd.get());
      return TcpListener(std::move(fd), FormatHostPort(to_serve));
    }
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", std::strerror(errno)));
}

Fd TcpListener::Accept() const { return Fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); }

WakeEvent::WakeEvent() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void WakeEvent::Raise() const {
  const uint64_t one = 1;
  (void)!write(fd_.get(), &one, sizeof(one));
}

void WakeEvent::Clear() const {
  uint64_t count = 0;
  (void)!read(fd_.get(), &count, sizeof(count));
}

}  // namespace intrawarp::server
