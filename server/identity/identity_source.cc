// SPDX-License-Identifier: Apache-2.0
#include "server/identity/identity_source.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"

namespace intrawarp::server {
namespace {

// The table of a changed file; null when the file is as before.
template <typename Table>
absl::StatusOr<std::shared_ptr<const Table>> Read(WatchedFile& file) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<std::string> text, file.Changed());
  if (!text) return nullptr;
  INTRAWARP_ASSIGN_OR_RETURN(Table table, Table::Parse(*text));
  return std::make_shared<const Table>(std::move(table));
}

// The token of an authorization header; empty when it is no bearer's.
absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return authorization.substr(kScheme.size());
}

}  // namespace

absl::StatusOr<bool> IdentitySource::ReloadTokens() {
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const TokenTable> table, Read<TokenTable>(tokens_file_));
  if (table == nullptr) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  tokens_ = std::move(table);
  return true;
}

absl::StatusOr<bool> IdentitySource::ReloadCertificates() {
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const CertificateTable> table, Read<CertificateTable>(identities_file_));
  if (table == nullptr) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  certificates_ = std::move(table);
  return true;
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
    const std::optional<Identity> bearer = tokens->Find(BearerToken(shown.authorizations[0]));
    if (!bearer) return absl::UnauthenticatedError("the token is not one of this server's");
    return *bearer;
  }
  if (!shown.certificate) return absl::UnauthenticatedError("the call has no token, and the connection no certificate");
  const std::optional<Identity> holder = certificates->Find(*shown.certificate);
  if (!holder) return absl::UnauthenticatedError("the certificate is not one of this server's callers");
  return *holder;
}

}  // namespace intrawarp::server
