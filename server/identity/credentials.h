// SPDX-License-Identifier: Apache-2.0
// The credentials that a server knows: bearer tokens and client certificates, as two text files list them, a line each.
// Empty lines and lines that begin with # do not count.
//
//   tokens:      NAME ROLES sha256:HEX             the SHA-256 of the token; the token itself is in no file
//   identities:  NAME ROLES SUBJECT                SUBJECT is uri:TEXT, dns:TEXT (subject alternative names) or cn:TEXT
//                revoked sha256:HEX                the SHA-256 of a certificate (DER) that is not taken any more
//
// A token has 256 random bits, so that a plain SHA-256 keeps it: nobody can try them all. Errors name the line, never
// its content.
//
// Thread safety: thread-compatible values; free functions are thread-safe.
#ifndef INTRAWARP_SERVER_IDENTITY_CREDENTIALS_H_
#define INTRAWARP_SERVER_IDENTITY_CREDENTIALS_H_

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/identity/identity.h"

namespace intrawarp::server {

// A file of credentials may have this many bytes and lines.
inline constexpr size_t kMaxCredentialFile = size_t{1} << 20;
inline constexpr int kMaxCredentials = 4096;
// A longer token is none.
inline constexpr size_t kMaxTokenBytes = 256;

class TokenTable {
 public:
  // INVALID_ARGUMENT "line N: ...".
  static absl::StatusOr<TokenTable> Parse(absl::string_view text);

  // Takes the same time whichever token matches. nullopt: none does.
  std::optional<Identity> Find(absl::string_view token) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::string digest;  // of the token
    Identity identity;
  };
  std::vector<Entry> entries_;
};

// The names in a client's verified certificate.
struct CertificateNames {
  std::vector<std::string> uris = {};
  std::vector<std::string> dns = {};
  std::string common_name = {};
  // The certificate, as PEM.
  std::string pem = {};
};

class CertificateTable {
 public:
  // INVALID_ARGUMENT "line N: ...".
  static absl::StatusOr<CertificateTable> Parse(absl::string_view text);

  // By the first URI that is listed, then by a DNS name, then by the common name of a certificate that has neither.
  // nullopt: none is listed, or the certificate is revoked.
  std::optional<Identity> Find(const CertificateNames& certificate) const;
  size_t size() const { return subjects_.size(); }

 private:
  std::optional<Identity> FindSubject(const std::string& subject) const;
  bool IsRevoked(const std::string& pem) const;

  std::map<std::string, Identity> subjects_;
  std::set<std::string> revoked_;  // digests
};

struct NewToken {
  std::string token;
  // The line of the tokens file.
  std::string line;
};
// A token of 256 bits from the operating system. INVALID_ARGUMENT for a name that is none.
absl::StatusOr<NewToken> MakeToken(absl::string_view name, Roles roles);

// The SHA-256 of the first certificate (DER) in a PEM text; empty when there is none.
std::string CertificateDigest(absl::string_view pem);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_CREDENTIALS_H_
