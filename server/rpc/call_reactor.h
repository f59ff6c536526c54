// SPDX-License-Identifier: Apache-2.0
// CallReactor: what the reactors of all streaming calls have in common: a place among the streams under way, a life
// that lasts until gRPC is done with it and everyone who works for it has let go, one end, and a watch over the
// client's progress.
//
// GrpcReactor is grpc::ServerReadReactor, ServerWriteReactor or ServerBidiReactor. Reads and writes begin with this
// class's StartRead and StartWrite, and each reaction to their end tells so first (EndRead, EndWrite): that is how the
// watch knows since when a client owes something.
//
// Thread safety: mutex_ guards the state of the call; gRPC's reactions, the threads that work for the call and the
// watch meet under it.
#ifndef INTRAWARP_SERVER_RPC_CALL_REACTOR_H_
#define INTRAWARP_SERVER_RPC_CALL_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/base/seams.h"
#include "server/context/server_context.h"
#include "server/monitor/stream_watch.h"
#include "server/rpc/admit_call.h"
#include "server/rpc/caller.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/message_rate.h"
#include "server/rpc/refused_call.h"
#include "server/status/errors.h"

namespace intrawarp::server {

template <typename GrpcReactor>
class CallReactor : public GrpcReactor, public WatchedStream {
 public:
  void OnDone() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      done_ = true;
    }
    context_.stream_watch.Remove(this);
    place_ = Grant();
    std::shared_ptr<CallReactor> self = std::move(self_);  // may delete this when it goes
  }

  std::optional<ClientWait> client_wait() const final {
    std::lock_guard<std::mutex> lock(mutex_);
    return Wait();
  }

  bool EndStalled(std::chrono::steady_clock::time_point since, std::chrono::nanoseconds waited) final {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::optional<ClientWait> wait = Wait();
    if (!wait || wait->since != since) return false;
    stalled_ = true;
    // A status would wait behind the message that the client does not read; so would the memory of that message.
    if (wait->stall == Stall::kWrite) rpc_.TryCancel();
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
    FinishOnce(WithReason(absl::AbortedError(absl::StrCat("the client made no progress for ", ms, " ms")),
                          v1::STREAM_STALLED, {{"waited_ms", absl::StrCat(ms)}}));
    return true;
  }

 protected:
  // `rpc` lives until OnDone.
  CallReactor(ServerContext& context, const grpc::CallbackServerContext& rpc)
      : context_(context), rpc_(rpc), caller_(CallerOf(rpc)), trace_id_(TraceOf(rpc)) {}

  // Who makes the call.
  const Identity& caller() const { return caller_; }
  // The trace that the call belongs to; empty: none.
  const std::string& trace_id() const { return trace_id_; }

  // Once, before the first operation, with a place among the streams under way. False when the call was not admitted;
  // then it has ended.
  bool Begin(std::shared_ptr<CallReactor> self) {
    return BeginWith(std::move(self), [this] { return TakePlace(Share::kCommon); });
  }
  // The same for a call that takes its place later.
  bool BeginUnplaced(std::shared_ptr<CallReactor> self) {
    return BeginWith(std::move(self), [] { return absl::OkStatus(); });
  }

  // All that follow with the mutex held.

  // A place among the streams of the share, until gRPC is done with the call. The errors of AdmitCall. Once.
  absl::Status TakePlace(Share share) {
    absl::StatusOr<Grant> place = AdmitCall(context_, caller_.name, share);
    if (!place.ok()) return place.status();
    place_ = *std::move(place);
    return absl::OkStatus();
  }
  // These hide gRPC's.
  void StartRead(grpc::ByteBuffer* message) {
    read_since_ = context_.seams.steady_now();
    if (!sender_) sender_ = context_.message_limits.Enter(rpc_.peer(), caller_.name, *read_since_);
    GrpcReactor::StartRead(message);
  }
  void StartWrite(const grpc::ByteBuffer* message) {
    write_since_ = context_.seams.steady_now();
    GrpcReactor::StartWrite(message);
  }
  // First in OnReadDone and OnWriteDone.
  void EndRead() { read_since_.reset(); }
  // Counts a message that was read. RESOURCE_EXHAUSTED (MESSAGE_RATE).
  absl::Status CountMessage() { return CheckMessageRate(context_, *sender_); }
  void EndWrite() { write_since_.reset(); }
  // A message that came was taken: what the client owes now it owes from now on.
  void Moved() {
    if (read_since_) read_since_ = context_.seams.steady_now();
  }
  // Whether the client has to send something now: the rest of what it has begun.
  virtual bool OwesMessage() const { return true; }

  // The first call ends the RPC, later ones do nothing.
  void FinishOnce(const absl::Status& status) {
    if (std::exchange(finished_, true)) return;
    Release();
    this->Finish(ToGrpcStatus(status));
  }
  // At the end: gives back what the call holds and nobody uses just now.
  virtual void Release() = 0;

  ServerContext& context_;
  mutable std::mutex mutex_;
  bool finished_ = false;

 private:
  template <typename Admission>
  bool BeginWith(std::shared_ptr<CallReactor> self, const Admission& admit) {
    self_ = std::move(self);
    absl::Status status =
        IsRefused(rpc_) ? WithReason(absl::ResourceExhaustedError("too many calls"), v1::TOO_MANY_STREAMS) : admit();
    if (status.ok()) {
      context_.stream_watch.Add(self_);
      return true;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    FinishOnce(status);
    return false;
  }

  // A call that has ended may still wait for its client to take the last message.
  std::optional<ClientWait> Wait() const {
    if (done_ || stalled_) return std::nullopt;
    if (write_since_) return ClientWait{Stall::kWrite, *write_since_};
    if (!finished_ && read_since_ && OwesMessage()) return ClientWait{Stall::kRead, *read_since_};
    return std::nullopt;
  }

  const grpc::CallbackServerContext& rpc_;
  const Identity caller_;
  const std::string trace_id_;
  std::shared_ptr<CallReactor> self_;  // until OnDone
  Grant place_;
  std::optional<MessageLimits::Sender> sender_;  // once it reads
  std::optional<std::chrono::steady_clock::time_point> read_since_;
  std::optional<std::chrono::steady_clock::time_point> write_since_;
  bool stalled_ = false;
  bool done_ = false;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_CALL_REACTOR_H_
