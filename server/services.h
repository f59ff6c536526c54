// SPDX-License-Identifier: Apache-2.0
// The list of RPC services that a server offers.
#ifndef INTRAWARP_SERVER_SERVICES_H_
#define INTRAWARP_SERVER_SERVICES_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

#include "server/server_context.h"

namespace intrawarp::server {

struct NamedService {
  std::string name;  // as health knows it
  std::unique_ptr<grpc::Service> service;
};

// `context` must outlive them.
std::vector<NamedService> MakeServices(ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICES_H_
