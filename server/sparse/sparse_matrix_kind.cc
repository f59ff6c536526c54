// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/sparse_matrix_kind.h"

#include <limits>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/sparse/csr.h"
#include "io/file/digest.h"
#include "server/bulk/object_content.h"
#include "server/bulk/upload_spec.h"
#include "server/sparse/matrix_messages.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/store/request_table.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max();

struct MatrixContent {
  int32_t rows = 0;
  int32_t columns = 0;
  int64_t entries = 0;
  ValueType type = ValueType::kFloat32;
};

absl::Status ValidateSide(absl::string_view field, int64_t side) {
  if (side >= 0 && side <= kMaxSide) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("is ", side, ", must be 0 to ", kMaxSide));
}

absl::StatusOr<ValueType> ValueTypeFromProto(v1::ValueType from) {
  if (from == v1::VALUE_TYPE_FLOAT32) return ValueType::kFloat32;
  if (from == v1::VALUE_TYPE_FLOAT64) return ValueType::kFloat64;
  return InvalidField("value_type", "must be FLOAT32 or FLOAT64");
}

absl::StatusOr<MatrixContent> ParseShape(const v1::SparseMatrixShape& shape) {
  MatrixContent content;
  INTRAWARP_RETURN_IF_ERROR(ValidateSide("rows", shape.rows()));
  INTRAWARP_RETURN_IF_ERROR(ValidateSide("columns", shape.columns()));
  // Less than 2^62.
  const int64_t places = shape.rows() * shape.columns();
  if (shape.entries() < 0 || shape.entries() > places) {
    return InvalidField("entries", absl::StrCat("is ", shape.entries(), ", must be 0 to ", places, " in a matrix of ",
                                                shape.rows(), " x ", shape.columns()));
  }
  INTRAWARP_ASSIGN_OR_RETURN(content.type, ValueTypeFromProto(shape.value_type()));
  content.rows = static_cast<int32_t>(shape.rows());
  content.columns = static_cast<int32_t>(shape.columns());
  content.entries = shape.entries();
  return content;
}

// A matrix in no store yet. `description` is that of ObjectOrigin: of a product its result, of new values their digest
// in the same message.
absl::StatusOr<std::shared_ptr<StoredMatrix>> MakeStored(CsrMatrix matrix, const std::string& content_digest,
                                                         Grant reservation, const std::string& description) {
  v1::MultiplyResult result;
  if (!result.ParseFromString(description)) return absl::DataLossError("the report of the product is damaged");
  auto stored = std::make_shared<StoredMatrix>();
  const std::string& values_digest = result.sparse_matrix().digest();
  stored->content_digest = values_digest.empty() ? content_digest : values_digest;
  stored->reservation = std::move(reservation);
  stored->matrix = std::move(matrix);
  stored->report = result.report();
  return stored;
}

// Tells matrices apart by content, shape and type.
std::string IdentityDigest(const std::string& content_digest, const MatrixContent& content) {
  io::Sha256 hash;
  const auto add = [&hash](const auto& value) { hash.Update(&value, sizeof(value)); };
  constexpr char kKind[] = "matrix";  // an upload of a volume is another one
  hash.Update(kKind, sizeof(kKind));
  hash.Update(content_digest.data(), content_digest.size());
  add(content.rows);
  add(content.columns);
  add(content.entries);
  add(static_cast<int32_t>(content.type));
  return hash.Finish();
}

class SparseMatrixKind final : public NewObjectOf<StoredMatrix> {
 public:
  SparseMatrixKind(ObjectSpec spec, const MatrixContent& content) : NewObjectOf(std::move(spec)), content_(content) {}

