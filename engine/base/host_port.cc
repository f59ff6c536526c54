// SPDX-License-Identifier: Apache-2.0
#include "engine/base/host_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace intrawarp {
namespace {

constexpr int kMostPortDigits = 5;
constexpr int kMostPort = 65535;

absl::Status NotHostPort() {
  return absl::InvalidArgumentError("must be HOST:PORT, with an IPv6 address in brackets ([::1]:50051)");
}

bool ParsePort(absl::string_view text, int* port) {
  return !text.empty() && text.size() <= kMostPortDigits &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit) && absl::SimpleAtoi(text, port) &&
         *port <= kMostPort;
}

// An interface may follow the address ("fe80::1%eth0").
bool IsIpv6(absl::string_view text) {
  const std::string address(text.substr(0, text.find('%')));
  in6_addr parsed;
  return inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
}

bool IsNameLetter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_';
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  HostPort address;
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || !ParsePort(text.substr(colon + 1), &address.port)) return NotHostPort();
  absl::string_view host = text.substr(0, colon);
  address.is_ipv6 = absl::ConsumePrefix(&host, "[");
  if (address.is_ipv6 && (!absl::ConsumeSuffix(&host, "]") || !IsIpv6(host))) return NotHostPort();
  if (!address.is_ipv6 && (host.empty() || !std::all_of(host.begin(), host.end(), IsNameLetter))) return NotHostPort();
  address.host = std::string(host);
  return address;
}

std::string FormatHostPort(const HostPort& address) {
  return address.is_ipv6 ? absl::StrCat("[", address.host, "]:", address.port)
                         : absl::StrCat(address.host, ":", address.port);
}

}  // namespace intrawarp
