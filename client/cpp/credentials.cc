// SPDX-License-Identifier: Apache-2.0
#include "client/cpp/credentials.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::client {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

// Empty for no path.
absl::StatusOr<std::string> Read(const char* member, const std::string& path) {
  if (path.empty()) return std::string();
  absl::StatusOr<std::string> text = io::ReadSmallFile(path, kMaxFileBytes);
  if (text.ok()) return text;
  return absl::Status(text.status().code(), absl::StrCat(member, ": ", text.status().message()));
}

absl::StatusOr<std::string> ReadPem(const char* member, const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(std::string text, Read(member, path));
  if (path.empty() || text.find("-----BEGIN ") != std::string::npos) return text;
  return absl::InvalidArgumentError(absl::StrCat(member, ": holds no PEM"));
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, Read("token_file", path));
  const std::string token(absl::StripAsciiWhitespace(text));
  const bool is_one_word = std::all_of(token.begin(), token.end(), [](char c) { return absl::ascii_isgraph(c); });
  if (!token.empty() && is_one_word) return token;
  return FieldError(absl::StatusCode::kInvalidArgument, "token_file", "must hold a token and nothing else");
}

absl::Status CheckMembers(const ChannelSecurity& security) {
  if (security.tls_cert.empty() != security.tls_key.empty()) {
    return absl::InvalidArgumentError("tls_cert and tls_key: each needs the other");
  }
  if (!security.tls_ca.empty()) return absl::OkStatus();
  if (!security.tls_cert.empty()) return FieldError(absl::StatusCode::kInvalidArgument, "tls_cert", "needs tls_ca");
  if (security.token_file.empty()) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, "token_file",
                    "needs tls_ca; a token never travels as plain text");
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const ChannelSecurity& security) {
  INTRAWARP_RETURN_IF_ERROR(CheckMembers(security));
  if (security.tls_ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  INTRAWARP_ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem("tls_ca", security.tls_ca));
  INTRAWARP_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem("tls_cert", security.tls_cert));
  INTRAWARP_ASSIGN_OR_RETURN(options.pem_private_key, ReadPem("tls_key", security.tls_key));
  const std::shared_ptr<grpc::ChannelCredentials> channel = grpc::SslCredentials(options);
  if (security.token_file.empty()) return channel;
  INTRAWARP_ASSIGN_OR_RETURN(const std::string token, ReadToken(security.token_file));
  return grpc::CompositeChannelCredentials(channel, grpc::AccessTokenCredentials(token));
}

}  // namespace intrawarp::client
