// SPDX-License-Identifier: Apache-2.0
// Call: the context of one RPC, with its deadline, registered with the caller's Cancellation for as long as it lives.
// Internal to the client library. Thread-compatible; cancel() may be called from any thread.
#ifndef INTRAWARP_CLIENT_CPP_CALL_H_
#define INTRAWARP_CLIENT_CPP_CALL_H_

#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>

#include "client/cpp/call_options.h"

namespace intrawarp::client {

class Call {
 public:
  // `default_timeout` counts when the options name none; 0: no deadline.
  explicit Call(const CallOptions& options, std::chrono::milliseconds default_timeout = std::chrono::milliseconds(0));
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  grpc::ClientContext* context() { return context_.get(); }
  // For a call that may end after this object.
  std::shared_ptr<grpc::ClientContext> shared_context() { return context_; }
  void Cancel() { context_->TryCancel(); }

 private:
  const std::shared_ptr<grpc::ClientContext> context_ = std::make_shared<grpc::ClientContext>();
  Cancellation* const cancellation_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_CALL_H_
