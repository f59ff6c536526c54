// SPDX-License-Identifier: Apache-2.0
// SessionService: the sessions of Navigate as a collection. A service of its own, so that an operator who may look at
// sessions and close them need not be one who may register.
#ifndef INTRAWARP_SERVER_SESSION_RPC_SESSION_SERVICE_H_
#define INTRAWARP_SERVER_SESSION_RPC_SESSION_SERVICE_H_

#include "intrawarp/v1/registration.grpc.pb.h"
#include "server/context/server_context.h"

namespace intrawarp::server {

class SessionService final : public v1::SessionService::CallbackService {
 public:
  explicit SessionService(ServerContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* call, const v1::GetSessionRequest* request,
                                       v1::GetSessionResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* call, const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* call, const v1::CloseSessionRequest* request,
                                         v1::CloseSessionResponse* response) override;

 private:
  ServerContext& context_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_RPC_SESSION_SERVICE_H_
