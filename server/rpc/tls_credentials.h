// SPDX-License-Identifier: Apache-2.0
// The credentials of a gRPC server whose certificate, key and clients' authorities come from TlsFiles: every handshake
// uses the last good material. TLS 1.2 at least.
#ifndef INTRAWARP_SERVER_RPC_TLS_CREDENTIALS_H_
#define INTRAWARP_SERVER_RPC_TLS_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "server/identity/tls_files.h"

namespace intrawarp::server {

enum class ClientCertificates {
  kNone,
  // Asked for, and verified when there is one.
  kOptional,
  // The handshake fails without one.
  kRequired,
};

// `files` has material, and outlives the server.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const TlsFiles& files, ClientCertificates certificates);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_TLS_CREDENTIALS_H_
