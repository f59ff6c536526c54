// SPDX-License-Identifier: Apache-2.0
// TlsFiles: the certificate, the private key and the clients' authorities of a server, checked, and read again when a
// change of a file has settled (watched_file.h). A change that does not pass the checks leaves the last good material
// in use.
//
// Thread safety: Reload is one thread's at a time; material is safe for concurrent use.
#ifndef INTRAWARP_SERVER_IDENTITY_TLS_FILES_H_
#define INTRAWARP_SERVER_IDENTITY_TLS_FILES_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "server/identity/exposure.h"
#include "server/identity/watched_file.h"

namespace intrawarp::server {

// PEM texts that fit together.
struct TlsMaterial {
  std::string certificate_chain;
  std::string private_key;
  // Empty: certificates of clients are not asked for.
  std::string client_ca;
  // The end of the server's certificate.
  std::chrono::system_clock::time_point not_after;
};

// INVALID_ARGUMENT "tls_cert: ...", "tls_key: ..." or "tls_client_ca: ...": no PEM, a key that needs a passphrase, a
// key of another certificate, an authority that is none.
absl::StatusOr<TlsMaterial> CheckTlsMaterial(std::string certificate_chain, std::string private_key,
                                             std::string client_ca);

class TlsFiles {
 public:
  explicit TlsFiles(const AccessFiles& files)
      : certificate_(files.tls_cert), key_(files.tls_key), client_ca_(files.tls_client_ca) {}

  // True when there is new material at `now`. The errors of reading and of CheckTlsMaterial, once for each change.
  absl::StatusOr<bool> Reload(WatchedFile::Time now);
  // The last good one; null before the first.
  std::shared_ptr<const TlsMaterial> material() const;

 private:
  WatchedFile certificate_;
  WatchedFile key_;
  WatchedFile client_ca_;
  // The texts of the files, good or not.
  std::string certificate_text_;
  std::string key_text_;
  std::string client_ca_text_;
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsMaterial> material_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_IDENTITY_TLS_FILES_H_
