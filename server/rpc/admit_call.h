// SPDX-License-Identifier: Apache-2.0
// The first question to every call that takes more than the time of its answer.
#ifndef INTRAWARP_SERVER_RPC_ADMIT_CALL_H_
#define INTRAWARP_SERVER_RPC_ADMIT_CALL_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/context/server_context.h"
#include "server/ledger/ledger.h"

namespace intrawarp::server {

// A place of `owner` among the streams under way; sessions have places of their own. UNAVAILABLE (reason DEVICE_HUNG)
// while the watchdog sees every device hang; RESOURCE_EXHAUSTED (reason TOO_MANY_STREAMS) when all places are taken, or
// OWNER_QUOTA when the owner has enough of them. Refusals are counted.
absl::StatusOr<Grant> AdmitCall(ServerContext& context, const std::string& owner, Share share = Share::kCommon);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_ADMIT_CALL_H_
