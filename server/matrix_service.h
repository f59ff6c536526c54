// SPDX-License-Identifier: Apache-2.0
// MatrixService: sparse matrices that stay resident, and their products.
#ifndef INTRAWARP_SERVER_MATRIX_SERVICE_H_
#define INTRAWARP_SERVER_MATRIX_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "server/server_context.h"

namespace intrawarp {

std::unique_ptr<grpc::Service> MakeMatrixService(ServerContext& context);

}  // namespace intrawarp

#endif  // INTRAWARP_SERVER_MATRIX_SERVICE_H_
