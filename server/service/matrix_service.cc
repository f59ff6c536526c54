// SPDX-License-Identifier: Apache-2.0
#include "server/service/matrix_service.h"

#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "server/base/names.h"
#include "server/base/paging.h"
#include "server/rpc/caller.h"
#include "server/rpc/grpc_status.h"
#include "server/service/multiply_call.h"
#include "server/sparse/matrix_messages.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::Status Get(const MatrixStore& matrices, const Identity& caller, const std::string& name,
                 v1::SparseMatrix& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredMatrix> matrix,
                             FindMatrix(matrices, name, "name", caller));
  response = SparseMatrixToProto(*matrix);
  return absl::OkStatus();
}

absl::Status List(const MatrixStore& matrices, const Identity& caller, const v1::ListSparseMatricesRequest& request,
                  v1::ListSparseMatricesResponse& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const int page_size, PageSize(request.page_size()));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string after, ParsePageToken("sparseMatrices", request.page_token()));
  // One more than asked tells whether there is a next page.
  const std::vector<std::shared_ptr<const StoredMatrix>> page = matrices.List(after, page_size + 1, caller);
  for (size_t i = 0; i < page.size() && static_cast<int>(i) < page_size; ++i) {
    *response.add_sparse_matrices() = SparseMatrixToProto(*page[i]);
  }
  if (static_cast<int>(page.size()) > page_size)
    response.set_next_page_token(
        PageToken("sparseMatrices", OwnedKey(page[page_size - 1]->id, page[page_size - 1]->owner)));
  return absl::OkStatus();
}

absl::Status Delete(ServerContext& context, const Identity& caller, const std::string& name) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseSparseMatrixName(name, "name"));
  return context.durable.Erase(context.matrices, id, caller);
}

// Bulk methods are raw, the others typed.
using Base =
    v1::SparseMatrixService::WithRawCallbackMethod_Multiply<v1::SparseMatrixService::WithCallbackMethod_GetSparseMatrix<
        v1::SparseMatrixService::WithCallbackMethod_ListSparseMatrices<
            v1::SparseMatrixService::WithCallbackMethod_DeleteSparseMatrix<v1::SparseMatrixService::Service>>>>;

class MatrixService final : public Base {
 public:
  explicit MatrixService(ServerContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetSparseMatrix(grpc::CallbackServerContext* call,
                                            const v1::GetSparseMatrixRequest* request,
                                            v1::GetSparseMatrixResponse* response) override {
    return Finished(call, Get(context_.matrices, CallerOf(*call), request->name(), *response->mutable_sparse_matrix()));
  }
  grpc::ServerUnaryReactor* ListSparseMatrices(grpc::CallbackServerContext* call,
                                               const v1::ListSparseMatricesRequest* request,
                                               v1::ListSparseMatricesResponse* response) override {
    return Finished(call, List(context_.matrices, CallerOf(*call), *request, *response));
  }
  grpc::ServerUnaryReactor* DeleteSparseMatrix(grpc::CallbackServerContext* call,
                                               const v1::DeleteSparseMatrixRequest* request,
                                               v1::DeleteSparseMatrixResponse*) override {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    AuditOf(*call)->Name("object", request->name());
    context_.durable.Run([&context = context_, reactor, caller = CallerOf(*call), name = request->name()] {
      reactor->Finish(ToGrpcStatus(Delete(context, caller, name)));
    });
    return reactor;
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Multiply(grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer* request) override {
    return StartMultiply(context_, *call, *request);
  }

 private:
  ServerContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMatrixService(ServerContext& context) {
  return std::make_unique<MatrixService>(context);
}

}  // namespace intrawarp::server
