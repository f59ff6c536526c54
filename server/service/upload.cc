// SPDX-License-Identifier: Apache-2.0
#include "server/service/upload.h"

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/copy_lane.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/base/worker_pool.h"
#include "server/bulk/upload_store.h"
#include "server/context/limits.h"
#include "server/device/device_metrics.h"
#include "server/device/device_set.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_support.h"
#include "server/object/make_object.h"
#include "server/object/upload_slabs.h"
#include "server/placement/replication.h"
#include "server/restore/upload_header.h"
#include "server/rpc/call_reactor.h"
#include "server/rpc/chunk_codec.h"
#include "server/rpc/rpc_metrics.h"
#include "server/sparse/sparse_matrix_kind.h"
#include "server/store/durable_objects.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

constexpr char kMethod[] = "intrawarp.v1.BulkService/Upload";

// An object of its own, or one that needs another one of the caller's.
absl::StatusOr<std::unique_ptr<NewObject>> ParseContent(const v1::UploadHeader& header, const ServerContext& context,
                                                        const Identity& caller) {
  if (header.has_sparse_matrix_values()) return ParseSparseMatrixValuesUpload(header, context, caller);
  return ParseUploadHeader(header, context.limits, context.devices[0].device);
}

absl::StatusOr<std::unique_ptr<NewObject>> ParseHeader(const v1::UploadHeader& header, const ServerContext& context,
                                                       const Identity& caller) {
  absl::StatusOr<std::unique_ptr<NewObject>> object = ParseContent(header, context, caller);
  const v1::ProvenanceSource source = header.volume().provenance().source();
  if (source == v1::PROVENANCE_SOURCE_STORAGE || source == v1::PROVENANCE_SOURCE_RETRIEVED) {
    return InvalidField("header.volume.provenance.source", "is of volumes that the server makes itself");
  }
  if (!object.ok()) return Within("header", object.status());
  return object;
}

// What the client did wrong, as opposed to what the server lacks: the upload is dropped with it. A stream that ends too
// early may be a broken one.
bool DropsUpload(const absl::Status& status) {
  if (ReasonOf(status) == v1::UPLOAD_INCOMPLETE) return false;
  return absl::IsInvalidArgument(status) || absl::IsOutOfRange(status) || absl::IsDataLoss(status) ||
         absl::IsAlreadyExists(status);
}

absl::Status Incomplete(int64_t received, int64_t total) {
  return WithReason(
      InvalidField("chunk.data", absl::StrCat("the stream ended after ", received, " of ", total, " bytes")),
      v1::UPLOAD_INCOMPLETE, {{"received", absl::StrCat(received)}, {"total", absl::StrCat(total)}});
}

// The name of the object that an upload has become.
std::string NameIn(const v1::UploadResponse& response) {
  switch (response.object_case()) {
    case v1::UploadResponse::kVolume:
      return response.volume().name();
    case v1::UploadResponse::kSparseMatrix:
      return response.sparse_matrix().name();
    case v1::UploadResponse::kTransform:
      return response.transform().name();
    case v1::UploadResponse::OBJECT_NOT_SET:
      break;
  }
  return "";
}

absl::Status Cancelled() { return absl::CancelledError("the call was cancelled"); }

