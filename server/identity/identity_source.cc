// SPDX-License-Identifier: Apache-2.0
#include "server/identity/identity_source.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"

namespace intrawarp::server {
namespace {

bool IsEmpty(absl::string_view text) { return absl::StripAsciiWhitespace(text).empty(); }

// Puts the table of a changed file in the place of `table`, which `mutex` guards; false when the file is as before.
template <typename Table>
absl::StatusOr<bool> Reload(WatchedFile& file, WatchedFile::Time now, std::mutex& mutex,
                            std::shared_ptr<const Table>& table) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<std::string> text, file.Changed(now));
  if (!text) return false;
  INTRAWARP_ASSIGN_OR_RETURN(Table parsed, Table::Parse(*text));
  auto taken = std::make_shared<const Table>(std::move(parsed));
  std::lock_guard<std::mutex> lock(mutex);
  if (table != nullptr && IsEmpty(*text)) return absl::InvalidArgumentError("is empty");
  table.swap(taken);  // the old one is let go of after the lock
  return true;
}

// The token of an authorization header; empty when it is not a bearer's.
absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return authorization.substr(kScheme.size());
}

}  // namespace

absl::StatusOr<bool> IdentitySource::ReloadTokens(WatchedFile::Time now) {
  return Reload(tokens_file_, now, mutex_, tokens_);
}

absl::StatusOr<bool> IdentitySource::ReloadCertificates(WatchedFile::Time now) {
  return Reload(identities_file_, now, mutex_, certificates_);
}

absl::StatusOr<Identity> IdentitySource::Identify(const Credentials& shown) const {
  if (!is_required()) return Anybody();
  std::shared_ptr<const TokenTable> tokens;
  std::shared_ptr<const CertificateTable> certificates;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tokens = tokens_;
    certificates = certificates_;
  }
  if (!shown.authorizations.empty()) {
    if (!shown.is_encrypted) return absl::UnauthenticatedError("tokens are not taken over plain text");
    if (shown.authorizations.size() > 1) return absl::UnauthenticatedError("the call has several tokens");
    const std::optional<Identity> bearer =
        tokens == nullptr ? std::nullopt : tokens->Find(BearerToken(shown.authorizations[0]));
    if (!bearer) return absl::UnauthenticatedError("the token is not one of this server's");
    return *bearer;
  }
  if (!shown.certificate) return absl::UnauthenticatedError("the call has no token, and the connection no certificate");
  const std::optional<Identity> holder =
      certificates == nullptr ? std::nullopt : certificates->Find(*shown.certificate);
  if (!holder) return absl::UnauthenticatedError("the certificate is not one of this server's callers");
  return *holder;
}

}  // namespace intrawarp::server
