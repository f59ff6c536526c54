// SPDX-License-Identifier: Apache-2.0
// IdentitySource: who a caller is, by the files of credentials. Reload takes a changed file up once the change has
// settled (watched_file.h); a file that is broken, or empty after one was read, leaves the last good one in use. A file
// that lets nobody in any more holds a comment.
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

  // Each takes its file up when a change of it has settled at `now`: true when one had. INVALID_ARGUMENT and errors of
  // reading, without the file's path or content, once for each change.
  absl::StatusOr<bool> ReloadTokens(WatchedFile::Time now);
  absl::StatusOr<bool> ReloadCertificates(WatchedFile::Time now);

  // Anybody() where none is required. A call with a token is its bearer's, whatever the certificate; a call without one
  // is the certificate's. UNAUTHENTICATED says what is wrong, not why a credential is unknown.
  absl::StatusOr<Identity> Identify(const Credentials& shown) const;

 private:
  WatchedFile tokens_file_;
  WatchedFile identities_file_;
  mutable std::mutex mutex_;
  // Null before the first that was read.
  std::shared_ptr<const TokenTable> tokens_;
  std::shared_ptr<const CertificateTable> certificates_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_IDENTITY_SOURCE_H_
