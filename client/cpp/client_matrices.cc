// SPDX-License-Identifier: Apache-2.0
// The matrix calls of Client.
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/cpp/client_impl.h"
#include "client/cpp/matrix_receiver.h"
#include "engine/base/field_error.h"

namespace intrawarp::client {
namespace {

template <typename T>
absl::string_view BytesOf(absl::Span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A product of either kind.
template <typename Request>
absl::StatusOr<v1::MultiplyResult> CallMultiply(Client::Impl& impl, const char* method, const Request& request,
                                                const MultiplyProgressCallback& on_progress, SparseMatrix* product,
                                                const CallOptions& options) {
  const bool kept = request.has_keep();
  if (!kept && product == nullptr) return FieldError(absl::StatusCode::kInvalidArgument, "product", "no place for it");
  Call call(options);
  std::optional<v1::MultiplyResult> result;
  MatrixReceiver receiver(product, impl.options.max_answer_bytes);
  const auto accept = [&](v1::MultiplyResponse& response) -> absl::Status {
    if (result.has_value()) return absl::InternalError("the server sent more after the result");
    switch (response.payload_case()) {
      case v1::MultiplyResponse::kProgress:
        if (on_progress) on_progress(response.progress());
        return absl::OkStatus();
      case v1::MultiplyResponse::kHeader:
        if (kept) return absl::InternalError("the server sent a product that it was to keep");
        return receiver.Begin(response.header().shape(), response.header().total_bytes());
      case v1::MultiplyResponse::kResult:
        result = std::move(*response.mutable_result());
        return absl::OkStatus();
      default:
        return absl::OkStatus();  // a kind of message of a later version
    }
  };
  INTRAWARP_RETURN_IF_ERROR(ReadChunks<v1::MultiplyResponse>(call, *impl.bulk(), method, request, receiver, accept));
  if (!result.has_value()) return absl::InternalError("the server ended without a result");
  if (!kept) INTRAWARP_RETURN_IF_ERROR(receiver.Finish());
  return *std::move(result);
}

}  // namespace

absl::StatusOr<v1::UploadResponse> Client::UploadSparseMatrix(const SparseMatrixUpload& upload,
                                                              const CallOptions& options) {
  if (upload.matrix == nullptr) return FieldError(absl::StatusCode::kInvalidArgument, "matrix", "there is none");
  INTRAWARP_RETURN_IF_ERROR(std::visit([](const auto& csr) { return ValidateCsr(csr); }, *upload.matrix));
  v1::UploadHeader header;
  header.set_id(upload.id);
  *header.mutable_sparse_matrix()->mutable_shape() = ShapeOf(*upload.matrix);
  return impl_->Upload(std::move(header), {WireArrays(*upload.matrix), upload.on_progress}, options);
}

absl::StatusOr<v1::UploadResponse> Client::UploadSparseMatrixValues(const SparseMatrixValuesUpload& upload,
                                                                    const CallOptions& options) {
  v1::UploadHeader header;
  header.set_id(upload.id);
  v1::SparseMatrixValuesUpload& values = *header.mutable_sparse_matrix_values();
  values.set_pattern(upload.pattern);
  const bool is_double = std::holds_alternative<absl::Span<const double>>(upload.values);
  values.set_value_type(is_double ? v1::VALUE_TYPE_FLOAT64 : v1::VALUE_TYPE_FLOAT32);
  const absl::string_view bytes = std::visit([](auto span) { return BytesOf(span); }, upload.values);
  return impl_->Upload(std::move(header), {{bytes}, upload.on_progress}, options);
}

absl::StatusOr<v1::SparseMatrix> Client::GetSparseMatrix(const std::string& name, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::GetSparseMatrixRequest request;
  request.set_name(name);
  v1::GetSparseMatrixResponse response;
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->matrices.GetSparseMatrix(call.context(), request, &response)));
  return std::move(*response.mutable_sparse_matrix());
}

absl::StatusOr<std::vector<v1::SparseMatrix>> Client::ListSparseMatrices(const CallOptions& options) {
  std::vector<v1::SparseMatrix> matrices;
  v1::ListSparseMatricesRequest request;
  request.set_page_size(kPageSize);
  do {
    Call call(options, impl_->options.unary_timeout);
    v1::ListSparseMatricesResponse response;
    INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->matrices.ListSparseMatrices(call.context(), request, &response)));
    for (v1::SparseMatrix& matrix : *response.mutable_sparse_matrices()) matrices.push_back(std::move(matrix));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return matrices;
}

absl::StatusOr<v1::SparseMatrix> Client::DownloadSparseMatrix(const std::string& name, SparseMatrix* matrix,
                                                              const CallOptions& options) {
  v1::DownloadRequest request;
  request.set_name(name);
  v1::SparseMatrix description;
  MatrixReceiver receiver(matrix, impl_->options.max_answer_bytes);
  const auto accept = [&](v1::DownloadResponse& response) {
    description = std::move(*response.mutable_header()->mutable_sparse_matrix());
    return receiver.Begin(description.shape(), response.header().total_bytes());
  };
  INTRAWARP_RETURN_IF_ERROR(
      ReadResuming<v1::DownloadResponse>(*impl_, kDownloadMethod, request, receiver, options, accept));
  return description;
}

absl::Status Client::DeleteSparseMatrix(const std::string& name, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::DeleteSparseMatrixRequest request;
  request.set_name(name);
  v1::DeleteSparseMatrixResponse response;
  return FromGrpcStatus(impl_->matrices.DeleteSparseMatrix(call.context(), request, &response));
}

absl::StatusOr<v1::MultiplyResult> Client::Multiply(const v1::MultiplyRequest& request,
                                                    const MultiplyProgressCallback& on_progress, SparseMatrix* product,
                                                    const CallOptions& options) {
  return CallMultiply(*impl_, "/intrawarp.v1.SparseMatrixService/Multiply", request, on_progress, product, options);
}

absl::StatusOr<v1::MultiplyResult> Client::MultiplyTriple(const v1::MultiplyTripleRequest& request,
                                                          const MultiplyProgressCallback& on_progress,
                                                          SparseMatrix* product, const CallOptions& options) {
  return CallMultiply(*impl_, "/intrawarp.v1.SparseMatrixService/MultiplyTriple", request, on_progress, product,
                      options);
}

}  // namespace intrawarp::client
