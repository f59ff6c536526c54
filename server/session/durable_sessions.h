// SPDX-License-Identifier: Apache-2.0
// The sessions of the state directory after a restart.
#ifndef INTRAWARP_SERVER_SESSION_DURABLE_SESSIONS_H_
#define INTRAWARP_SERVER_SESSION_DURABLE_SESSIONS_H_

#include "absl/status/status.h"
#include "server/context/server_context.h"

namespace intrawarp::server {

// Opens every durable session again, with its memory, its last durable transform and warm kernels; it waits DETACHED to
// be resumed. A session that cannot go on (its volume was deleted or damaged, its memory is not to be had, its
// transform is damaged) is logged and forgotten. Only a catalogue that cannot be read is an error. After
// RestoreObjects, before the first RPC.
absl::Status RestoreSessions(ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_DURABLE_SESSIONS_H_
