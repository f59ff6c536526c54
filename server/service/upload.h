// SPDX-License-Identifier: Apache-2.0
// The Upload method: chunks go from the transport's memory to staging memory in one copy and are checked and hashed on
// the way, on a worker, while the next message is read. When everything is there the object is made, by a job where
// that computes and on the copy lane otherwise, and stored.
//
// A call that breaks leaves the upload to be resumed; so does one that the client ends too early, since that cannot be
// told from a broken one for certain, and one that a full queue refuses. A wrong message drops the upload. A call that
// ends while its upload waits for the device lets go of it at once.
#ifndef INTRAWARP_SERVER_SERVICE_UPLOAD_H_
#define INTRAWARP_SERVER_SERVICE_UPLOAD_H_

#include <grpcpp/grpcpp.h>

#include "server/context/server_context.h"

namespace intrawarp::server {

// The reactor that the method handler returns to gRPC. `response` is valid until the call is finished.
grpc::ServerReadReactor<grpc::ByteBuffer>* StartUpload(ServerContext& context, grpc::CallbackServerContext* call,
                                                       grpc::ByteBuffer* response);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_UPLOAD_H_
