// SPDX-License-Identifier: Apache-2.0
// The error that ends a stream which brings messages too often.
#ifndef INTRAWARP_SERVER_RPC_MESSAGE_RATE_H_
#define INTRAWARP_SERVER_RPC_MESSAGE_RATE_H_

#include "absl/status/status.h"
#include "server/context/server_context.h"
#include "server/identity/message_limits.h"

namespace intrawarp::server {

// Counts a message that the sender's stream has brought. RESOURCE_EXHAUSTED (MESSAGE_RATE), which is counted in the
// metrics. Thread-safe.
absl::Status CheckMessageRate(ServerContext& context, const MessageLimits::Sender& sender);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_MESSAGE_RATE_H_
