// SPDX-License-Identifier: Apache-2.0
// VolumeDownload: one DownloadVolume call. Jobs bring the voxels from the device slab by slab into pinned memory, from
// which the transport sends them without a copy. At most two slabs are ahead of the client, whatever the volume's size.
#ifndef INTRAWARP_SERVER_VOLUME_DOWNLOAD_H_
#define INTRAWARP_SERVER_VOLUME_DOWNLOAD_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "server/rpc_support.h"
#include "server/server_context.h"

namespace intrawarp {

// Lives until gRPC is done with it and its jobs have let go.
class VolumeDownload final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // What a method handler returns to gRPC.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(ServerContext& context, const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Slab {
    std::shared_ptr<PinnedBuffer> memory;
    int64_t begin = 0;  // in the volume's bytes
    int64_t bytes = 0;
  };

  explicit VolumeDownload(ServerContext& context) : context_(context) {}

  absl::Status Begin(const grpc::ByteBuffer& request);
  // The job that fills a slab.
  void Fetched(const absl::StatusOr<const ExecContext*>& ctx, Slab slab);
  // All three with the mutex held: ask for the next slab when there is room for it; write the next chunk or end the
  // call when it is time; end the call, once.
  absl::Status FetchNext();
  void WriteNext();
  void FinishOnce(const absl::Status& status);

  ServerContext& context_;
  std::shared_ptr<VolumeDownload> self_;  // until OnDone
  StreamCount count_;
  std::shared_ptr<const StoredVolume> volume_;
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

}  // namespace intrawarp

#endif  // INTRAWARP_SERVER_VOLUME_DOWNLOAD_H_
