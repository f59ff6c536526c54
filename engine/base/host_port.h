// SPDX-License-Identifier: Apache-2.0
// HOST:PORT, as flags and files name it.
//
// Thread safety: pure functions.
#ifndef INTRAWARP_ENGINE_BASE_HOST_PORT_H_
#define INTRAWARP_ENGINE_BASE_HOST_PORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
  bool is_ipv6 = false;  // stood in brackets
};

// A name or an IPv4 address, or an IPv6 address in brackets ("[::1]:50051"), and a port of 0 to 65535.
// INVALID_ARGUMENT, which tells the form: for an IPv6 address without brackets, too, whose last part would be the port.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);
// The form that ParseHostPort reads.
std::string FormatHostPort(const HostPort& address);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_HOST_PORT_H_
