// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/matrix_upload.h"

#include <utility>

#include "engine/sparse/csr.h"
#include "intrawarp/v1/matrix.pb.h"
#include "server/bulk/resident_upload.h"
#include "server/sparse/matrix_messages.h"
#include "server/store/matrix_store.h"

namespace intrawarp::server {
namespace {

struct MatrixKind {
  using Request = v1::UploadMatrixRequest;
  using Spec = MatrixSpec;
  using Object = CsrMatrix;
  using Stored = StoredMatrix;
  static constexpr char kMethod[] = "intrawarp.v1.SparseMatrixService/UploadMatrix";

  static absl::StatusOr<MatrixSpec> Parse(const v1::UploadMatrixHeader& header, const ServerLimits& limits) {
    return ParseMatrixHeader(header, limits);
  }
  static MatrixStore& Store(ServerContext& context) { return context.matrices; }
  static absl::Status Check(const void* data, const MatrixSpec& spec) { return ValidateMatrixBytes(data, spec); }
  static int64_t WorkspaceBytes(const MatrixSpec&) { return 0; }
  static absl::StatusOr<CsrMatrix> Make(const ExecContext& ctx, const void* data, const MatrixSpec& spec) {
    INTRAWARP_ASSIGN_OR_RETURN(CsrMatrix matrix, CsrMatrix::Allocate(ctx.device(), ctx.stream(), spec.rows,
                                                                     spec.columns, spec.entries, spec.type));
    const auto* from = static_cast<const char*>(data);
    const auto copy = [&](void* to, int64_t bytes) {
      const absl::Status status = ctx.device().Copy(to, from, static_cast<size_t>(bytes), ctx.stream());
      from += bytes;
      return status;
    };
    absl::Status status = copy(matrix.row_offsets(), (int64_t{spec.rows} + 1) * int64_t{sizeof(int64_t)});
    if (status.ok()) status = copy(matrix.column_indices(), spec.entries * int64_t{sizeof(int32_t)});
    if (status.ok()) status = copy(matrix.values(), spec.entries * BytesPerValue(spec.type));
    // Also after an error: nothing may refer to the upload's memory any more.
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    INTRAWARP_RETURN_IF_ERROR(status);
    INTRAWARP_RETURN_IF_ERROR(synchronized);
    return matrix;
  }
  static void Fill(const MatrixSpec&, CsrMatrix matrix, StoredMatrix& stored) { stored.matrix = std::move(matrix); }
  static v1::UploadMatrixResponse Answer(const StoredMatrix& stored, bool already_resident) {
    v1::UploadMatrixResponse response;
    *response.mutable_matrix() = SparseMatrixToProto(stored);
    response.set_already_resident(already_resident);
    return response;
  }
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartUploadMatrix(ServerContext& context, grpc::CallbackServerContext* call,
                                                             grpc::ByteBuffer* response) {
  return ResidentUpload<MatrixKind>::Start(context, call, response);
}

}  // namespace intrawarp::server
