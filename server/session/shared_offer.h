// SPDX-License-Identifier: Apache-2.0
// The answer to a client that asks for shared memory: a segment for its session, and where to fetch it. Thread-safe.
#ifndef INTRAWARP_SERVER_SESSION_SHARED_OFFER_H_
#define INTRAWARP_SERVER_SESSION_SHARED_OFFER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/context/server_context.h"
#include "server/session/navigate_session.h"
#include "server/session/shared_segment.h"

namespace intrawarp::server {

struct SharedOffer {
  std::shared_ptr<SharedSegment> segment;
  v1::SharedMemoryOffer offer;
};

// Takes as long as filling the memory takes. INVALID_ARGUMENT names a field of the request; FAILED_PRECONDITION
// (SHARED_MEMORY_UNAVAILABLE) where the server shares none; otherwise the errors of SharedMemory::NewSegment.
absl::StatusOr<SharedOffer> MakeSharedOffer(ServerContext& context, const NavigateSession& session,
                                            const v1::SharedMemoryRequest& request);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_SHARED_OFFER_H_
