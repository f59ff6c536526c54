// SPDX-License-Identifier: Apache-2.0
// Navigate: the transport of a session (server/session). It decodes messages, hands frames to the session's pipeline,
// and writes the answers. One read and one write are under way at most. Messages are taken in order, by a worker, while
// the next ones are read: at most four wait for it. Nothing is read while the pipeline has no room, so a client that
// sends faster than it is served is held by flow control.
//
// Shared memory. A request for it is answered in its turn by the worker, which makes the segment; the segment is the
// stream's, so that a session that is resumed gets a new one. It goes with the stream; after a good end it stays for a
// few seconds while the client has not read its last fields. Slots count from the message on that proves that the
// client has mapped the segment; what a frame's slot holds is copied in the frame's turn, by the worker.
//
// The call takes its place among the streams of sessions when its config comes. A call without a config counts among
// all calls (max_calls), and the stall watch ends it.
//
// An error of one frame is its result; the rest of its chunks is passed over up to the next header. What breaks the
// order of messages (no config first, config twice, a chunk without a frame, shared memory asked for twice or with a
// wrong nonce) ends the stream and its session. A stream that breaks leaves its session to be resumed.
#ifndef INTRAWARP_SERVER_SESSION_RPC_NAVIGATE_STREAM_H_
#define INTRAWARP_SERVER_SESSION_RPC_NAVIGATE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "server/context/server_context.h"

namespace intrawarp::server {

// The reactor of one call; ends with OnDone by itself.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartNavigate(ServerContext& context,
                                                                           const grpc::CallbackServerContext& rpc);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_RPC_NAVIGATE_STREAM_H_
