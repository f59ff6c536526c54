// SPDX-License-Identifier: Apache-2.0
// ResidentDownload: one call that downloads a resident object, a volume or a matrix. Jobs bring its bytes from the
// device slab by slab into pinned memory, from which the transport sends them without a copy. At most two slabs are
// ahead of the client, whatever the size of the object.
#ifndef INTRAWARP_SERVER_BULK_RESIDENT_DOWNLOAD_H_
#define INTRAWARP_SERVER_BULK_RESIDENT_DOWNLOAD_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "server/bulk/device_bytes.h"
#include "server/rpc/rpc_support.h"
#include "server/server_context.h"

namespace intrawarp::server {

struct DownloadSource {
  std::shared_ptr<const void> owner;  // of the bytes
  DeviceBytes bytes;
  // The first message, and the field of those after it that is the Chunk.
  grpc::ByteBuffer header;
  int chunk_field = 0;
};

// Lives until gRPC is done with it and its jobs have let go.
class ResidentDownload final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // What a method handler returns to gRPC. `resolve` is called once, before this returns.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(
      ServerContext& context, const std::function<absl::StatusOr<DownloadSource>()>& resolve);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Slab {
    std::shared_ptr<PinnedBuffer> memory;
    int64_t begin = 0;  // in the object's bytes
    int64_t bytes = 0;
  };

  explicit ResidentDownload(ServerContext& context) : context_(context) {}

  absl::Status Begin(const std::function<absl::StatusOr<DownloadSource>()>& resolve);
  // The job that fills a slab.
  void Fetched(const absl::StatusOr<const ExecContext*>& ctx, Slab slab);
  // All three with the mutex held: ask for the next slab when there is room for it; write the next chunk or end the
  // call when it is time; end the call, once.
  absl::Status FetchNext();
  void WriteNext();
  void FinishOnce(const absl::Status& status);

  ServerContext& context_;
  std::shared_ptr<ResidentDownload> self_;  // until OnDone
  StreamCount count_;
  DownloadSource source_;
  int64_t total_bytes_ = 0;

  std::mutex mutex_;
  grpc::ByteBuffer message_;  // being written
  std::deque<Slab> slabs_;    // fetched, the first one partly sent
  int64_t fetch_begin_ = 0;   // of the next slab to ask for
  int64_t sent_bytes_ = 0;
  bool fetching_ = false;
  bool writing_ = false;
  bool finished_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_RESIDENT_DOWNLOAD_H_
