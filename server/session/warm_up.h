// SPDX-License-Identifier: Apache-2.0
// The opening of a session: its memory is taken, and one registration like those of its frames runs, so that the first
// frame finds loaded kernels and filled pools. No gRPC here.
#ifndef INTRAWARP_SERVER_SESSION_WARM_UP_H_
#define INTRAWARP_SERVER_SESSION_WARM_UP_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/session/navigate_session.h"

namespace intrawarp::server {

// Brings the resident volume and its like to the session's device, reserves on a worker, then registers a made-up frame
// of the expected grid to the resident volume, with two iterations a level, as a frame job owned by the session. `done`
// is called once, later, on another thread: whether the registration ran (the images or the options of a session may
// not allow one, which its frames will say), or the error that keeps the session from opening: those of BringTo and of
// Reserve, want of memory, QUEUE_FULL, a lost device, CANCELLED when the session was closed, and those of Keep, since a
// session that outlives a restart is durable before `done`. Closes the session with the error.
void WarmUp(std::shared_ptr<NavigateSession> session, std::function<void(const absl::StatusOr<bool>& warm)> done);
// The same for a session that is durable already.
void WarmUpRestored(std::shared_ptr<NavigateSession> session,
                    std::function<void(const absl::StatusOr<bool>& warm)> done);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_WARM_UP_H_
