// SPDX-License-Identifier: Apache-2.0
// UploadTransform: a header, and for a field its chunks, straight into pinned memory; a job checks and stores the
// field.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/transform/velocity.h"
#include "io/digest.h"
#include "server/bulk/chunk_codec.h"
#include "server/registration/registration_options.h"
#include "server/rpc/job_stream.h"
#include "server/rpc/job_support.h"
#include "server/rpc/wire.h"
#include "server/transform/field_request.h"
#include "server/transform/transform_service.h"

namespace intrawarp::server {
namespace {

// True when every float is finite: none has all bits of its exponent set.
bool AllFinite(const char* data, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000;
  const auto* bits = reinterpret_cast<const uint32_t*>(data);
  uint32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) bad |= (bits[i] & kExponent) == kExponent;
  return bad == 0;
}

// The exponential of a faster velocity would not be accurate.
constexpr int kMaxVelocityVoxels = 4096;

float LargestMagnitude(const char* data, int64_t count) {
  const auto* values = reinterpret_cast<const float*>(data);
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

// Thread safety: gRPC's reactions and the job meet under mutex_.
class UploadTransform final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  UploadTransform(ServerContext& context, const grpc::CallbackServerContext& rpc, grpc::ByteBuffer* response)
      : context_(context), rpc_(rpc), response_(response), control_(context.seams, Deadline(rpc, context.seams)) {}

  void Start(std::shared_ptr<UploadTransform> self) {
    self_ = std::move(self);
    std::lock_guard<std::mutex> lock(mutex_);
    absl::StatusOr<StreamCount> count = StreamCount::Acquire(context_.streams, context_.limits.max_streams);
    if (!count.ok()) {
      context_.metrics.CountRejection(v1::TOO_MANY_STREAMS);
      return FinishNow(count.status());
    }
    count_ = *std::move(count);
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    absl::Status status = ok ? Receive() : EndOfStream();
    message_.Clear();
    if (!status.ok()) return FinishNow(status);
    if (ok) StartRead(&message_);
  }

  void OnCancel() override {
    control_.Cancel();
    std::lock_guard<std::mutex> lock(mutex_);
    if (!finished_) FinishNow(control_.CancelStatus());
  }

  void OnDone() override {
    std::shared_ptr<UploadTransform> self;  // may delete this when it goes, after the lock
    std::lock_guard<std::mutex> lock(mutex_);
    self = std::move(self_);
    // Stored, but the client never learned it.
    if (stored_ && rpc_.IsCancelled()) (void)context_.transforms.Erase(id_);
    count_ = StreamCount();
  }

 private:
  // All of these with the mutex held, but for StoreField.
  absl::Status Receive() {
    context_.metrics.RpcReceivedBytes("intrawarp.v1.TransformService/UploadTransform", message_.Length());
    INTRAWARP_ASSIGN_OR_RETURN(ReceivedRequest<v1::UploadTransformRequest> request,
                               ReceiveRequest<v1::UploadTransformRequest>(message_));
    if (request.chunk) return ReceiveChunk(*request.chunk);
    if (!request.message.has_header()) return InvalidField("payload", "must be header or chunk");
    if (has_header_) return InvalidField("header", "is sent twice");
    has_header_ = true;
    return Within("header", ReceiveHeader(request.message.header()));
  }

  absl::Status ReceiveHeader(const v1::UploadTransformHeader& header) {
    INTRAWARP_RETURN_IF_ERROR(ChooseId(header.id()));
    switch (header.content_case()) {
      case v1::UploadTransformHeader::kAffine:
        return ReceiveMatrix(header);
      case v1::UploadTransformHeader::kField:
        return ReceiveFieldHeader(header);
      case v1::UploadTransformHeader::CONTENT_NOT_SET:
        break;
    }
    return InvalidField("content", "matrix or field must be given");
  }

  absl::Status ChooseId(const std::string& wanted) {
    id_ = wanted.empty() ? RandomId(context_.seams) : wanted;
    INTRAWARP_RETURN_IF_ERROR(ValidateId(id_, "id"));
    if (!context_.transforms.Find(id_).ok()) return absl::OkStatus();
    return AlreadyExists(TransformName(id_));
  }

  absl::Status ReceiveMatrix(const v1::UploadTransformHeader& header) {
    absl::StatusOr<AffineMap> matrix = InvertibleMapFromProto(header.affine());
    if (!matrix.ok()) return Within("affine", matrix.status());
    if (!header.digest().empty()) return InvalidField("digest", "must be empty for a matrix");
    matrix_ = *matrix;
    return absl::OkStatus();
  }

  absl::Status ReceiveFieldHeader(const v1::UploadTransformHeader& header) {
    const v1::FieldHeader& field = header.field();
    absl::StatusOr<Geometry> grid = GeometryFromProto(field.geometry());
    if (!grid.ok()) return Within("field.geometry", grid.status());
    grid_ = *grid;
    INTRAWARP_RETURN_IF_ERROR(Within("field", ReceiveForm(field)));
    absl::Status size = ValidateOutputSize(context_, grid_);
    if (!size.ok()) return Within("field.geometry", size);
    total_bytes_ = FieldBytes(FieldRequest(), grid_);
    if (field.total_bytes() != total_bytes_) {
      return InvalidField("field.total_bytes", absl::StrCat("is ", field.total_bytes(), ", must be ", total_bytes_,
                                                            " for ", SizeString(grid_), " voxels"));
    }
    if (header.digest().size() != io::Sha256::kBytes) {
      return InvalidField("digest", "must be the SHA-256 of the field, 32 bytes");
    }
    digest_ = header.digest();
    INTRAWARP_ASSIGN_OR_RETURN(reservation_, ReserveResident(context_, ResidentBytes()));
    INTRAWARP_ASSIGN_OR_RETURN(memory_, LeasePinned(context_, total_bytes_));
    return absl::OkStatus();
  }

  // A velocity lies beside its exponentials, forward and backward.
  int64_t ResidentBytes() const { return form_ == FieldForm::kVelocity ? 3 * total_bytes_ : total_bytes_; }

  absl::Status ReceiveForm(const v1::FieldHeader& field) {
    switch (field.encoding()) {
      case v1::FIELD_ENCODING_FLOAT32:
        return absl::OkStatus();
      case v1::FIELD_ENCODING_CONTROL_POINTS:
        form_ = FieldForm::kControlPoints;
        return ReceiveControlGrid(field);
      case v1::FIELD_ENCODING_VELOCITY:
        form_ = FieldForm::kVelocity;
        return ReceiveVelocity(field);
      default:
        return InvalidField("encoding", "must be FLOAT32, CONTROL_POINTS or VELOCITY");
    }
  }

  absl::Status ReceiveVelocity(const v1::FieldHeader& field) {
    if (field.has_domain()) return InvalidField("domain", "of a VELOCITY is its geometry");
    return ReceiveAffinePart(field);
  }

  absl::Status ReceiveAffinePart(const v1::FieldHeader& field) {
    absl::StatusOr<AffineMap> matrix = InvertibleMapFromProto(field.affine());
    if (!matrix.ok()) return Within("affine", matrix.status());
    matrix_ = *matrix;
    return absl::OkStatus();
  }

  absl::Status ReceiveControlGrid(const v1::FieldHeader& field) {
    for (int a = 0; a < 3; ++a) {
      // A cubic spline has four control points a tile; an axis with one has no spline.
      if (grid_.size[a] < 4 && !(a == 2 && grid_.size[a] == 1)) {
        return InvalidField("geometry.size",
                            absl::StrCat(SizeString(grid_), " control points, must be 4 or more along each axis"));
      }
    }
    INTRAWARP_RETURN_IF_ERROR(ReceiveAffinePart(field));
    if (field.has_domain()) {
      absl::StatusOr<Geometry> domain = GeometryFromProto(field.domain());
      if (!domain.ok()) return Within("domain", domain.status());
      domain_ = *domain;
    }
    return absl::OkStatus();
  }

  absl::Status ReceiveChunk(const ReceivedChunk& chunk) {
    if (!has_header_) return InvalidField("chunk", "comes before the header");
    if (memory_ == nullptr) return InvalidField("chunk", "a matrix has none");
    INTRAWARP_RETURN_IF_ERROR(ValidateChunk(context_, chunk.offset(), chunk.size(), received_bytes_, total_bytes_));
    char* to = memory_->as<char>() + received_bytes_;
    chunk.CopyTo(to);
    sha_.Update(to, chunk.size());
    received_bytes_ += chunk.size();
    return absl::OkStatus();
  }

  absl::Status EndOfStream() {
    if (rpc_.IsCancelled()) return control_.CancelStatus();
    if (!has_header_) return InvalidField("header", "is missing");
    if (memory_ == nullptr) {
      INTRAWARP_RETURN_IF_ERROR(Store(Transform(matrix_)));
      FinishNow(absl::OkStatus());
      return absl::OkStatus();
    }
    if (received_bytes_ < total_bytes_) {
      return InvalidField("chunk",
                          absl::StrCat("the stream ended after ", received_bytes_, " of ", total_bytes_, " bytes"));
    }
    if (sha_.Finish() != digest_) {
      return WithReason(FieldError(absl::StatusCode::kDataLoss, "header.digest", "is not that of the bytes received"),
                        v1::DIGEST_MISMATCH);
    }
    return SubmitStoreField();
  }

  absl::Status SubmitStoreField() {
    Job job;
    if (form_ == FieldForm::kVelocity) job.workspace_bytes = VelocityTransformWorkspaceBytes(grid_.size);
    job.run = [self = self_](const absl::StatusOr<const ExecContext*>& ctx) {
      self->FieldStored(ctx.ok() ? self->UploadField(**ctx) : ctx.status());
    };
    return SubmitJob(context_, std::move(job));
  }

  // On the job's thread, without the mutex: no chunk comes any more.
  absl::StatusOr<Transform> UploadField(const ExecContext& ctx) {
    if (control_.cancelled()) return control_.CancelStatus();
    INTRAWARP_RETURN_IF_ERROR(ValidateComponents());
    INTRAWARP_ASSIGN_OR_RETURN(Buffer buffer, ctx.device().Allocate(total_bytes_, ctx.stream()));
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Copy(buffer.as<char>(), memory_->as<char>(), total_bytes_, ctx.stream()));
    absl::StatusOr<Transform> transform = MakeTransform(ctx, std::move(buffer));
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
    return transform;
  }

