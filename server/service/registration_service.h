// SPDX-License-Identifier: Apache-2.0
// RegistrationService: registers resident volumes (Register), and streams of frames (Navigate, server/session/rpc).
#ifndef INTRAWARP_SERVER_SERVICE_REGISTRATION_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_REGISTRATION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/context/server_context.h"

namespace intrawarp::server {

// `context` must outlive the service and every job it has submitted.
std::unique_ptr<grpc::Service> MakeRegistrationService(ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_REGISTRATION_SERVICE_H_
