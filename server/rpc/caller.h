// SPDX-License-Identifier: Apache-2.0
// Who makes a call: CallerOf, from the context that every handler gets. RpcMonitor notes the caller before the handler
// runs; it stays until the call's OnDone. The context holds the call's audit, too (AuditOf).
#ifndef INTRAWARP_SERVER_RPC_CALLER_H_
#define INTRAWARP_SERVER_RPC_CALLER_H_

#include <grpcpp/server_context.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "server/identity/identity.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

// The caller, also of a call that was refused for another reason than its identity; Nobody() for a call without one.
// Valid as long as the context.
const Identity& CallerOf(const grpc::ServerContextBase& call);

// Notes the caller. Without effect for a context that CallContexts has not made (of gRPC's own services, say).
void SetCaller(grpc::ServerContextBase& call, Identity caller);

// The id of the trace that the call belongs to (wire/trace_context.h); empty: none. Valid as long as the context.
const std::string& TraceOf(const grpc::ServerContextBase& call);

// Notes the trace, for the call's audit, too. Without effect for a context that CallContexts has not made.
void SetTrace(grpc::ServerContextBase& call, std::string trace_id);

// The audit of a call, from the context that every handler gets; of a context that the server has not made, one that
// records nothing. It outlives the context where it must.
std::shared_ptr<CallAudit> AuditOf(const grpc::ServerContextBase& call);

// Makes the contexts of a server's calls. It owns them: a call that ends before its handler ran never gives its context
// back. Thread-safe.
class CallContexts final : public grpc::ContextAllocator {
 public:
  // `trail` outlives the contexts.
  explicit CallContexts(AuditTrail& trail);
  ~CallContexts() override;
  grpc::CallbackServerContext* NewCallbackServerContext() override;
  void Release(grpc::CallbackServerContext* context) override;
  using grpc::ContextAllocator::Release;

 private:
  AuditTrail& trail_;
  std::mutex mutex_;
  std::unordered_map<const grpc::CallbackServerContext*, std::unique_ptr<grpc::CallbackServerContext>> contexts_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_CALLER_H_
