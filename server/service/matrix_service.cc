// SPDX-License-Identifier: Apache-2.0
#include "server/service/matrix_service.h"

#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "intrawarp/v1/sparse_matrix.grpc.pb.h"
#include "server/base/names.h"
#include "server/rpc/caller.h"
#include "server/rpc/unary.h"
#include "server/service/multiply_call.h"
#include "server/sparse/matrix_messages.h"
#include "server/sparse/product_plans.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

absl::Status Get(const MatrixStore& matrices, const Identity& caller, const std::string& name,
                 v1::SparseMatrix& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredMatrix> matrix,
                             FindMatrix(matrices, name, "name", caller));
  response = SparseMatrixToProto(*matrix);
  return absl::OkStatus();
}

absl::Status List(const MatrixStore& matrices, const Identity& caller, const v1::ListSparseMatricesRequest& request,
                  v1::ListSparseMatricesResponse& response) {
  const auto list = [&](const std::string& after, int limit) {
    ListedMessages<v1::SparseMatrix> page;
    for (const auto& matrix : matrices.List(after, limit, caller)) {
      page[OwnedKey(matrix->id, matrix->owner)] = SparseMatrixToProto(*matrix);
    }
    return page;
  };
  return ListPage("sparseMatrices", request, response, *response.mutable_sparse_matrices(), list);
}

absl::Status Delete(ServerContext& context, const Identity& caller, const std::string& name) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseSparseMatrixName(name, "name"));
  const absl::Status erased = context.durable.Erase(context.matrices, id, caller);
  context.product_plans.Expire();
  return erased;
}

// Bulk methods are raw, the others typed.
using Typed = v1::SparseMatrixService::WithCallbackMethod_GetSparseMatrix<
    v1::SparseMatrixService::WithCallbackMethod_ListSparseMatrices<
        v1::SparseMatrixService::WithCallbackMethod_DeleteSparseMatrix<v1::SparseMatrixService::Service>>>;
using Base = v1::SparseMatrixService::WithRawCallbackMethod_Multiply<
    v1::SparseMatrixService::WithRawCallbackMethod_MultiplyTriple<Typed>>;

class MatrixService final : public Base {
 public:
  explicit MatrixService(ServerContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetSparseMatrix(grpc::CallbackServerContext* call,
                                            const v1::GetSparseMatrixRequest* request,
                                            v1::GetSparseMatrixResponse* response) override {
    return Reply(call, Get(context_.matrices, CallerOf(*call), request->name(), *response->mutable_sparse_matrix()));
  }
  grpc::ServerUnaryReactor* ListSparseMatrices(grpc::CallbackServerContext* call,
                                               const v1::ListSparseMatricesRequest* request,
                                               v1::ListSparseMatricesResponse* response) override {
    return Reply(call, List(context_.matrices, CallerOf(*call), *request, *response));
  }
  grpc::ServerUnaryReactor* DeleteSparseMatrix(grpc::CallbackServerContext* call,
                                               const v1::DeleteSparseMatrixRequest* request,
                                               v1::DeleteSparseMatrixResponse*) override {
    AuditOf(*call)->Name("object", request->name());
    return ReplyFromDisk(call, context_.durable,
                         [&context = context_, caller = CallerOf(*call), name = request->name()] {
                           return Delete(context, caller, name);
                         });
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Multiply(grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer* request) override {
    return StartMultiply(context_, *call, *request);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* MultiplyTriple(grpc::CallbackServerContext* call,
                                                             const grpc::ByteBuffer* request) override {
    return StartMultiplyTriple(context_, *call, *request);
  }

 private:
  ServerContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeMatrixService(ServerContext& context) {
  return std::make_unique<MatrixService>(context);
}

}  // namespace intrawarp::server
