// SPDX-License-Identifier: Apache-2.0
// MatrixService: sparse matrices that stay resident, and their products.
#ifndef INTRAWARP_SERVER_SERVICE_MATRIX_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_MATRIX_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "server/context/server_context.h"

namespace intrawarp::server {

std::unique_ptr<grpc::Service> MakeMatrixService(ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_MATRIX_SERVICE_H_
