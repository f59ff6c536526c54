// SPDX-License-Identifier: Apache-2.0
// Navigate: frames in, results out, in order. One reader, one job at a time, one writer; at most max_pending frames are
// read ahead of the one that is being answered, so a client that sends faster than it is served is held by flow
// control.
//
// An error of one frame is its result; the rest of its chunks is passed over up to the next header. What breaks the
// order of messages (no config first, config twice, a chunk without a frame, a frame number that does not grow) ends
// the stream.
#ifndef INTRAWARP_SERVER_REGISTRATION_NAVIGATE_STREAM_H_
#define INTRAWARP_SERVER_REGISTRATION_NAVIGATE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "server/server_context.h"

namespace intrawarp::server {

// The reactor of one call; ends with OnDone by itself.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartNavigate(ServerContext& context,
                                                                           const grpc::CallbackServerContext& rpc);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_REGISTRATION_NAVIGATE_STREAM_H_
