// SPDX-License-Identifier: Apache-2.0
// CallReactor: what the reactors of all streaming calls have in common: a place among the streams under way, a life
// that lasts until gRPC is done with it and everyone who works for it has let go, and one end.
//
// GrpcReactor is grpc::ServerReadReactor, ServerWriteReactor or ServerBidiReactor. Thread safety: mutex_ guards the
// state of the call; gRPC's reactions and the threads that work for the call meet under it.
#ifndef INTRAWARP_SERVER_RPC_CALL_REACTOR_H_
#define INTRAWARP_SERVER_RPC_CALL_REACTOR_H_

#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/errors.h"
#include "server/server_context.h"

namespace intrawarp::server {

template <typename GrpcReactor>
class CallReactor : public GrpcReactor {
 public:
  void OnDone() override {
    place_ = Grant();
    std::shared_ptr<CallReactor> self = std::move(self_);  // may delete this when it goes
  }

 protected:
  explicit CallReactor(ServerContext& context) : context_(context) {}

  // Once, before the first operation. False when too many streams are under way; then the call has ended.
  bool Begin(std::shared_ptr<CallReactor> self) {
    self_ = std::move(self);
    absl::StatusOr<Grant> place = context_.ledger.Admit({{.streams = 1}});
    if (place.ok()) {
      place_ = *std::move(place);
      return true;
    }
    context_.metrics.CountRejection(v1::TOO_MANY_STREAMS);
    std::lock_guard<std::mutex> lock(mutex_);
    FinishOnce(place.status());
    return false;
  }

  // With the mutex held. The first call ends the RPC, later ones do nothing.
  void FinishOnce(const absl::Status& status) {
    if (std::exchange(finished_, true)) return;
    Release();
    this->Finish(ToGrpcStatus(status));
  }
  // With the mutex held, at the end: gives back what the call holds and nobody uses just now.
  virtual void Release() = 0;

  ServerContext& context_;
  mutable std::mutex mutex_;
  bool finished_ = false;

 private:
  std::shared_ptr<CallReactor> self_;  // until OnDone
  Grant place_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_CALL_REACTOR_H_
