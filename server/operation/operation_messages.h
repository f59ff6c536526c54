// SPDX-License-Identifier: Apache-2.0
// Operations as messages: for callers, and for the state directory.
#ifndef INTRAWARP_SERVER_OPERATION_OPERATION_MESSAGES_H_
#define INTRAWARP_SERVER_OPERATION_OPERATION_MESSAGES_H_

#include "absl/status/statusor.h"
#include "intrawarp/v1/operation.pb.h"
#include "server/base/seams.h"
#include "server/operation/operation_table.h"

namespace intrawarp::server {

v1::Operation OperationToProto(const Operation& operation);

// The reverse: `message` is one that OperationToProto made, the fingerprint stands beside it. The expiry is that of the
// message, by the clocks of `seams`. DATA_LOSS for another message.
absl::StatusOr<Operation> OperationFromProto(const v1::Operation& message, const std::string& fingerprint,
                                             const Seams& seams);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_OPERATION_OPERATION_MESSAGES_H_
