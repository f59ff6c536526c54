// SPDX-License-Identifier: Apache-2.0
// OperationService: the operations of the caller.
#ifndef INTRAWARP_SERVER_SERVICE_OPERATION_SERVICE_H_
#define INTRAWARP_SERVER_SERVICE_OPERATION_SERVICE_H_

#include "intrawarp/v1/operation.grpc.pb.h"
#include "server/context/server_context.h"

namespace intrawarp::server {

class OperationService final : public v1::OperationService::CallbackService {
 public:
  explicit OperationService(ServerContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetOperation(grpc::CallbackServerContext* call, const v1::GetOperationRequest* request,
                                         v1::GetOperationResponse* response) override;
  grpc::ServerUnaryReactor* ListOperations(grpc::CallbackServerContext* call, const v1::ListOperationsRequest* request,
                                           v1::ListOperationsResponse* response) override;
  grpc::ServerUnaryReactor* WaitOperation(grpc::CallbackServerContext* call, const v1::WaitOperationRequest* request,
                                          v1::WaitOperationResponse* response) override;
  grpc::ServerUnaryReactor* CancelOperation(grpc::CallbackServerContext* call,
                                            const v1::CancelOperationRequest* request,
                                            v1::CancelOperationResponse* response) override;

 private:
  ServerContext& context_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_OPERATION_SERVICE_H_
