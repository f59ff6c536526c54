// SPDX-License-Identifier: Apache-2.0
// IdentitySource: who a caller is, by the files of credentials. A changed file is taken up by Reload; one that is
// broken leaves the last good one in use.
//
// Thread safety: Reload is one thread's at a time; the rest is safe for concurrent use.
#ifndef INTRAWARP_SERVER_IDENTITY_IDENTITY_SOURCE_H_
#define INTRAWARP_SERVER_IDENTITY_IDENTITY_SOURCE_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/identity/credentials.h"
#include "server/identity/exposure.h"
#include "server/identity/watched_file.h"

namespace intrawarp::server {

// A caller shows these.
struct Credentials {
  // The connection has TLS.
  bool is_encrypted = false;
  // The connection's certificate, verified; unset: none.
  std::optional<CertificateNames> certificate;
  // The values of the call's authorization headers.
  std::vector<std::string> authorizations;
};

class IdentitySource {
 public:
  explicit IdentitySource(const AccessFiles& files) : tokens_file_(files.tokens), identities_file_(files.identities) {}

  // Whether callers need an identity.
  bool is_required() const { return tokens_file_.is_set() || identities_file_.is_set(); }

  // Each takes its file up when it has changed: true when it had. INVALID_ARGUMENT and errors of reading, without the
  // file's path or content, once for each change.
  absl::StatusOr<bool> ReloadTokens();
  absl::StatusOr<bool> ReloadCertificates();

  // Anybody() where none is required. A call with a token is its bearer's, whatever the certificate; a call without one
  // is the certificate's. UNAUTHENTICATED says what is wrong, not why a credential is unknown.
  absl::StatusOr<Identity> Identify(const Credentials& shown) const;

 private:
  WatchedFile tokens_file_;
  WatchedFile identities_file_;
  mutable std::mutex mutex_;
  std::shared_ptr<const TokenTable> tokens_ = std::make_shared<const TokenTable>();
  std::shared_ptr<const CertificateTable> certificates_ = std::make_shared<const CertificateTable>();
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_IDENTITY_SOURCE_H_
