// SPDX-License-Identifier: Apache-2.0
// Errors as gRPC sends them: absl::Status to grpc::Status, and what a grpc::Status tells. Pure functions.
#ifndef INTRAWARP_SERVER_RPC_GRPC_STATUS_H_
#define INTRAWARP_SERVER_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

// The status of an RPC; ToRpcStatusProto(status) is in its trailers, as error_details.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The reason in the ErrorInfo of a status; empty without one.
std::string ErrorReasonIn(const grpc::Status& status);

// The status as the audit log has it.
AuditedOutcome OutcomeOf(const grpc::Status& status);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_GRPC_STATUS_H_
