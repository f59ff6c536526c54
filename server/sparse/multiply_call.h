// SPDX-License-Identifier: Apache-2.0
// Multiply: one product as a batch job, in steps (estimate, pattern, values, download slab by slab). Each step begins
// with a checkpoint, so that a frame waits for one step at most, not for the product.
#ifndef INTRAWARP_SERVER_SPARSE_MULTIPLY_CALL_H_
#define INTRAWARP_SERVER_SPARSE_MULTIPLY_CALL_H_

#include <grpcpp/grpcpp.h>

#include "server/server_context.h"

namespace intrawarp::server {

// What the method handler returns to gRPC.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartMultiply(ServerContext& context,
                                                          const grpc::CallbackServerContext& rpc,
                                                          const grpc::ByteBuffer& request);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SPARSE_MULTIPLY_CALL_H_
