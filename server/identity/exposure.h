// SPDX-License-Identifier: Apache-2.0
// The conditions under which a server may start: the files that say who may call it, and the addresses that it may then
// serve on.
#ifndef INTRAWARP_SERVER_IDENTITY_EXPOSURE_H_
#define INTRAWARP_SERVER_IDENTITY_EXPOSURE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace intrawarp::server {

// Paths; empty: none.
struct AccessFiles {
  // The server's certificate chain and private key, as PEM. Both or none.
  std::string tls_cert;
  std::string tls_key;
  // The authorities (PEM) by which certificates of clients are verified.
  std::string tls_client_ca;
  // credentials.h.
  std::string tokens;
  std::string identities;

  bool has_tls() const { return !tls_cert.empty(); }
  // Whether callers need an identity.
  bool has_identities() const { return !tokens.empty() || !identities.empty(); }
};

// Whether HOST:PORT can be reached from this machine alone: 127.0.0.0/8, [::1] or localhost.
bool IsLoopback(absl::string_view address);

// INVALID_ARGUMENT names the flag for files that do not go together, and for an address other than a loopback one that
// would be served without TLS or without identities unless `allow_insecure`.
absl::Status CheckExposure(const AccessFiles& files, absl::string_view listen, bool allow_insecure);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_EXPOSURE_H_