  absl::Status Validate(const void* data) const override {
    const auto* offsets = static_cast<const int64_t*>(data);
    const auto* columns = reinterpret_cast<const int32_t*>(offsets + content_.rows + 1);
    return ValidateCsr(content_.rows, content_.columns, absl::MakeConstSpan(offsets, content_.rows + size_t{1}),
                       absl::MakeConstSpan(columns, content_.entries));
  }
  std::optional<int64_t> JobWorkspaceBytes() const override { return std::nullopt; }
  absl::Status Make(const ExecContext& ctx, StagedUpload& upload) override {
    INTRAWARP_ASSIGN_OR_RETURN(matrix_, CsrMatrix::Allocate(ctx.device(), ctx.stream(), content_.rows, content_.columns,
                                                            content_.entries, content_.type));
    int64_t begin = 0;
    const auto copy = [&](void* to, int64_t bytes) {
      return upload.CopyTo(ctx, to, std::exchange(begin, begin + bytes), bytes);
    };
    absl::Status status = copy(matrix_.row_offsets(), (int64_t{content_.rows} + 1) * int64_t{sizeof(int64_t)});
    if (status.ok()) status = copy(matrix_.column_indices(), content_.entries * int64_t{sizeof(int32_t)});
    if (status.ok()) status = copy(matrix_.values(), content_.entries * BytesPerValue(content_.type));
    // Also after an error: nothing may refer to the upload's memory any more.
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    return status.ok() ? synchronized : status;
  }
  absl::StatusOr<std::shared_ptr<StoredMatrix>> Take(Grant reservation, const std::string& description) override {
    return MakeStored(std::move(matrix_), spec().content_digest, std::move(reservation), description);
  }

 private:
  void Describe(const StoredMatrix& stored, v1::UploadResponse& answer) const override {
    *answer.mutable_sparse_matrix() = SparseMatrixToProto(stored);
  }

  const MatrixContent content_;
  CsrMatrix matrix_;
};

// Tells new values apart by their bytes, their type and the matrix whose pattern they have.
std::string ValuesIdentityDigest(const std::string& content_digest, const StoredMatrix& first, ValueType type) {
  const std::string pattern = InputPrint::Of(first).bytes();
  const auto type_number = static_cast<int32_t>(type);
  io::Sha256 hash;
  constexpr char kKind[] = "matrix values";
  hash.Update(kKind, sizeof(kKind));
  hash.Update(content_digest.data(), content_digest.size());
  hash.Update(pattern.data(), pattern.size());
  hash.Update(&type_number, sizeof(type_number));
  return hash.Finish();
}

// New values in the pattern of another matrix.
class MatrixValuesKind final : public NewObjectOf<StoredMatrix> {
 public:
  MatrixValuesKind(ObjectSpec spec, std::shared_ptr<const CsrPattern> pattern, ValueType type)
      : NewObjectOf(std::move(spec)), pattern_(std::move(pattern)), type_(type) {}

  // Every value is one.
  absl::Status Validate(const void*) const override { return absl::OkStatus(); }
  std::optional<int64_t> JobWorkspaceBytes() const override { return std::nullopt; }
  bool keeps_bytes() const override { return false; }
  absl::Status Make(const ExecContext& ctx, StagedUpload& upload) override {
    const int64_t bytes = pattern_->entries * BytesPerValue(type_);
    INTRAWARP_ASSIGN_OR_RETURN(Buffer values, ctx.device().Allocate(static_cast<size_t>(bytes), ctx.stream()));
    const absl::Status copied = upload.CopyTo(ctx, values.as<void>(), 0, bytes);
    // Also after an error: nothing may refer to the upload's memory any more.
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    INTRAWARP_RETURN_IF_ERROR(copied);
    INTRAWARP_RETURN_IF_ERROR(synchronized);
    matrix_ = CsrMatrix(pattern_, type_, std::move(values));
    return spec().content_bytes == 0 ? absl::OkStatus() : CopyWhole(ctx);
  }
  absl::StatusOr<ObjectOrigin> KeepMade(DurableObjects& durable) override {
    v1::MultiplyResult description;
    description.mutable_sparse_matrix()->set_digest(spec().content_digest);
    INTRAWARP_ASSIGN_OR_RETURN(ObjectOrigin origin, KeepContent(durable, std::exchange(whole_, {})));
    origin.description = description.SerializeAsString();
    return origin;
  }
  absl::StatusOr<std::shared_ptr<StoredMatrix>> Take(Grant reservation, const std::string& description) override {
    return MakeStored(std::move(matrix_), spec().content_digest, std::move(reservation), description);
  }

