// SPDX-License-Identifier: Apache-2.0
// VolumeUploadReactor: one UploadVolume call. Chunks go from the transport's memory to pinned memory in one copy and
// are hashed on the way; when the client has sent everything, a job prepares the image and the volume is stored.
//
// A call that breaks leaves the upload to be resumed; so does one that the client ends too early, since that cannot be
// told from a broken one for certain, and a refusal for lack of room. A wrong message drops it.
#ifndef INTRAWARP_SERVER_VOLUME_UPLOAD_H_
#define INTRAWARP_SERVER_VOLUME_UPLOAD_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/rpc_support.h"
#include "server/server_context.h"
#include "server/upload_store.h"

namespace intrawarp {

// Lives until gRPC is done with it and its job has let go.
class VolumeUploadReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  // What a method handler returns to gRPC. `response` is valid until the call is finished.
  static grpc::ServerReadReactor<grpc::ByteBuffer>* Start(ServerContext& context, grpc::CallbackServerContext* call,
                                                          grpc::ByteBuffer* response);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  VolumeUploadReactor(ServerContext& context, grpc::CallbackServerContext* call, grpc::ByteBuffer* response)
      : context_(context), call_(call), response_(response) {}

  absl::Status Receive();
  absl::Status ReceiveHeader(const v1::UploadVolumeHeader& header);
  // The resident volume that makes the upload needless, null when there is none; ALREADY_EXISTS when the id is taken.
  absl::StatusOr<std::shared_ptr<const StoredVolume>> FindResident(const UploadSpec& spec) const;
  void EndOfStream();
  absl::Status SubmitPrepare();
  // The job.
  void RunPrepare(const absl::StatusOr<const ExecContext*>& ctx);
  absl::Status PrepareAndStore(const absl::StatusOr<const ExecContext*>& ctx);
  absl::StatusOr<std::shared_ptr<const StoredVolume>> Store(const UploadSpec& spec, PreparedImage image);

  // The first of these ends the call, those after it do nothing.
  void Answer(const StoredVolume& volume, bool already_resident);
  void AnswerLocked(const StoredVolume& volume, bool already_resident);
  void Fail(const absl::Status& status);
  bool finished();

  ServerContext& context_;
  grpc::CallbackServerContext* const call_;
  grpc::ByteBuffer* const response_;
  std::shared_ptr<VolumeUploadReactor> self_;  // until OnDone
  StreamCount count_;
  grpc::ByteBuffer message_;
  bool header_received_ = false;
  // Used by the reads first and by the job after them.
  UploadWriter writer_;
  bool job_has_writer_ = false;

  std::mutex mutex_;
  bool finished_ = false;
};

}  // namespace intrawarp

#endif  // INTRAWARP_SERVER_VOLUME_UPLOAD_H_
