// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/caller.h"

#include <utility>

namespace intrawarp::server {
namespace {

class CallContext final : public grpc::CallbackServerContext {
 public:
  explicit CallContext(AuditTrail& trail) : audit(std::make_shared<CallAudit>(&trail)) {}

  Identity caller;
  std::string trace_id;
  const std::shared_ptr<CallAudit> audit;
};

}  // namespace

const Identity& CallerOf(const grpc::ServerContextBase& call) {
  const auto* const context = dynamic_cast<const CallContext*>(&call);
  return context == nullptr ? Nobody() : context->caller;
}

void SetCaller(grpc::ServerContextBase& call, Identity caller) {
  if (auto* const context = dynamic_cast<CallContext*>(&call)) context->caller = std::move(caller);
}

const std::string& TraceOf(const grpc::ServerContextBase& call) {
  static const auto* const none = new std::string();
  const auto* const context = dynamic_cast<const CallContext*>(&call);
  return context == nullptr ? *none : context->trace_id;
}

void SetTrace(grpc::ServerContextBase& call, std::string trace_id) {
  auto* const context = dynamic_cast<CallContext*>(&call);
  if (context == nullptr) return;
  context->audit->Trace(trace_id);
  context->trace_id = std::move(trace_id);
}

std::shared_ptr<CallAudit> AuditOf(const grpc::ServerContextBase& call) {
  static const auto* const none = new std::shared_ptr<CallAudit>(std::make_shared<CallAudit>());
  const auto* const context = dynamic_cast<const CallContext*>(&call);
  return context == nullptr ? *none : context->audit;
}

CallContexts::CallContexts(AuditTrail& trail) : trail_(trail) {}
CallContexts::~CallContexts() = default;

grpc::CallbackServerContext* CallContexts::NewCallbackServerContext() {
  auto context = std::make_unique<CallContext>(trail_);
  CallContext* const made = context.get();
  std::lock_guard<std::mutex> lock(mutex_);
  contexts_.emplace(made, std::move(context));
  return made;
}

void CallContexts::Release(grpc::CallbackServerContext* context) {
  std::unique_ptr<grpc::CallbackServerContext> released;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = contexts_.find(context);
  if (it == contexts_.end()) return;
  released = std::move(it->second);
  contexts_.erase(it);
}

}  // namespace intrawarp::server
