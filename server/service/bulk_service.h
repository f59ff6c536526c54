// SPDX-License-Identifier: Apache-2.0
// BulkService: uploads and downloads of volumes, sparse matrices and transforms.
#ifndef INTRAWARP_SERVER_SERVICE_BULK_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_BULK_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/context/server_context.h"

namespace intrawarp::server {

// `context` must outlive the service and everything that works for its calls.
std::unique_ptr<grpc::Service> MakeBulkService(ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_BULK_SERVICE_H_
