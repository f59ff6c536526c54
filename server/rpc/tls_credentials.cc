// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <mutex>
#include <string>

namespace intrawarp::server {
namespace {

grpc_ssl_client_certificate_request_type RequestType(ClientCertificates certificates) {
  switch (certificates) {
    case ClientCertificates::kNone:
      return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    case ClientCertificates::kOptional:
      return GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
    case ClientCertificates::kRequired:
      break;
  }
  return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
}

// gRPC's own credentials of files do not check that key and certificate fit together before they use them.
class TlsCredentials final : public grpc::ServerCredentials {
 public:
  TlsCredentials(const TlsFiles& files, ClientCertificates certificates) : files_(files) {
    grpc_ssl_server_credentials_options* const options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(RequestType(certificates), Fetch, this);
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
  }
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // Before each handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<TlsCredentials*>(self)->FetchConfig(config);
  }
  grpc_ssl_certificate_config_reload_status FetchConfig(grpc_ssl_server_certificate_config** config) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<const TlsMaterial> material = files_.material();
    if (material == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    if (material == used_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {material->private_key.c_str(), material->certificate_chain.c_str()};
    // gRPC wants authorities also where it asks for no certificate, and then does not use them.
    const std::string& authorities = material->client_ca.empty() ? material->certificate_chain : material->client_ca;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    used_ = std::move(material);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsFiles& files_;
  grpc_server_credentials* credentials_ = nullptr;
  std::mutex mutex_;
  std::shared_ptr<const TlsMaterial> used_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles& files, ClientCertificates certificates) {
  return std::make_shared<TlsCredentials>(files, certificates);
}

}  // namespace intrawarp::server
