// SPDX-License-Identifier: Apache-2.0
// Restoring: what a state directory keeps becomes resident again before the server serves.
#ifndef INTRAWARP_SERVER_RESTORE_H_
#define INTRAWARP_SERVER_RESTORE_H_

#include "absl/status/status.h"
#include "server/server_context.h"

namespace intrawarp::server {

// Loads every kept object from its verified payload by the way of an upload, so that it has the bits that it had. An
// object that cannot be loaded (a damaged payload, too little memory) is logged by name; questions for it answer
// OBJECT_DAMAGED, and its id stays taken until it is deleted. Only a catalogue that cannot be read is an error. Before
// the first RPC; the context's durable objects are open.
absl::Status RestoreObjects(ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RESTORE_H_
