// SPDX-License-Identifier: Apache-2.0
// JobStream: a server-streaming call whose responses are made elsewhere, by a job or a copy lane. The maker hands over
// messages, bulk streams and results and goes on at once; the stream writes them as fast as the client reads. When the
// client goes away or the deadline passes, the job learns it from control(), unless it is detached.
//
// Lifetime: the stream lives until gRPC is done with it and the last job that holds it has let go.
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_RPC_JOB_STREAM_H_
#define INTRAWARP_SERVER_RPC_JOB_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "engine/schedule/scheduler.h"
#include "server/context/server_context.h"
#include "server/job/job_control.h"
#include "server/job/job_support.h"
#include "server/rpc/call_reactor.h"
#include "server/rpc/response_queue.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {

// The deadline of a call by seams.steady_now, which no step of the wall clock moves; nullopt when the call has none.
std::optional<std::chrono::steady_clock::time_point> Deadline(const grpc::CallbackServerContext& call,
                                                              const Seams& seams);

class JobStream final : public CallReactor<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  // The pointer that a method handler returns to gRPC is Create(...).get(). When too many streams are under way, it has
  // been closed with that error already; closed() tells.
  static std::shared_ptr<JobStream> Create(ServerContext& context, const grpc::CallbackServerContext& call);

  using MakeResidentFn = std::function<absl::StatusOr<grpc::ByteBuffer>(std::chrono::nanoseconds sending)>;

  using CallReactor::caller;
  using CallReactor::trace_id;
  JobControl& control() { return control_; }
  CallAudit& audit() { return *audit_; }
  // When a job of the stream's has to end, so that its answer arrives before the call's deadline: a twentieth of the
  // call's time earlier, 20 ms at most. nullopt without a deadline.
  std::optional<std::chrono::steady_clock::time_point> job_deadline() const {
    return control_.detached() ? std::nullopt : job_deadline_;
  }
  // The job goes on without the call from now on: neither the call's end nor its deadline cancels it. Before the job is
  // submitted.
  void Detach() { control_.Detach(); }
  // Cancels a detached job: what set_on_cancel was given is called then, instead of at the end of the call.
  void CancelDetached();
  // Called once the call is cancelled or its deadline has passed, without the stream's mutex, for what a job that waits
  // can give back before its turn. Set before the job is submitted; let go of when the call is over. False, and
  // it is never called, when the call has ended before.
  bool set_on_cancel(std::function<void()> on_cancel);
  bool closed() const;

  void Send(grpc::ByteBuffer message);
  // Left out when earlier messages still wait: a client that reads slowly gets less progress.
  void SendProgress(grpc::ByteBuffer message);
  void SendBulk(grpc::ByteBuffer header, std::shared_ptr<BulkStream> bulk, int chunk_field);
  // The last message; the stream ends OK after it, or with the error of `make`, which runs under the stream's mutex.
  // `undo` is called when the message was made and the transport did not take it; may be empty.
  void SendResult(ResponseQueue::ResultFn make, std::function<void()> undo);
  // The same for a `make` that may wait for the disk: it runs by DurableObjects::Run, without the stream's mutex.
  void SendResidentResult(MakeResidentFn make, std::function<void()> undo);
  // A bulk stream has grown. False once the stream is closed.
  bool Advanced();
  // OK: ends the stream when everything before has been written. An error ends it now. Calls after the first error, or
  // after the client is gone, have no effect.
  void Close(const absl::Status& status);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  JobStream(ServerContext& context, const grpc::CallbackServerContext& call,
            std::optional<std::chrono::steady_clock::time_point> deadline);
  // The message of a resident result.
  void Deliver(absl::StatusOr<grpc::ByteBuffer> message, const std::function<void()>& undo);
  // With the mutex held.
  void Pump();
  void Release() override;

  const std::optional<std::chrono::steady_clock::time_point> job_deadline_;
  const std::shared_ptr<CallAudit> audit_;
  JobControl control_;
  ResponseQueue queue_;
  grpc::ByteBuffer writing_message_;
  bool writing_ = false;
  bool ending_ = false;
  bool making_ = false;  // a resident result, elsewhere
  bool delivered_ = false;
  std::function<void()> undo_;
  std::function<void()> on_cancel_;
};

// SubmitJob (job_support.h) for a job of a stream's, which ends with the call, also while it waits or is held. Its
// party is the caller, its deadline is JobStream::job_deadline(). CANCELLED or DEADLINE_EXCEEDED when the call has
// ended.
absl::Status SubmitJob(DeviceContext& context, JobStream& stream, Job job);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RPC_JOB_STREAM_H_