class Upload final : public CallReactor<grpc::ServerReadReactor<grpc::ByteBuffer>>,
                     public std::enable_shared_from_this<Upload> {
 public:
  Upload(ServerContext& context, grpc::CallbackServerContext* call, grpc::ByteBuffer* response)
      : CallReactor(context, *call), call_(call), response_(response), audit_(AuditOf(*call)) {}

  void Start() {
    if (!Begin(shared_from_this())) return;
    std::lock_guard<std::mutex> lock(mutex_);
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EndRead();
    if (finished_) return;
    if (const absl::Status status = ok ? CountMessage() : absl::OkStatus(); !status.ok()) return FinishOnce(status);
    if (ok) {
      arrived_.Clear();
      arrived_.Swap(&message_);
      has_arrived_ = true;
    } else {
      ended_ = true;
    }
    if (std::exchange(busy_, true)) return;
    context_.workers.Submit([self = shared_from_this()] { self->Work(); });
  }

  void OnCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    FinishOnce(Cancelled());
  }

 private:
  enum class Next { kNothing, kMessage, kEnd };

  // On a worker: handles messages until there is none. Nobody else uses writer_ and object_ meanwhile (busy_).
  void Work() {
    grpc::ByteBuffer message;
    for (Next next = TakeNext(message); next != Next::kNothing; next = TakeNext(message)) {
      const absl::Status status = next == Next::kMessage ? Receive(message) : EndOfStream();
      message.Clear();
      if (!status.ok()) return Fail(status);
      if (next == Next::kEnd) return;
    }
  }

  Next TakeNext(grpc::ByteBuffer& message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_ || (!has_arrived_ && !ended_)) {
      EndBusy();
      return Next::kNothing;
    }
    if (!has_arrived_) return Next::kEnd;
    message.Swap(&arrived_);
    has_arrived_ = false;
    StartRead(&message_);  // the next one is read while this one is taken
    return Next::kMessage;
  }

  absl::Status Receive(const grpc::ByteBuffer& message) {
    context_.metrics.rpc.BytesReceived(kMethod, static_cast<int64_t>(message.Length()));
    INTRAWARP_ASSIGN_OR_RETURN(const ReceivedRequest<v1::UploadRequest> request,
                               ReceiveRequest<v1::UploadRequest>(message));
    if (object_ == nullptr) {
      if (!request.message.has_header()) return InvalidField("header", "must be the first message");
      return ReceiveHeader(request.message.header());
    }
    if (request.message.has_header()) return InvalidField("header", "may only be the first message");
    if (!request.chunk) return InvalidField("chunk", "is not set");
    if (!writer_) return absl::OkStatus();  // answered
    return writer_.Append(*request.chunk, context_.limits.max_chunk_bytes);
  }

  absl::Status ReceiveHeader(const v1::UploadHeader& header) {
    if (header.has_sparse_matrix_values()) audit_->Name("pattern", header.sparse_matrix_values().pattern());
    INTRAWARP_ASSIGN_OR_RETURN(object_, ParseHeader(header, context_, caller()));
    audit_->Digest("content", object_->spec().content_digest);
    audit_->Digest("object", object_->spec().identity_digest);
    object_->set_owner(caller().name);
    INTRAWARP_ASSIGN_OR_RETURN(std::optional<v1::UploadResponse> resident, object_->FindResident(context_));
    if (resident) {
      std::lock_guard<std::mutex> lock(mutex_);
      Answer(*resident);
      return absl::OkStatus();
    }
    if (context_.durable.enabled()) origin_.header = header.SerializeAsString();
    const auto lost = [weak = weak_from_this()](const absl::Status& why) {
      if (const std::shared_ptr<Upload> self = weak.lock()) self->LoseUpload(why);
    };
    const ObjectSpec& spec = object_->spec();
    const int device = spec.device ? *spec.device : PlaceObject(context_).index;
    INTRAWARP_ASSIGN_OR_RETURN(writer_, context_.uploads.Open(spec, lost, device));
    return UseDevice();
  }

  // Drops an upload whose device has failed; a retry with its id is placed on another device.
  absl::Status UseDevice() {
    DeviceContext& device = context_.devices[writer_.device()];
    {
      std::lock_guard<std::mutex> lock(mutex_);
      device_ = &device;
    }
    const absl::Status usable = CheckPlaced(device);
    if (!usable.ok()) writer_.Drop();
    return usable;
  }

  // To another stream, which waits for a chunk that is being taken, not for this call.
  void LoseUpload(const absl::Status& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    FinishOnce(why);
  }

  absl::Status EndOfStream() {
    {
      // The call's context is gone once the call has ended.
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_ || call_->IsCancelled()) return Cancelled();
    }
    if (object_ == nullptr) return InvalidField("header", "is missing");
    if (!writer_) return Cancelled();  // answered
    if (!writer_.complete()) {
      return Incomplete(writer_.received(), object_->spec().total_bytes);
    }
    INTRAWARP_RETURN_IF_ERROR(writer_.Verify());
    INTRAWARP_RETURN_IF_ERROR(object_->Validate(writer_.data()));
    if (!object_->keeps_bytes()) {
      BeginMaking();
    } else {
      context_.durable.Run([self = shared_from_this()] { self->KeepPayload(); });
    }
    return absl::OkStatus();
  }

  // The bytes are on the disk before there is an object of them.
  void KeepPayload() {
    const int64_t bytes = object_->spec().total_bytes;
    auto kept = context_.durable.Keep(object_->spec().content_digest,
                                      {static_cast<const char*>(writer_.data()), static_cast<size_t>(bytes)});
    if (!kept.ok()) return Fail(kept.status());
    origin_.payload = *std::move(kept);
    BeginMaking();
  }

  void BeginMaking() {
    const int64_t bytes = object_->spec().total_bytes;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      EndBusy();
    }
    TakeSlabs(bytes);
  }

  // The object is made on the device's own threads. While it waits for slabs and for them it is nobody's: the end of
  // the call gives it back.
  void TakeSlabs(int64_t bytes) {
    if (device_->device.kind() == DeviceKind::kCpu || bytes == 0) return TakeWorkspace(nullptr);
    context_.uploads.slabs().Take(bytes, [self = shared_from_this()](absl::StatusOr<std::shared_ptr<SlabPair>> pair) {
      self->TakeWorkspace(std::move(pair));
    });
  }

  // The job of a stream before this one may still have the workspace.
  void TakeWorkspace(absl::StatusOr<std::shared_ptr<SlabPair>> pair) {
    if (!pair.ok()) return FailToSubmit(pair.status());
    std::shared_ptr<UploadWorkspace> workspace;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_) return;
      pair_ = *std::move(pair);
      if (object_->JobWorkspaceBytes()) workspace = writer_.workspace();
    }
    if (workspace == nullptr) return SubmitMake(nullptr);
    workspace->Take([self = shared_from_this()](std::shared_ptr<const Grant> grant) { self->SubmitMake(grant); });
  }

  // Null: the object is copied, which takes no workspace.
  void SubmitMake(std::shared_ptr<const Grant> workspace) {
    absl::Status status;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_) return;
      status = Submit(std::move(workspace));
    }
    if (!status.ok()) FailToSubmit(status);
  }

  void FailToSubmit(const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (finished_) return;
      busy_ = true;
    }
    Fail(status);
  }

  absl::Status Submit(std::shared_ptr<const Grant> workspace) {
    const std::shared_ptr<Upload> self = shared_from_this();
    MakingJob job;
    job.owner = this;
    job.checkpoint = [self](const Progress&) { return self->finished() ? Decision::kCancel : Decision::kContinue; };
    const absl::Status submitted = MakeObject(
        *device_, *object_, [self, workspace = std::move(workspace)] { return self->TakeBytes(); },
        [self](const absl::Status& made) { self->Made(Stopping(self->device_->device, made)); }, std::move(job));
    return WhyRefused(*device_, JobClass::kInteractive, submitted);
  }

  std::optional<StagedUpload> TakeBytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return std::nullopt;
    busy_ = true;
    return StagedUpload(writer_.data(), std::move(pair_));
  }

  // By whoever took the bytes.
  void Made(const absl::Status& status) {
    context_.uploads.slabs().Retry();
    // Only the device's memory can run out here: the resident share was reserved before.
    if (absl::IsResourceExhausted(status)) {
      context_.metrics.device.CountError(DeviceError::kOutOfMemory, device_->index);
    }
    if (!status.ok()) return Fail(status);
    context_.durable.Run([self = shared_from_this()] { self->StoreAndAnswer(); });
  }

  // May wait for the disk, so without the mutex.
  void StoreAndAnswer() {
    // A call that is over stores nothing; the bytes received may be resumed.
    const absl::StatusOr<v1::UploadResponse> stored = finished() ? Cancelled() : KeepAndStore();
    if (!stored.ok()) return Fail(stored.status());
    std::lock_guard<std::mutex> lock(mutex_);
    Answer(*stored);
    EndBusy();
  }

  absl::StatusOr<v1::UploadResponse> KeepAndStore() {
    if (context_.durable.enabled() && !object_->keeps_bytes()) {
      INTRAWARP_ASSIGN_OR_RETURN(origin_, object_->KeepMade(context_.durable));
    }
    return Store();
  }

  absl::StatusOr<v1::UploadResponse> Store() {
    const auto reserve = [this] { return writer_.Claim(); };
    INTRAWARP_ASSIGN_OR_RETURN(v1::UploadResponse stored, StoreObject(context_, *object_, reserve, origin_));
    if (stored.already_resident()) writer_.Drop();  // another upload of the same was faster
    return stored;
  }

  // With the mutex held.
  void Answer(const v1::UploadResponse& response) {
    if (finished_) return;
    audit_->Name("object", NameIn(response));
    *response_ = SerializeMessage(response);
    FinishOnce(absl::OkStatus());
  }

  // By whoever is busy, or before the job that was refused.
  void Fail(const absl::Status& status) {
    if (writer_ && DropsUpload(status)) writer_.Drop();
    context_.metrics.admission.CountRejection(ReasonOf(status));
    std::lock_guard<std::mutex> lock(mutex_);
    FinishOnce(status);
    EndBusy();
  }

  // With the mutex held, by whoever was busy.
  void EndBusy() {
    busy_ = false;
    if (finished_) Release();
  }
  // A call that is over holds no upload: it can be resumed, and expires.
  void Release() override {
    if (device_ != nullptr) device_->jobs.Cancel(this);
    if (busy_) return;
    writer_ = UploadWriter();
    object_.reset();  // with what Make made
    origin_ = ObjectOrigin();
    pair_.reset();
    arrived_.Clear();
  }

  bool finished() {
    std::lock_guard<std::mutex> lock(mutex_);
    return finished_;
  }

  grpc::CallbackServerContext* const call_;
  grpc::ByteBuffer* const response_;
  const std::shared_ptr<CallAudit> audit_;
  grpc::ByteBuffer message_;  // being read
  grpc::ByteBuffer arrived_;  // read, not yet taken
  bool has_arrived_ = false;
  bool ended_ = false;
  // Someone uses what follows, without the mutex.
  bool busy_ = false;
  std::unique_ptr<NewObject> object_;
  ObjectOrigin origin_;
  UploadWriter writer_;
  DeviceContext* device_ = nullptr;  // of the upload; set once, with the mutex held
  std::shared_ptr<SlabPair> pair_;   // while it waits for the device
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartUpload(ServerContext& context, grpc::CallbackServerContext* call,
                                                       grpc::ByteBuffer* response) {
  auto upload = std::make_shared<Upload>(context, call, response);
  upload->Start();
  return upload.get();
}

}  // namespace intrawarp::server
