// SPDX-License-Identifier: Apache-2.0
#include "tests/server/identity/certificates.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

namespace intrawarp::server {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free_all(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string ToPem(X509* certificate) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  EXPECT_EQ(PEM_write_bio_X509(bio.get(), certificate), 1);
  return TextOf(bio.get());
}

std::string ToPem(EVP_PKEY* key) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  EXPECT_EQ(PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  return TextOf(bio.get());
}

Owned<EVP_PKEY> KeyFrom(const std::string& pem) {
  const Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Owned<EVP_PKEY>(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
}

Owned<X509> CertificateFrom(const std::string& pem) {
  const Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return Owned<X509>(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  ASSERT_NE(extension, nullptr) << value;
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// A certificate without its signature.
Owned<X509> NewCertificate(const TestSubject& subject, EVP_PKEY* key) {
  Owned<X509> certificate(X509_new());
  X509_set_version(certificate.get(), 2);
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), std::chrono::seconds(subject.begins).count());
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), std::chrono::seconds(subject.ends).count());
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(subject.common_name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

TestCertificate MakeAuthority(const std::string& common_name) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const Owned<X509> certificate = NewCertificate({.common_name = common_name}, key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
  AddExtension(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  EXPECT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  return {ToPem(certificate.get()), ToPem(key.get())};
}

TestCertificate MakeCertificate(const TestCertificate& authority, const TestSubject& subject) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  const Owned<EVP_PKEY> issuer_key = KeyFrom(authority.key);
  const Owned<X509> issuer = CertificateFrom(authority.certificate);
  const Owned<X509> certificate = NewCertificate(subject, key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
  AddExtension(certificate.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE");
  if (!subject.alternative_names.empty()) {
    AddExtension(certificate.get(), issuer.get(), NID_subject_alt_name, subject.alternative_names);
  }
  EXPECT_GT(X509_sign(certificate.get(), issuer_key.get(), EVP_sha256()), 0);
  return {ToPem(certificate.get()), ToPem(key.get())};
}

TestCertificate MakeServerCertificate(const TestCertificate& authority) {
  return MakeCertificate(authority, {.common_name = "server", .alternative_names = "DNS:localhost,IP:127.0.0.1"});
}

std::string Handshake(const std::string& address, int max_version) {
  const Owned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_security_level(context.get(), 0);  // Debian's level refuses old versions before the server can
  SSL_CTX_set_min_proto_version(context.get(), TLS1_VERSION);
  SSL_CTX_set_max_proto_version(context.get(), max_version);
  const unsigned char alpn[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), alpn, sizeof(alpn));
  const Owned<BIO> connection(BIO_new_ssl_connect(context.get()));
  BIO_set_conn_hostname(connection.get(), address.c_str());
  ERR_clear_error();
  if (BIO_do_connect(connection.get()) == 1 && BIO_do_handshake(connection.get()) == 1) return "ok";
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "closed" : reason;
}

TestFolder::TestFolder() {
  path_ = testing::TempDir() + "intrawarp-identity-XXXXXX";
  EXPECT_NE(mkdtemp(path_.data()), nullptr);
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TestFolder::Write(const std::string& name, const std::string& text) const {
  const std::string path = Path(name);
  {
    std::ofstream file(path + ".new", std::ios::binary);
    file << text;
  }
  std::filesystem::rename(path + ".new", path);
  return path;
}

}  // namespace intrawarp::server
