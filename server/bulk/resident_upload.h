// SPDX-License-Identifier: Apache-2.0
// ResidentUpload: one call that uploads a resident object, a volume or a matrix. Chunks go from the transport's memory
// to pinned memory in one copy and are hashed on the way; when the client has sent everything, a job puts the object
// together on the device and it is stored.
//
// A call that breaks leaves the upload to be resumed; so does one that the client ends too early, since that cannot be
// told from a broken one for certain, and a refusal for lack of room. A wrong message drops it.
//
// What is uploaded is a Kind:
//   Request                                  a header or a chunk
//   Spec                                     a validated header: UploadSpec and what the kind adds
//   Object, Stored                           what the job makes, and what becomes of it in the store
//   kMethod                                  the RPC's full name, for metrics
//   Parse(header, limits)                    StatusOr<Spec>; the path of a field at fault begins with "header."
//   Store(context)                           ResidentStore<Stored>&
//   Check(data, spec)                        Status of the whole content, on the transport's thread, before the job
//   WorkspaceBytes(spec), Make(ctx, data, spec)   the job: StatusOr<Object>
//   Fill(spec, object, stored)               what a stored object has beside the members that all have
//   Answer(stored, already_resident)         the response
#ifndef INTRAWARP_SERVER_BULK_RESIDENT_UPLOAD_H_
#define INTRAWARP_SERVER_BULK_RESIDENT_UPLOAD_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/exec_context.h"
#include "server/bulk/chunk_codec.h"
#include "server/bulk/upload_store.h"
#include "server/rpc/rpc_support.h"
#include "server/server_context.h"

namespace intrawarp::server {

// What the client did wrong, as opposed to what the server lacks: the upload is dropped with it.
inline bool DropsUpload(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsOutOfRange(status) || absl::IsDataLoss(status) ||
         absl::IsAlreadyExists(status);
}

// Lives until gRPC is done with it and its job has let go.
template <typename Kind>
class ResidentUpload final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  using Stored = typename Kind::Stored;
  using Spec = typename Kind::Spec;

  // What a method handler returns to gRPC. `response` is valid until the call is finished.
  static grpc::ServerReadReactor<grpc::ByteBuffer>* Start(ServerContext& context, grpc::CallbackServerContext* call,
                                                          grpc::ByteBuffer* response) {
    std::shared_ptr<ResidentUpload> upload(new ResidentUpload(context, call, response));
    upload->self_ = upload;
    absl::StatusOr<StreamCount> count = StreamCount::Acquire(context.streams, context.limits.max_streams);
    if (!count.ok()) {
      context.metrics.CountRejection(ReasonOf(count.status()));
      upload->Fail(count.status());
    } else {
      upload->count_ = *std::move(count);
      upload->StartRead(&upload->message_);
    }
    return upload.get();
  }

  void OnReadDone(bool ok) override {
    if (finished()) return;
    if (!ok) {
      EndOfStream();
      return;
    }
    context_.metrics.RpcReceivedBytes(Kind::kMethod, static_cast<int64_t>(message_.Length()));
    const absl::Status status = Receive();
    if (!status.ok()) {
      if (writer_ && DropsUpload(status)) writer_.Drop();
      context_.metrics.CountRejection(ReasonOf(status));
      Fail(status);
      return;
    }
    message_.Clear();
    if (!finished()) StartRead(&message_);
  }

  void OnCancel() override { Fail(absl::CancelledError("the call was cancelled")); }

  void OnDone() override {
    // A stream that no longer counts holds no upload: it can be resumed, and expires.
    if (!job_has_writer_) writer_ = UploadWriter();
    count_ = StreamCount();
    self_.reset();
  }

 private:
  using Request = typename Kind::Request;

  ResidentUpload(ServerContext& context, grpc::CallbackServerContext* call, grpc::ByteBuffer* response)
      : context_(context), call_(call), response_(response) {}

  absl::Status Receive() {
    INTRAWARP_ASSIGN_OR_RETURN(const ReceivedRequest<Request> request, ReceiveRequest<Request>(message_));
    if (!header_received_) {
      if (!request.message.has_header()) {
        return InvalidField("header", "must be the first message");
      }
      header_received_ = true;
      return ReceiveHeader(request.message);
    }
    if (request.message.has_header()) return InvalidField("header", "may only be the first message");
    if (!request.chunk) return InvalidField("chunk", "is not set");
    if (request.chunk->size() == 0) return InvalidField("chunk.data", "is empty");
    if (request.chunk->size() > context_.limits.max_chunk_bytes) {
      return InvalidField("chunk.data", absl::StrCat("has ", request.chunk->size(), " bytes, at most ",
                                                     context_.limits.max_chunk_bytes, " are accepted"));
    }
    return writer_.Append(*request.chunk);
  }

