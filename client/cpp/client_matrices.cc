// SPDX-License-Identifier: Apache-2.0
// The matrix calls of Client.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/client_impl.h"
#include "client/cpp/matrix_receiver.h"
#include "client/cpp/resumable_upload.h"
#include "client/cpp/uuid.h"
#include "io/digest.h"

namespace intrawarp::client {
namespace {

constexpr int kPageSize = 500;

absl::StatusOr<v1::UploadMatrixHeader> MakeHeader(const SparseMatrixUpload& upload) {
  if (upload.matrix == nullptr) return absl::InvalidArgumentError("matrix: there is none");
  INTRAWARP_RETURN_IF_ERROR(std::visit([](const auto& csr) { return ValidateCsr(csr); }, *upload.matrix));
  v1::UploadMatrixHeader header;
  INTRAWARP_ASSIGN_OR_RETURN(*header.mutable_upload_id(), RandomUuid());
  header.set_id(upload.id);
  *header.mutable_shape() = ShapeOf(*upload.matrix);
  io::Sha256 hash;
  int64_t bytes = 0;
  for (absl::string_view array : WireArrays(*upload.matrix)) {
    hash.Update(array.data(), array.size());
    bytes += static_cast<int64_t>(array.size());
  }
  header.set_total_bytes(bytes);
  header.set_digest(hash.Finish());
  return header;
}

// The piece [begin, begin + size) of the arrays one behind the other.
std::string Piece(const std::array<absl::string_view, 3>& arrays, size_t begin, size_t size) {
  std::string piece;
  piece.reserve(size);
  for (absl::string_view array : arrays) {
    if (begin < array.size()) {
      const absl::string_view part = array.substr(begin, size - piece.size());
      piece.append(part.data(), part.size());
    }
    begin -= std::min(begin, array.size());
  }
  return piece;
}

}  // namespace

absl::StatusOr<v1::UploadMatrixResponse> Client::UploadSparseMatrix(const SparseMatrixUpload& upload,
                                                                    const CallOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(const v1::UploadMatrixHeader header, MakeHeader(upload));
  v1::UploadMatrixResponse response;
  INTRAWARP_RETURN_IF_ERROR(SendResuming(
      impl_->options.upload_attempts, options,
      [&](int64_t offset, bool* reached) {
        return SendSparseMatrix(header, upload, offset, options, &response, reached);
      },
      [&] { return CommittedBytes(header, options); }));
  return response;
}

// A false Write means that the server has answered already, well or badly, or that the stream broke: Finish knows.
absl::Status Client::SendSparseMatrix(const v1::UploadMatrixHeader& header, const SparseMatrixUpload& upload,
                                      int64_t offset, const CallOptions& options, v1::UploadMatrixResponse* response,
                                      bool* sent_any) {
  Call call(options);
  const auto writer = impl_->bulk_matrices.UploadMatrix(call.context(), response);
  v1::UploadMatrixRequest request;
  *request.mutable_header() = header;
  bool open = writer->Write(request);
  *sent_any |= open;
  const std::array<absl::string_view, 3> arrays = WireArrays(*upload.matrix);
  while (open && offset < header.total_bytes()) {
    const int64_t size = std::min(impl_->options.chunk_bytes, header.total_bytes() - offset);
    request.mutable_chunk()->set_offset(offset);
    request.mutable_chunk()->set_data(Piece(arrays, static_cast<size_t>(offset), static_cast<size_t>(size)));
    offset += size;
    if (upload.on_progress) upload.on_progress(offset, header.total_bytes());
    open = writer->Write(request);
  }
  if (open) writer->WritesDone();
  return FromGrpcStatus(writer->Finish());
}

absl::StatusOr<int64_t> Client::CommittedBytes(const v1::UploadMatrixHeader& header, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::GetMatrixUploadStatusRequest request;
  request.set_upload_id(header.upload_id());
  v1::GetMatrixUploadStatusResponse response;
  const absl::Status status = FromGrpcStatus(impl_->matrices.GetMatrixUploadStatus(call.context(), request, &response));
  return CommittedSize(status, response.committed_size(), header.total_bytes());
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
  Call call(options);
  v1::DownloadMatrixRequest request;
  request.set_name(name);
  v1::SparseMatrix description;
  MatrixReceiver receiver(matrix, impl_->options.max_answer_bytes);
  const auto accept = [&](v1::DownloadMatrixResponse& response) {
    if (!response.has_header()) return receiver.Append(response.chunk());
    description = std::move(*response.mutable_header()->mutable_matrix());
    return receiver.Begin(description.shape(), response.header().total_bytes());
  };
  INTRAWARP_RETURN_IF_ERROR(ReadGrid<v1::DownloadMatrixResponse>(
      call, *impl_->bulk, "/intrawarp.v1.SparseMatrixService/DownloadMatrix", request, receiver, accept));
  INTRAWARP_RETURN_IF_ERROR(receiver.Finish());
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
  const bool kept = request.has_keep();
  if (!kept && product == nullptr) return absl::InvalidArgumentError("product: no place for it");
  Call call(options);
  std::optional<v1::MultiplyResult> result;
  MatrixReceiver receiver(product, impl_->options.max_answer_bytes);
  const auto accept = [&](v1::MultiplyResponse& response) -> absl::Status {
    if (result.has_value()) return absl::InternalError("the server sent more after the result");
    switch (response.payload_case()) {
      case v1::MultiplyResponse::kProgress:
        if (on_progress) on_progress(response.progress());
        return absl::OkStatus();
      case v1::MultiplyResponse::kHeader:
        if (kept) return absl::InternalError("the server sent a product that it was to keep");
        return receiver.Begin(response.header().shape(), response.header().total_bytes());
      case v1::MultiplyResponse::kChunk:
        return receiver.Append(response.chunk());
      case v1::MultiplyResponse::kResult:
        result = std::move(*response.mutable_result());
        return absl::OkStatus();
      default:
        return absl::OkStatus();  // a kind of message of a later version
    }
  };
  INTRAWARP_RETURN_IF_ERROR(ReadGrid<v1::MultiplyResponse>(
      call, *impl_->bulk, "/intrawarp.v1.SparseMatrixService/Multiply", request, receiver, accept));
  if (!result.has_value()) return absl::InternalError("the server ended without a result");
  if (!kept) INTRAWARP_RETURN_IF_ERROR(receiver.Finish());
  return *std::move(result);
}

}  // namespace intrawarp::client
