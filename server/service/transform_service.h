// SPDX-License-Identifier: Apache-2.0
// TransformService: stored transforms, and what is computed with them.
#ifndef INTRAWARP_SERVER_SERVICE_TRANSFORM_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_TRANSFORM_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/context/server_context.h"

namespace intrawarp::server {

// `context` must outlive the service and every job it has submitted.
std::unique_ptr<grpc::Service> MakeTransformService(ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_TRANSFORM_SERVICE_H_
