// SPDX-License-Identifier: Apache-2.0
#include "server/identity/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace intrawarp::server {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, Free>;
using Certificate = std::unique_ptr<X509, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;

Bio Reader(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// Without one OpenSSL would ask on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

Certificate NextCertificate(BIO* from) { return Certificate(PEM_read_bio_X509(from, nullptr, NoPassphrase, nullptr)); }

absl::Status Wrong(const char* flag, absl::string_view why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", why));
}

std::optional<std::chrono::system_clock::time_point> EndOf(const X509* certificate) {
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &end) != 1) return std::nullopt;
  return std::chrono::system_clock::from_time_t(timegm(&end));
}

absl::Status CheckAuthorities(const std::string& text) {
  const Bio from = Reader(text);
  int count = 0;
  while (const Certificate authority = NextCertificate(from.get())) {
    if (X509_check_ca(authority.get()) == 0) return Wrong("tls_client_ca", "holds a certificate of no authority");
    ++count;
  }
  ERR_clear_error();  // the end of the text
  return count > 0 ? absl::OkStatus() : Wrong("tls_client_ca", "holds no certificate in PEM");
}

// Reads one of the files into `to`; true when it has changed.
absl::StatusOr<bool> Read(WatchedFile& file, WatchedFile::Time now, const char* flag, std::string& to) {
  absl::StatusOr<std::optional<std::string>> changed = file.Changed(now);
  if (!changed.ok()) return absl::Status(changed.status().code(), absl::StrCat(flag, ": ", changed.status().message()));
  if (!changed->has_value()) return false;
  to = *std::move(*changed);
  return true;
}

}  // namespace

absl::StatusOr<TlsMaterial> CheckTlsMaterial(std::string certificate_chain, std::string private_key,
                                             std::string client_ca) {
  const Bio chain = Reader(certificate_chain);
  const Certificate certificate = NextCertificate(chain.get());
  if (certificate == nullptr) return Wrong("tls_cert", "holds no certificate in PEM");
  const Bio key_text = Reader(private_key);
  const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) return Wrong("tls_key", "holds no private key in PEM without a passphrase");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) return Wrong("tls_key", "is not that of tls_cert");
  if (!client_ca.empty()) INTRAWARP_RETURN_IF_ERROR(CheckAuthorities(client_ca));
  const auto end = EndOf(certificate.get());
  if (!end) return Wrong("tls_cert", "has no end");
  return TlsMaterial{std::move(certificate_chain), std::move(private_key), std::move(client_ca), *end};
}

absl::StatusOr<bool> TlsFiles::Reload(WatchedFile::Time now) {
  INTRAWARP_ASSIGN_OR_RETURN(const bool certificate, Read(certificate_, now, "tls_cert", certificate_text_));
  INTRAWARP_ASSIGN_OR_RETURN(const bool key, Read(key_, now, "tls_key", key_text_));
  INTRAWARP_ASSIGN_OR_RETURN(const bool client_ca, Read(client_ca_, now, "tls_client_ca", client_ca_text_));
  if (!certificate && !key && !client_ca) return false;
  // An empty file of authorities would switch their check off.
  if (client_ca_.is_set() && client_ca_text_.empty()) return Wrong("tls_client_ca", "is empty");
  INTRAWARP_ASSIGN_OR_RETURN(TlsMaterial material, CheckTlsMaterial(certificate_text_, key_text_, client_ca_text_));
  std::lock_guard<std::mutex> lock(mutex_);
  material_ = std::make_shared<const TlsMaterial>(std::move(material));
  return true;
}

std::shared_ptr<const TlsMaterial> TlsFiles::material() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return material_;
}

}  // namespace intrawarp::server
