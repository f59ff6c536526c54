// SPDX-License-Identifier: Apache-2.0
// The list of RPC services that a server offers.
#ifndef INTRAWARP_SERVER_SERVICES_H_
#define INTRAWARP_SERVER_SERVICES_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

#include "server/context/server_context.h"

namespace intrawarp::server {

class Importer;

struct NamedService {
  std::string name;  // as health knows it
  std::unique_ptr<grpc::Service> service;
};

// `context` and `importer` must outlive them. `importer`: null on a server without archives.
std::vector<NamedService> MakeServices(ServerContext& context, Importer* importer);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICES_H_
