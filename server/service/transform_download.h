// SPDX-License-Identifier: Apache-2.0
// Fields of transforms and warped volumes on their way to a client. A job prepares the field or warps the volume, which
// stays on the device; a JobStream sends it from a ring of pinned slabs that the copy lane fills.
#ifndef INTRAWARP_SERVER_SERVICE_TRANSFORM_DOWNLOAD_H_
#define INTRAWARP_SERVER_SERVICE_TRANSFORM_DOWNLOAD_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/status.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/context/server_context.h"
#include "server/rpc/job_stream.h"

namespace intrawarp::server {

// Download of a transform's field. An error is the caller's to close the stream with.
absl::Status SendField(ServerContext& context, const v1::DownloadRequest& request,
                       const std::shared_ptr<JobStream>& stream);

// The reactor that the method handler of WarpVolume returns to gRPC.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartWarpVolume(ServerContext& context,
                                                            const grpc::CallbackServerContext& rpc,
                                                            const grpc::ByteBuffer& request);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_TRANSFORM_DOWNLOAD_H_
