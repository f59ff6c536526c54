// SPDX-License-Identifier: Apache-2.0
#include "server/session/rpc/session_service.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/rpc/caller.h"
#include "server/rpc/unary.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "server/store/resident_store.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

absl::StatusOr<std::shared_ptr<NavigateSession>> Find(const SessionStore& sessions, const Identity& caller,
                                                      const std::string& name) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, ParseSessionName(name, "name"));
  return sessions.Find(id, caller);
}

absl::Status Get(const SessionStore& sessions, const Identity& caller, const std::string& name, v1::Session& response) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<NavigateSession> session, Find(sessions, caller, name));
  response = session->Describe();
  return absl::OkStatus();
}

absl::Status List(const SessionStore& sessions, const Identity& caller, const v1::ListSessionsRequest& request,
                  v1::ListSessionsResponse& response) {
  const auto list = [&](const std::string& after, int limit) {
    ListedMessages<v1::Session> page;
    for (const auto& session : sessions.List(after, limit, caller)) {
      page[OwnedKey(session->id(), session->owner())] = session->Describe();
    }
    return page;
  };
  return ListPage("sessions", request, response, *response.mutable_sessions(), list);
}

}  // namespace

grpc::ServerUnaryReactor* SessionService::GetSession(grpc::CallbackServerContext* call,
                                                     const v1::GetSessionRequest* request,
                                                     v1::GetSessionResponse* response) {
  return Reply(call, Get(context_.sessions, CallerOf(*call), request->name(), *response->mutable_session()));
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* call,
                                                       const v1::ListSessionsRequest* request,
                                                       v1::ListSessionsResponse* response) {
  return Reply(call, List(context_.sessions, CallerOf(*call), *request, *response));
}

grpc::ServerUnaryReactor* SessionService::CloseSession(grpc::CallbackServerContext* call,
                                                       const v1::CloseSessionRequest* request,
                                                       v1::CloseSessionResponse* response) {
  AuditOf(*call)->Name("session", request->name());
  const absl::StatusOr<std::shared_ptr<NavigateSession>> session =
      Find(context_.sessions, CallerOf(*call), request->name());
  if (!session.ok()) return Reply(call, session.status());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  (*session)->Close(SessionEnded("closed"), [reactor, response, session = *session] {
    *response->mutable_session() = session->Describe();
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace intrawarp::server
