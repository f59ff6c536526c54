// SPDX-License-Identifier: Apache-2.0
// The certificate of the page's port, as GnuTLS asks for it: every handshake uses the newest material of TlsFiles that
// GnuTLS can use.
//
// Thread safety: UseOnThisThread and what GnuTLS calls are for the thread that serves the connections; the rest is safe
// for concurrent use.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_TLS_H_
#define INTRAWARP_SERVER_PAGE_PAGE_TLS_H_

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "server/identity/tls_files.h"

namespace intrawarp::server {

// OpenSSL checks what TlsFiles takes up, and takes some material that GnuTLS refuses: a chain whose second certificate
// is broken, for one. The page then stays with the material that it used before.
class PageTls {
 public:
  // `files` outlives it.
  explicit PageTls(const TlsFiles& files) : files_(files) {}

  // Takes up new material. INVALID_ARGUMENT "tls_cert: ..." or "tls_key: ..." for material that GnuTLS cannot use, once
  // for each change of these files.
  absl::Status Refresh();
  // Refresh, and writes its error to the log.
  void RefreshAndLog();
  // The last material that GnuTLS could use; null before the first.
  std::shared_ptr<const TlsMaterial> material() const;

 private:
  const TlsFiles& files_;
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsMaterial> seen_;  // the last one that was tried
  std::shared_ptr<const TlsMaterial> used_;
};

// GnuTLS hands its callback no word of the caller's: handshakes on this thread use this material from now on. `tls`
// outlives the handshakes.
void UseOnThisThread(PageTls& tls);

// MHD_OPTION_HTTPS_CERT_CALLBACK2. GnuTLS owns what it is given. -1 ends the handshake.
gnutls_certificate_retrieve_function3 RetrieveCertificate;

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_TLS_H_
