// SPDX-License-Identifier: Apache-2.0
// Multiply and MultiplyTriple: a product as a batch job, in steps (estimate, pattern, values, download slab by slab).
// Each step begins with a checkpoint, so that a frame waits for one step at most, not for the product. A triple product
// goes through the first three steps twice: its first product, once it is made, is a factor of the second one and holds
// what it takes of the device until C is made. A product whose plan is found (ProductPlans) has no pattern step.
//
// Memory is claimed in two steps, each whole or not at all, because sizes are known only on the way: device memory for
// everything after the estimate, which bounds it; pinned memory for a product that is sent after its pattern, which
// gives the size to the byte (the estimate's bound is often far above it, and would keep others out). A product that is
// refused then (PINNED_MEMORY) has made a pattern in vain, but no values. A product that stays needs no pinned
// memory.
#ifndef INTRAWARP_SERVER_SERVICE_MULTIPLY_CALL_H_
#define INTRAWARP_SERVER_SERVICE_MULTIPLY_CALL_H_

#include <grpcpp/grpcpp.h>

#include "server/context/server_context.h"

namespace intrawarp::server {

// What the method handler returns to gRPC.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartMultiply(ServerContext& context,
                                                          const grpc::CallbackServerContext& rpc,
                                                          const grpc::ByteBuffer& request);
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartMultiplyTriple(ServerContext& context,
                                                                const grpc::CallbackServerContext& rpc,
                                                                const grpc::ByteBuffer& request);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_MULTIPLY_CALL_H_