  absl::Status ValidateComponents() const {
    const char* const data = memory_->as<char>();
    const int64_t count = 3 * grid_.voxels();
    if (!AllFinite(data, count)) return InvalidField("field", "holds a component that is NaN or infinite");
    if (form_ != FieldForm::kVelocity) return absl::OkStatus();
    const double most = kMaxVelocityVoxels * std::min({grid_.spacing.x, grid_.spacing.y, grid_.spacing.z});
    if (LargestMagnitude(data, count) <= most) return absl::OkStatus();
    return InvalidField("field",
                        absl::StrCat("holds a component of more than ", kMaxVelocityVoxels, " voxels (", most, " mm)"));
  }

  absl::StatusOr<Transform> MakeTransform(const ExecContext& ctx, Buffer buffer) const {
    switch (form_) {
      case FieldForm::kDisplacement:
        break;
      case FieldForm::kControlPoints:
        return Transform(matrix_, std::move(buffer), grid_, domain_);
      case FieldForm::kVelocity:
        return MakeVelocityTransform(ctx, matrix_, std::move(buffer), grid_);
    }
    return Transform(std::move(buffer), grid_);
  }

  void FieldStored(absl::StatusOr<Transform> transform) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    if (!transform.ok()) return FinishNow(transform.status());
    FinishNow(Store(*std::move(transform)));
  }

  absl::Status Store(Transform transform) {
    auto stored = std::make_shared<StoredTransform>(
        StoredTransform{id_, context_.seams.system_now(), std::nullopt,
                        std::make_shared<ResidentReservation>(std::move(reservation_)), std::move(transform)});
    v1::UploadTransformResponse response;
    *response.mutable_transform() = TransformToProto(*stored, /*with_report=*/true);
    INTRAWARP_RETURN_IF_ERROR(StoreTransform(context_, std::move(stored)));
    stored_ = true;
    *response_ = SerializeMessage(response);
    return absl::OkStatus();
  }

  void FinishNow(const absl::Status& status) {
    finished_ = true;
    control_.Cancel();
    Finish(ToGrpcStatus(status));
  }

  ServerContext& context_;
  const grpc::CallbackServerContext& rpc_;  // until OnDone
  grpc::ByteBuffer* const response_;
  JobControl control_;
  std::shared_ptr<UploadTransform> self_;  // until OnDone
  StreamCount count_;
  std::mutex mutex_;
  grpc::ByteBuffer message_;
  bool has_header_ = false;
  bool finished_ = false;
  bool stored_ = false;
  std::string id_;
  AffineMap matrix_;
  FieldForm form_ = FieldForm::kDisplacement;
  std::optional<Geometry> domain_;
  int64_t total_bytes_ = 0;
  // Of a field only.
  Geometry grid_;
  std::string digest_;
  ResidentReservation reservation_;
  std::shared_ptr<PinnedBuffer> memory_;
  io::Sha256 sha_;
  int64_t received_bytes_ = 0;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartUploadTransform(ServerContext& context,
                                                                const grpc::CallbackServerContext& rpc,
                                                                grpc::ByteBuffer* response) {
  auto reactor = std::make_shared<UploadTransform>(context, rpc, response);
  reactor->Start(reactor);
  return reactor.get();
}

}  // namespace intrawarp::server
