// SPDX-License-Identifier: Apache-2.0
#include "server/base/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace intrawarp::server {
namespace {

constexpr size_t kNetworkBytes = 8;

template <typename Address>
std::string Text(int family, const Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  return inet_ntop(family, &address, text, sizeof(text)) == nullptr ? "" : text;
}

// An interface ("%eth0") is not part of the address.
std::string HostOf(const in6_addr& address) {
  if (!IN6_IS_ADDR_V4MAPPED(&address)) return Text(AF_INET6, address);
  in_addr v4;
  std::memcpy(&v4, address.s6_addr + 12, sizeof(v4));
  return Text(AF_INET, v4);
}

}  // namespace

std::optional<PeerAddress> PeerOf(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return std::nullopt;
  if (name.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(name);
    return PeerAddress{Text(AF_INET, v4.sin_addr), ntohs(v4.sin_port)};
  }
  if (name.ss_family != AF_INET6) return std::nullopt;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(name);
  return PeerAddress{HostOf(v6.sin6_addr), ntohs(v6.sin6_port)};
}

std::optional<PeerAddress> ParsePeer(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) return std::nullopt;
  const std::string plain =
      absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5b", "["}, {"%5D", "]"}, {"%5d", "]"}, {"%25", "%"}});
  const size_t colon = plain.rfind(':');
  PeerAddress address;
  if (colon == std::string::npos || !absl::SimpleAtoi(plain.substr(colon + 1), &address.port)) return std::nullopt;
  absl::string_view host = absl::string_view(plain).substr(0, colon);
  absl::ConsumePrefix(&host, "[");
  absl::ConsumeSuffix(&host, "]");
  const std::string text(host.substr(0, host.find('%')));
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    address.host = Text(AF_INET, v4);
  } else if (inet_pton(AF_INET6, text.c_str(), &v6) == 1) {
    address.host = HostOf(v6);
  } else {
    return std::nullopt;
  }
  return address;
}

std::string NetworkOf(const PeerAddress& peer) {
  in6_addr v6;
  if (inet_pton(AF_INET6, peer.host.c_str(), &v6) != 1) return peer.host;
  std::fill(v6.s6_addr + kNetworkBytes, v6.s6_addr + sizeof(v6.s6_addr), 0);
  return absl::StrCat(Text(AF_INET6, v6), "/64");
}

}  // namespace intrawarp::server
