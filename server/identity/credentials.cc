// SPDX-License-Identifier: Apache-2.0
#include "server/identity/credentials.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <array>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "io/file/digest.h"

namespace intrawarp::server {
namespace {

constexpr size_t kTokenRandomBytes = 32;
// Scanners of repositories and logs know a token by its beginning.
constexpr char kTokenPrefix[] = "iwt_";
constexpr size_t kMaxSubject = 512;

absl::Status AtLine(int line, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", status.message()));
}

// Calls `take` with each line that counts; its errors get the line's number.
absl::Status ForEachLine(absl::string_view text, const std::function<absl::Status(absl::string_view)>& take) {
  if (text.size() > kMaxCredentialFile) return absl::InvalidArgumentError("is too large");
  int number = 0, taken = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line[0] == '#') continue;
    if (++taken > kMaxCredentials) return AtLine(number, absl::InvalidArgumentError("is one too many"));
    const absl::Status status = take(line);
    if (!status.ok()) return AtLine(number, status);
  }
  return absl::OkStatus();
}

// The next word, which is taken off the line.
absl::string_view NextWord(absl::string_view& line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  size_t end = 0;
  while (end < line.size() && !absl::ascii_isspace(line[end])) ++end;
  const absl::string_view word = line.substr(0, end);
  line = absl::StripAsciiWhitespace(line.substr(end));
  return word;
}

absl::StatusOr<std::string> ParseDigest(absl::string_view text) {
  const bool is_hex = absl::ConsumePrefix(&text, "sha256:") && text.size() == 2 * io::Sha256::kBytes &&
                      text.find_first_not_of("0123456789abcdefABCDEF") == absl::string_view::npos;
  if (!is_hex) return absl::InvalidArgumentError("must end with sha256: and 64 hexadecimal digits");
  return absl::HexStringToBytes(text);
}

// The name and roles with which a line begins, taken off it.
absl::StatusOr<Identity> TakeIdentity(absl::string_view& line) {
  Identity identity;
  identity.name = std::string(NextWord(line));
  if (!IsValidIdentityName(identity.name)) return absl::InvalidArgumentError("begins with no valid name");
  INTRAWARP_ASSIGN_OR_RETURN(identity.roles, ParseRoles(NextWord(line)));
  return identity;
}

absl::StatusOr<std::string> ParseSubject(absl::string_view text) {
  for (const char* kind : {"uri:", "dns:", "cn:"}) {
    if (!absl::StartsWith(text, kind)) continue;
    const size_t length = text.size() - absl::string_view(kind).size();
    if (length < 1 || length > kMaxSubject) break;
    return std::string(text);
  }
  return absl::InvalidArgumentError("must end with uri:TEXT, dns:TEXT or cn:TEXT");
}

}  // namespace

absl::StatusOr<TokenTable> TokenTable::Parse(absl::string_view text) {
  TokenTable table;
  std::set<std::string> digests;
  const absl::Status status = ForEachLine(text, [&](absl::string_view line) -> absl::Status {
    INTRAWARP_ASSIGN_OR_RETURN(Identity identity, TakeIdentity(line));
    INTRAWARP_ASSIGN_OR_RETURN(const std::string digest, ParseDigest(line));
    if (!digests.insert(digest).second) return absl::InvalidArgumentError("names a token for the second time");
    table.entries_.push_back({digest, std::move(identity)});
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return table;
}

std::optional<Identity> TokenTable::Find(absl::string_view token) const {
  if (token.empty() || token.size() > kMaxTokenBytes) return std::nullopt;
  const std::string digest = io::Sha256Of(token.data(), token.size());
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->identity;
}

absl::StatusOr<CertificateTable> CertificateTable::Parse(absl::string_view text) {
  CertificateTable table;
  const absl::Status status = ForEachLine(text, [&](absl::string_view line) -> absl::Status {
    absl::string_view rest = line;
    if (NextWord(rest) == "revoked" && absl::StartsWith(rest, "sha256:")) {
      INTRAWARP_ASSIGN_OR_RETURN(std::string digest, ParseDigest(rest));
      table.revoked_.insert(std::move(digest));
      return absl::OkStatus();
    }
    INTRAWARP_ASSIGN_OR_RETURN(Identity identity, TakeIdentity(line));
    INTRAWARP_ASSIGN_OR_RETURN(const std::string subject, ParseSubject(line));
    if (table.subjects_.emplace(subject, std::move(identity)).second) return absl::OkStatus();
    return absl::InvalidArgumentError("names a subject for the second time");
  });
  if (!status.ok()) return status;
  return table;
}

std::optional<Identity> CertificateTable::FindSubject(const std::string& subject) const {
  const auto it = subjects_.find(subject);
  if (it == subjects_.end()) return std::nullopt;
  return it->second;
}

bool CertificateTable::IsRevoked(const std::string& pem) const {
  if (revoked_.empty()) return false;
  const std::string digest = CertificateDigest(pem);
  return digest.empty() || revoked_.count(digest) > 0;
}

std::optional<Identity> CertificateTable::Find(const CertificateNames& certificate) const {
  if (IsRevoked(certificate.pem)) return std::nullopt;
  for (const std::string& uri : certificate.uris) {
    if (std::optional<Identity> identity = FindSubject("uri:" + uri)) return identity;
  }
  for (const std::string& dns : certificate.dns) {
    if (std::optional<Identity> identity = FindSubject("dns:" + dns)) return identity;
  }
  if (!certificate.uris.empty() || !certificate.dns.empty() || certificate.common_name.empty()) return std::nullopt;
  return FindSubject("cn:" + certificate.common_name);
}

absl::StatusOr<NewToken> MakeToken(absl::string_view name, Roles roles) {
  if (!IsValidIdentityName(name)) {
    return absl::InvalidArgumentError("name: must have 1 to 64 letters, digits, '.', '_', '-', '@' or '/'");
  }
  if (roles.empty()) return absl::InvalidArgumentError("roles: must be frame, stage or admin");
  std::array<unsigned char, kTokenRandomBytes> random;
  if (RAND_bytes(random.data(), static_cast<int>(random.size())) != 1) {
    return absl::InternalError("there are no random bytes");
  }
  NewToken made;
  const absl::string_view bytes(reinterpret_cast<const char*>(random.data()), random.size());
  made.token = absl::StrCat(kTokenPrefix, absl::WebSafeBase64Escape(bytes));
  OPENSSL_cleanse(random.data(), random.size());
  const std::string digest = io::Sha256Of(made.token.data(), made.token.size());
  made.line = absl::StrCat(name, " ", RolesText(roles), " sha256:", absl::BytesToHexString(digest));
  return made;
}

std::string CertificateDigest(absl::string_view pem) {
  constexpr absl::string_view kBegin = "-----BEGIN CERTIFICATE-----", kEnd = "-----END CERTIFICATE-----";
  const size_t begin = pem.find(kBegin);
  const size_t end = begin == absl::string_view::npos ? begin : pem.find(kEnd, begin);
  if (end == absl::string_view::npos) return "";
  std::string der;
  if (!absl::Base64Unescape(pem.substr(begin + kBegin.size(), end - begin - kBegin.size()), &der)) return "";
  return io::Sha256Of(der.data(), der.size());
}

}  // namespace intrawarp::server
