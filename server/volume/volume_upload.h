// SPDX-License-Identifier: Apache-2.0
// UploadVolume; see resident_upload.h.
#ifndef INTRAWARP_SERVER_VOLUME_VOLUME_UPLOAD_H_
#define INTRAWARP_SERVER_VOLUME_VOLUME_UPLOAD_H_

#include <grpcpp/grpcpp.h>

#include "server/server_context.h"

namespace intrawarp::server {

// What the method handler returns to gRPC.
grpc::ServerReadReactor<grpc::ByteBuffer>* StartUploadVolume(ServerContext& context, grpc::CallbackServerContext* call,
                                                             grpc::ByteBuffer* response);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_VOLUME_VOLUME_UPLOAD_H_
