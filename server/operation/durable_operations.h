// SPDX-License-Identifier: Apache-2.0
// Operations on a server that keeps its objects.
#ifndef INTRAWARP_SERVER_OPERATION_DURABLE_OPERATIONS_H_
#define INTRAWARP_SERVER_OPERATION_DURABLE_OPERATIONS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/context/server_context.h"
#include "server/operation/operation_table.h"

namespace intrawarp::server {

// The names of what the request has made and the server still has; empty: nothing.
std::vector<std::string> ResultsOf(const ServerContext& context, OperationKind kind, const RequestKey& key);

// Lets the table of `context` write its operations to the state directory, and brings those of the last run back. After
// RestoreObjects. A row that is damaged is logged and removed.
absl::Status RestoreOperations(ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OPERATION_DURABLE_OPERATIONS_H_