  absl::Status ReceiveHeader(const Request& request) {
    INTRAWARP_ASSIGN_OR_RETURN(spec_, Kind::Parse(request.header(), context_.limits));
    INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const Stored> resident, FindResident());
    if (resident != nullptr) {
      Answer(*resident, /*already_resident=*/true);
      return absl::OkStatus();
    }
    INTRAWARP_ASSIGN_OR_RETURN(writer_, context_.uploads.Open(spec_));
    return absl::OkStatus();
  }

  // The resident object that makes the upload needless, null when there is none; ALREADY_EXISTS when the id is taken.
  absl::StatusOr<std::shared_ptr<const Stored>> FindResident() const {
    if (spec_.id.empty()) return Kind::Store(context_).FindByDigest(spec_.identity_digest);
    const auto same_id = Kind::Store(context_).Find(spec_.id);
    if (!same_id.ok()) return nullptr;
    if ((*same_id)->digest == spec_.identity_digest) return *same_id;
    return AlreadyExists(Stored::Name(spec_.id));
  }

  void EndOfStream() {
    if (call_->IsCancelled()) return Fail(absl::CancelledError("the call was cancelled"));
    if (!writer_) return Fail(InvalidField("header", "is missing"));
    if (!writer_.complete()) {
      return Fail(WithReason(InvalidField("chunk.data", absl::StrCat("the stream ended after ", writer_.received(),
                                                                     " of ", spec_.total_bytes, " bytes")),
                             v1::INVALID_FIELD));
    }
    absl::Status status = writer_.Verify();
    if (status.ok()) status = Kind::Check(writer_.data(), spec_);
    if (!status.ok()) {
      writer_.Drop();
      return Fail(status);
    }
    status = SubmitJob();
    if (!status.ok()) Fail(status);
  }

  absl::Status SubmitJob() {
    Job job;
    job.workspace_bytes = Kind::WorkspaceBytes(spec_);
    job.checkpoint = [self = self_](const Progress&) {
      return self->finished() ? Decision::kCancel : Decision::kContinue;
    };
    job.run = [self = self_](const absl::StatusOr<const ExecContext*>& ctx) { self->RunJob(ctx); };
    job_has_writer_ = true;
    const absl::Status status = context_.jobs.Submit(std::move(job));
    if (!status.ok()) job_has_writer_ = false;
    if (!absl::IsResourceExhausted(status)) return status;
    context_.metrics.CountRejection(v1::QUEUE_FULL);
    return WithReason(status, v1::QUEUE_FULL);
  }

  void RunJob(const absl::StatusOr<const ExecContext*>& ctx) {
    absl::Status status = absl::CancelledError("the call is over");
    if (!finished()) status = MakeAndStore(ctx);
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

  absl::Status MakeAndStore(const absl::StatusOr<const ExecContext*>& ctx) {
    INTRAWARP_RETURN_IF_ERROR(ctx.status());
    INTRAWARP_ASSIGN_OR_RETURN(typename Kind::Object object, Kind::Make(**ctx, writer_.data(), spec_));
    std::lock_guard<std::mutex> lock(mutex_);
    // Of a call that is over nothing is stored; what was received may be resumed.
    if (finished_) return absl::CancelledError("the call is over");
    // Another upload of the same may have been faster.
    INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const Stored> stored, FindResident());
    const bool already_resident = stored != nullptr;
    if (!already_resident) {
      INTRAWARP_ASSIGN_OR_RETURN(stored, Insert(std::move(object)));
    }
    writer_.Drop();
    AnswerLocked(*stored, already_resident);
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const Stored>> Insert(typename Kind::Object object) {
    auto stored = std::make_shared<Stored>();
    stored->id = spec_.id;
    stored->digest = spec_.identity_digest;
    stored->content_digest = spec_.content_digest;
    stored->create_time = context_.seams.system_now();
    stored->reservation = writer_.TakeReservation();
    Kind::Fill(spec_, std::move(object), *stored);
    if (!spec_.id.empty()) {
      INTRAWARP_RETURN_IF_ERROR(Kind::Store(context_).Insert(stored));
      return stored;
    }
    stored->id_was_chosen = true;
    do {
      stored->id = RandomId(context_.seams);
    } while (!Kind::Store(context_).Insert(stored).ok());
    return stored;
  }

  // The first of these ends the call, those after it do nothing.
  void Answer(const Stored& stored, bool already_resident) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!finished_) AnswerLocked(stored, already_resident);
  }
  void AnswerLocked(const Stored& stored, bool already_resident) {
    *response_ = SerializeMessage(Kind::Answer(stored, already_resident));
    finished_ = true;
    Finish(grpc::Status::OK);
  }
  void Fail(const absl::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(finished_, true)) return;
    Finish(ToGrpcStatus(status));
  }
  bool finished() {
    std::lock_guard<std::mutex> lock(mutex_);
    return finished_;
  }

  ServerContext& context_;
  grpc::CallbackServerContext* const call_;
  grpc::ByteBuffer* const response_;
  std::shared_ptr<ResidentUpload> self_;  // until OnDone
  StreamCount count_;
  grpc::ByteBuffer message_;
  bool header_received_ = false;
  // Both are used by the reads first and by the job after them.
  Spec spec_;
  UploadWriter writer_;
  bool job_has_writer_ = false;

  std::mutex mutex_;
  bool finished_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_RESIDENT_UPLOAD_H_