 private:
  // Its memory is part of the upload's claim (ObjectSpec::content_bytes).
  absl::Status CopyWhole(const ExecContext& ctx) {
    v1::UploadHeader header;
    *header.mutable_sparse_matrix()->mutable_shape() = ShapeToProto(matrix_.view(), type_);
    INTRAWARP_ASSIGN_OR_RETURN(whole_, CopyContent(ctx, std::move(header), WireBytes(matrix_.view()), Grant()));
    return absl::OkStatus();
  }
  void Describe(const StoredMatrix& stored, v1::UploadResponse& answer) const override {
    *answer.mutable_sparse_matrix() = SparseMatrixToProto(stored);
  }

  const std::shared_ptr<const CsrPattern> pattern_;
  const ValueType type_;
  CsrMatrix matrix_;
  // The whole CSR, on a server that keeps its objects.
  ObjectContent whole_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NewObjectOf<StoredMatrix>>> ParseSparseMatrixUpload(const v1::UploadHeader& header,
                                                                                   const ServerLimits& limits) {
  absl::StatusOr<MatrixContent> content = ParseShape(header.sparse_matrix().shape());
  if (!content.ok()) return Within("sparse_matrix.shape", content.status());
  const absl::StatusOr<int64_t> bytes = CsrBytes(content->rows, content->entries, content->type);
  if (!bytes.ok()) return InvalidField("sparse_matrix.shape.entries", "overflow 64 bits in bytes");
  INTRAWARP_ASSIGN_OR_RETURN(ObjectSpec spec, ParseUploadSpec(header, *bytes, limits.max_matrix_bytes));
  spec.identity_digest = IdentityDigest(spec.content_digest, *content);
  spec.resident_bytes = MatrixResidentBytes(content->rows, content->entries, content->type);
  return std::make_unique<SparseMatrixKind>(std::move(spec), *content);
}

absl::StatusOr<std::unique_ptr<NewObjectOf<StoredMatrix>>> ParseSparseMatrixValuesUpload(const v1::UploadHeader& header,
                                                                                         const ServerContext& context,
                                                                                         const Identity& caller) {
  const v1::SparseMatrixValuesUpload& values = header.sparse_matrix_values();
  absl::StatusOr<ValueType> type = ValueTypeFromProto(values.value_type());
  if (!type.ok()) return Within("sparse_matrix_values", type.status());
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredMatrix> first,
                             FindMatrix(context.matrices, values.pattern(), "sparse_matrix_values.pattern", caller));
  const std::shared_ptr<const CsrPattern>& pattern = first->matrix.pattern();
  INTRAWARP_ASSIGN_OR_RETURN(ObjectSpec spec, ParseUploadSpec(header, pattern->entries * BytesPerValue(*type),
                                                              context.limits.max_matrix_bytes));
  spec.identity_digest = ValuesIdentityDigest(spec.content_digest, *first, *type);
  // As a whole matrix, which it is once the first one is deleted, and after a restart.
  spec.resident_bytes = MatrixResidentBytes(pattern->rows, pattern->entries, *type);
  spec.device = first->reservation.device();
  if (context.durable.enabled()) {
    INTRAWARP_ASSIGN_OR_RETURN(spec.content_bytes, CsrBytes(pattern->rows, pattern->entries, *type));
  }
  return std::make_unique<MatrixValuesKind>(std::move(spec), pattern, *type);
}

absl::StatusOr<ResidentDownload> FindSparseMatrixDownload(const ServerContext& context, const std::string& name,
                                                          const Identity& caller) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredMatrix> matrix,
                             FindMatrix(context.matrices, name, "name", caller));
  ResidentDownload download;
  download.bytes = {matrix, WireBytes(matrix->matrix.view())};
  download.device = matrix->reservation.device();
  download.create_time = matrix->create_time;
  download.digest = matrix->digest;
  *download.header.mutable_sparse_matrix() = SparseMatrixToProto(*matrix);
  download.header.set_total_bytes(TotalBytes(download.bytes.bytes));
  return download;
}

}  // namespace intrawarp::server
