// SPDX-License-Identifier: Apache-2.0
// The Download method, and what every stream that can be gone on with from an offset needs (WarpVolume, too).
#ifndef INTRAWARP_SERVER_SERVICE_DOWNLOAD_H_
#define INTRAWARP_SERVER_SERVICE_DOWNLOAD_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "intrawarp/v1/bulk.pb.h"
#include "io/file/digest.h"
#include "server/bulk/device_bulk.h"
#include "server/context/server_context.h"
#include "server/rpc/job_stream.h"

namespace intrawarp::server {

// The reactor that the method handler returns to gRPC.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartDownload(ServerContext& context,
                                                          const grpc::CallbackServerContext& rpc,
                                                          const grpc::ByteBuffer& request);

// Sends `header` and then `bulk`, whose chunks are the field `chunk_field` of their messages. What fails on the way
// closes the stream. UNAVAILABLE after the copy lane's shutdown.
absl::Status StartBulk(const std::shared_ptr<JobStream>& stream, grpc::ByteBuffer header,
                       std::shared_ptr<DeviceBulk> bulk, int chunk_field);

// Names bytes by what they are made of: objects, which are immutable, and the question. Thread-compatible.
class Etag {
 public:
  Etag& Add(absl::string_view question);
  // An object by its name and when it came to be.
  Etag& Add(absl::string_view name, std::chrono::system_clock::time_point create_time);
  // What computes the bytes: another kind or model of device, or another build, may round them otherwise.
  Etag& AddComputer(const Device& device);
  std::string Finish();

 private:
  io::Sha256 hash_;
};

// ABORTED (CONTENT_CHANGED) when `wanted` names other bytes than `etag`; OUT_OF_RANGE "offset: ..." outside of
// [0, total_bytes].
absl::Status CheckResumption(int64_t offset, absl::string_view wanted, int64_t total_bytes, absl::string_view etag);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_DOWNLOAD_H_
