// SPDX-License-Identifier: Apache-2.0
#include "server/service/session_service.h"

#include <memory>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/base/paging.h"
#include "server/rpc/caller.h"
#include "server/rpc/grpc_status.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "server/store/resident_store.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

constexpr char kCollection[] = "sessions";

grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* call, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

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
  INTRAWARP_ASSIGN_OR_RETURN(const int page_size, PageSize(request.page_size()));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string after, ParsePageToken(kCollection, request.page_token()));
  // One more than asked tells whether there is a next page.
  const std::vector<std::shared_ptr<NavigateSession>> page = sessions.List(after, page_size + 1, caller);
  for (size_t i = 0; i < page.size() && static_cast<int>(i) < page_size; ++i) {
    *response.add_sessions() = page[i]->Describe();
  }
  if (static_cast<int>(page.size()) > page_size) {
    response.set_next_page_token(
        PageToken(kCollection, OwnedKey(page[page_size - 1]->id(), page[page_size - 1]->owner())));
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* SessionService::GetSession(grpc::CallbackServerContext* call,
                                                     const v1::GetSessionRequest* request,
                                                     v1::GetSessionResponse* response) {
  return Finished(call, Get(context_.sessions, CallerOf(*call), request->name(), *response->mutable_session()));
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* call,
                                                       const v1::ListSessionsRequest* request,
                                                       v1::ListSessionsResponse* response) {
  return Finished(call, List(context_.sessions, CallerOf(*call), *request, *response));
}

grpc::ServerUnaryReactor* SessionService::CloseSession(grpc::CallbackServerContext* call,
                                                       const v1::CloseSessionRequest* request,
                                                       v1::CloseSessionResponse* response) {
  AuditOf(*call)->Name("session", request->name());
  const absl::StatusOr<std::shared_ptr<NavigateSession>> session =
      Find(context_.sessions, CallerOf(*call), request->name());
  if (!session.ok()) return Finished(call, session.status());
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  (*session)->Close(SessionEnded("closed"), [reactor, response, session = *session] {
    *response->mutable_session() = session->Describe();
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace intrawarp::server
