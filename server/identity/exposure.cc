// SPDX-License-Identifier: Apache-2.0
#include "server/identity/exposure.h"

#include <arpa/inet.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/host_port.h"
#include "engine/base/status_macros.h"

namespace intrawarp::server {
namespace {

absl::Status CheckFiles(const AccessFiles& files) {
  if (files.tls_cert.empty() != files.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls_cert and --tls_key: each needs the other");
  }
  if (!files.tls_client_ca.empty() && !files.has_tls()) {
    return absl::InvalidArgumentError("--tls_client_ca: needs --tls_cert and --tls_key");
  }
  if (!files.tokens.empty() && !files.has_tls()) {
    return absl::InvalidArgumentError("--tokens: needs --tls_cert and --tls_key; tokens never travel as plain text");
  }
  if (files.identities.empty() != files.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("--identities and --tls_client_ca: each needs the other");
  }
  return absl::OkStatus();
}

}  // namespace

bool IsLoopback(absl::string_view address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return false;
  const std::string& host = parsed->host;
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckExposure(const AccessFiles& files, absl::string_view listen, bool allow_insecure) {
  INTRAWARP_RETURN_IF_ERROR(CheckFiles(files));
  if (files.has_identities() || allow_insecure || IsLoopback(listen)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen=", listen, ": is not a loopback address, and ",
      files.has_tls() ? "callers have no identity: give --tokens, or --tls_client_ca and --identities"
                      : "the server has no TLS: give --tls_cert, --tls_key and --tokens (or --tls_client_ca and "
                        "--identities)",
      "; --insecure_no_identity_any_address serves whoever connects"));
}

}  // namespace intrawarp::server
