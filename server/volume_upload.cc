// SPDX-License-Identifier: Apache-2.0
#include "server/volume_upload.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/chunk_codec.h"
#include "server/volume_messages.h"

namespace intrawarp {
namespace {

constexpr char kMethod[] = "intrawarp.v1.VolumeService/UploadVolume";

// What the client did wrong, as opposed to what the server lacks: the upload is dropped with it.
bool DropsUpload(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsOutOfRange(status) || absl::IsDataLoss(status) ||
         absl::IsAlreadyExists(status);
}

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* VolumeUploadReactor::Start(ServerContext& context,
                                                                      grpc::CallbackServerContext* call,
                                                                      grpc::ByteBuffer* response) {
  std::shared_ptr<VolumeUploadReactor> upload(new VolumeUploadReactor(context, call, response));
  upload->self_ = upload;
  absl::StatusOr<StreamCount> count = StreamCount::Acquire(context.streams, context.limits.max_streams);
  if (!count.ok()) {
    context.metrics.CountRejection(Reason(count.status()));
    upload->Fail(count.status());
  } else {
    upload->count_ = *std::move(count);
    upload->StartRead(&upload->message_);
  }
  return upload.get();
}

void VolumeUploadReactor::OnReadDone(bool ok) {
  if (finished()) return;
  if (!ok) {
    EndOfStream();
    return;
  }
  context_.metrics.RpcReceivedBytes(kMethod, static_cast<int64_t>(message_.Length()));
  const absl::Status status = Receive();
  if (!status.ok()) {
    if (writer_ && DropsUpload(status)) writer_.Drop();
    context_.metrics.CountRejection(Reason(status));
    Fail(status);
    return;
  }
  message_.Clear();
  if (!finished()) StartRead(&message_);
}

absl::Status VolumeUploadReactor::Receive() {
  INTRAWARP_ASSIGN_OR_RETURN(const ReceivedRequest<v1::UploadVolumeRequest> request,
                             ReceiveRequest<v1::UploadVolumeRequest>(message_));
  if (!header_received_) {
    if (!request.message.has_header()) {
      return absl::InvalidArgumentError("header: must be the first message");
    }
    header_received_ = true;
    return ReceiveHeader(request.message.header());
  }
  if (request.message.has_header()) return absl::InvalidArgumentError("header: may only be the first message");
  if (!request.chunk) return absl::InvalidArgumentError("chunk: is not set");
  if (request.chunk->size() == 0) return absl::InvalidArgumentError("chunk.data: is empty");
  if (request.chunk->size() > context_.limits.max_chunk_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("chunk.data: has ", request.chunk->size(), " bytes, at most ",
                                                   context_.limits.max_chunk_bytes, " are accepted"));
  }
  return writer_.Append(*request.chunk);
}

absl::Status VolumeUploadReactor::ReceiveHeader(const v1::UploadVolumeHeader& header) {
  INTRAWARP_ASSIGN_OR_RETURN(const UploadSpec spec, ParseUploadHeader(header, context_.limits));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredVolume> resident, FindResident(spec));
  if (resident != nullptr) {
    Answer(*resident, /*already_resident=*/true);
    return absl::OkStatus();
  }
  INTRAWARP_ASSIGN_OR_RETURN(writer_, context_.uploads.Open(spec));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StoredVolume>> VolumeUploadReactor::FindResident(const UploadSpec& spec) const {
  const std::string digest = IdentityDigest(spec);
  if (spec.id.empty()) return context_.volumes.FindByDigest(digest);
  const auto same_id = context_.volumes.Find(spec.id);
  if (!same_id.ok()) return nullptr;
  if ((*same_id)->digest == digest) return *same_id;
  return absl::AlreadyExistsError(absl::StrCat(VolumeName(spec.id), " exists already, with other content"));
}

void VolumeUploadReactor::EndOfStream() {
  if (call_->IsCancelled()) return Fail(absl::CancelledError("the call was cancelled"));
  if (!writer_) return Fail(absl::InvalidArgumentError("header: is missing"));
  if (!writer_.complete()) {
    return Fail(
        WithReason(absl::InvalidArgumentError(absl::StrCat("chunk.data: the stream ended after ", writer_.received(),
                                                           " of ", writer_.spec().total_bytes, " bytes")),
                   "UPLOAD_INCOMPLETE"));
  }
  absl::Status status = writer_.Verify();
  if (!status.ok()) {
    writer_.Drop();
    return Fail(status);
  }
  status = SubmitPrepare();
  if (!status.ok()) Fail(status);
}

absl::Status VolumeUploadReactor::SubmitPrepare() {
  Job job;
  job.workspace_bytes = PreparedImage::WorkspaceBytes(writer_.spec().geometry, writer_.spec().pixel_type);
  job.checkpoint = [self = self_](const Progress&) {
    return self->finished() ? Decision::kCancel : Decision::kContinue;
  };
  job.run = [self = self_](const absl::StatusOr<const ExecContext*>& ctx) { self->RunPrepare(ctx); };
  job_has_writer_ = true;
  const absl::Status status = context_.jobs.Submit(std::move(job));
  if (!status.ok()) job_has_writer_ = false;
  if (!absl::IsResourceExhausted(status)) return status;
  context_.metrics.CountRejection("QUEUE_FULL");
  return WithReason(status, "QUEUE_FULL");
}

void VolumeUploadReactor::RunPrepare(const absl::StatusOr<const ExecContext*>& ctx) {
  absl::Status status = absl::CancelledError("the call is over");
  if (!finished()) status = PrepareAndStore(ctx);
  if (status.ok()) return;
  // Only the device's memory can run out here: the resident share was reserved before.
  if (absl::IsResourceExhausted(status)) context_.metrics.CountDeviceError(DeviceError::kOutOfMemory);
  if (DropsUpload(status)) {
    writer_.Drop();
  } else {
    writer_ = UploadWriter();
  }
  Fail(status);
}

absl::Status VolumeUploadReactor::PrepareAndStore(const absl::StatusOr<const ExecContext*>& ctx) {
  INTRAWARP_RETURN_IF_ERROR(ctx.status());
  const UploadSpec spec = writer_.spec();
  INTRAWARP_ASSIGN_OR_RETURN(PreparedImage image,
                             PreparedImage::Prepare(**ctx, writer_.data(), spec.pixel_type, spec.rescale.slope,
                                                    spec.rescale.intercept, spec.geometry));
  std::lock_guard<std::mutex> lock(mutex_);
  // Of a call that is over nothing is stored; what was received may be resumed.
  if (finished_) return absl::CancelledError("the call is over");
  // Another upload of the same may have been faster.
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const StoredVolume> volume, FindResident(spec));
  const bool already_resident = volume != nullptr;
  if (!already_resident) {
    INTRAWARP_ASSIGN_OR_RETURN(volume, Store(spec, std::move(image)));
  }
  writer_.Drop();
  AnswerLocked(*volume, already_resident);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StoredVolume>> VolumeUploadReactor::Store(const UploadSpec& spec,
                                                                               PreparedImage image) {
  auto volume = std::make_shared<StoredVolume>();
  volume->id = spec.id;
  volume->pixel_type = spec.pixel_type;
  volume->digest = IdentityDigest(spec);
  volume->content_digest = spec.content_digest;
  volume->create_time = context_.seams.system_now();
  volume->reservation = writer_.TakeReservation();
  volume->image = std::move(image);
  if (!spec.id.empty()) {
    INTRAWARP_RETURN_IF_ERROR(context_.volumes.Insert(volume));
    return volume;
  }
  volume->id_was_chosen = true;
  do {
    volume->id = RandomId(context_.seams);
  } while (!context_.volumes.Insert(volume).ok());
  return volume;
}

void VolumeUploadReactor::Answer(const StoredVolume& volume, bool already_resident) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!finished_) AnswerLocked(volume, already_resident);
}

void VolumeUploadReactor::AnswerLocked(const StoredVolume& volume, bool already_resident) {
  v1::UploadVolumeResponse response;
  *response.mutable_volume() = VolumeToProto(volume);
  response.set_already_resident(already_resident);
  *response_ = SerializeMessage(response);
  finished_ = true;
  Finish(grpc::Status::OK);
}

void VolumeUploadReactor::Fail(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(finished_, true)) return;
  Finish(ToGrpcStatus(status));
}

bool VolumeUploadReactor::finished() {
  std::lock_guard<std::mutex> lock(mutex_);
  return finished_;
}

void VolumeUploadReactor::OnCancel() { Fail(absl::CancelledError("the call was cancelled")); }

void VolumeUploadReactor::OnDone() {
  // A stream that no longer counts holds no upload: it can be resumed, and expires.
  if (!job_has_writer_) writer_ = UploadWriter();
  count_ = StreamCount();
  self_.reset();
}

}  // namespace intrawarp
