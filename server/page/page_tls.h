// SPDX-License-Identifier: Apache-2.0
// The certificate of the page's port, as GnuTLS asks for it: every handshake uses the last good material of TlsFiles.
//
// Thread safety: UseOnThisThread and what GnuTLS calls are for the thread that serves the connections; CheckPageTls may
// be called on any.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_TLS_H_
#define INTRAWARP_SERVER_PAGE_PAGE_TLS_H_

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

#include "absl/status/status.h"
#include "server/identity/tls_files.h"

namespace intrawarp::server {

// INVALID_ARGUMENT "tls_cert: ..." or "tls_key: ..." for material that GnuTLS cannot use, though OpenSSL can.
absl::Status CheckPageTls(const TlsMaterial& material);

// GnuTLS hands its callback no word of the caller's: handshakes on this thread use these files from now on. They have
// material, and outlive the handshakes.
void UseOnThisThread(const TlsFiles& files);

// MHD_OPTION_HTTPS_CERT_CALLBACK2. GnuTLS owns what it is given. -1 ends the handshake.
gnutls_certificate_retrieve_function3 RetrieveCertificate;

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_TLS_H_
