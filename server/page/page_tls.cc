// SPDX-License-Identifier: Apache-2.0
#include "server/page/page_tls.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/monitor/log.h"

namespace intrawarp::server {
namespace {

// Certificates of a chain; more are an error.
constexpr unsigned kMostCertificates = 16;

thread_local PageTls* tls_of_this_thread = nullptr;

gnutls_datum_t DatumOf(const std::string& text) {
  return {reinterpret_cast<unsigned char*>(const_cast<char*>(text.data())), static_cast<unsigned>(text.size())};
}

bool IsSame(const TlsMaterial& a, const TlsMaterial& b) {
  return a.certificate_chain == b.certificate_chain && a.private_key == b.private_key;
}

// What GnuTLS takes over, until Release.
class Loaded {
 public:
  Loaded() = default;
  ~Loaded() {
    for (unsigned i = 0; i < count_; ++i) gnutls_pcert_deinit(&certificates_[i]);
    gnutls_free(certificates_);
    if (key_ != nullptr) gnutls_privkey_deinit(key_);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  absl::Status Load(const TlsMaterial& material) {
    // GnuTLS frees the list by gnutls_free.
    certificates_ = static_cast<gnutls_pcert_st*>(gnutls_calloc(kMostCertificates, sizeof(gnutls_pcert_st)));
    if (certificates_ == nullptr) return absl::ResourceExhaustedError("tls_cert: no memory");
    unsigned count = kMostCertificates;
    const gnutls_datum_t chain = DatumOf(material.certificate_chain);
    int error = gnutls_pcert_list_import_x509_raw(certificates_, &count, &chain, GNUTLS_X509_FMT_PEM,
                                                  GNUTLS_X509_CRT_LIST_IMPORT_FAIL_IF_EXCEED);
    if (error == GNUTLS_E_SHORT_MEMORY_BUFFER) {
      return absl::InvalidArgumentError(
          absl::StrCat("tls_cert: the page takes a chain of at most ", kMostCertificates));
    }
    if (error < 0) return Wrong("tls_cert", error);
    count_ = count;
    if (gnutls_privkey_init(&key_) < 0) return absl::ResourceExhaustedError("tls_key: no memory");
    const gnutls_datum_t key = DatumOf(material.private_key);
    error = gnutls_privkey_import_x509_raw(key_, &key, GNUTLS_X509_FMT_PEM, nullptr, 0);
    if (error < 0) return Wrong("tls_key", error);
    return absl::OkStatus();
  }

  void Release(gnutls_pcert_st** certificates, unsigned* count, gnutls_privkey_t* key) {
    *certificates = certificates_;
    *count = count_;
    *key = key_;
    certificates_ = nullptr;
    count_ = 0;
    key_ = nullptr;
  }

 private:
  static absl::Status Wrong(const char* file, int error) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": the page cannot use it: ", gnutls_strerror(error)));
  }

  gnutls_pcert_st* certificates_ = nullptr;
  unsigned count_ = 0;
  gnutls_privkey_t key_ = nullptr;
};

}  // namespace

absl::Status PageTls::Refresh() {
  std::shared_ptr<const TlsMaterial> newest = files_.material();
  std::lock_guard<std::mutex> lock(mutex_);
  if (newest == nullptr || newest == seen_) return absl::OkStatus();
  const bool is_known = seen_ != nullptr && IsSame(*seen_, *newest);
  seen_ = newest;
  if (is_known) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(Loaded().Load(*newest));
  used_ = std::move(newest);
  return absl::OkStatus();
}

void PageTls::RefreshAndLog() {
  const absl::Status status = Refresh();
  if (!status.ok()) Log(Severity::kError, "page_not_reloaded", {{"cause", status.ToString()}});
}

std::shared_ptr<const TlsMaterial> PageTls::material() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return used_;
}

void UseOnThisThread(PageTls& tls) { tls_of_this_thread = &tls; }

int RetrieveCertificate(gnutls_session_t, const gnutls_cert_retr_st*, gnutls_pcert_st** certificates, unsigned* count,
                        gnutls_ocsp_data_st** ocsp, unsigned* ocsp_count, gnutls_privkey_t* key, unsigned* flags) {
  if (tls_of_this_thread == nullptr) return -1;
  tls_of_this_thread->RefreshAndLog();
  const std::shared_ptr<const TlsMaterial> material = tls_of_this_thread->material();
  Loaded loaded;
  if (material == nullptr || !loaded.Load(*material).ok()) return -1;
  loaded.Release(certificates, count, key);
  *ocsp = nullptr;
  *ocsp_count = 0;
  *flags = GNUTLS_CERT_RETR_DEINIT_ALL;
  return 0;
}

}  // namespace intrawarp::server
