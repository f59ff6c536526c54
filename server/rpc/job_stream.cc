// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/job_stream.h"

#include <algorithm>
#include <utility>

#include "server/context/limits.h"
#include "server/store/durable_objects.h"

namespace intrawarp::server {
namespace {

using Time = std::chrono::steady_clock::time_point;

std::optional<Time> JobDeadline(std::optional<Time> deadline, const Seams& seams) {
  if (!deadline) return std::nullopt;
  const auto left = std::max<Time::duration>(*deadline - seams.steady_now(), Time::duration(0));
  return *deadline - std::min<Time::duration>(left / 20, std::chrono::milliseconds(20));
}

}  // namespace

std::optional<std::chrono::steady_clock::time_point> Deadline(const grpc::CallbackServerContext& call,
                                                              const Seams& seams) {
  const std::chrono::system_clock::duration left = call.deadline() - seams.system_now();
  // gRPC's "none" is at the far end of the clock's range, give or take its conversion.
  if (left > std::chrono::hours(24 * 365)) return std::nullopt;
  return seams.steady_now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(left);
}

std::shared_ptr<JobStream> JobStream::Create(ServerContext& context, const grpc::CallbackServerContext& call) {
  std::shared_ptr<JobStream> stream(new JobStream(context, call, Deadline(call, context.seams)));
  (void)stream->Begin(stream);
  return stream;
}

JobStream::JobStream(ServerContext& context, const grpc::CallbackServerContext& call, std::optional<Time> deadline)
    : CallReactor(context, call),
      job_deadline_(JobDeadline(deadline, context.seams)),
      audit_(AuditOf(call)),
      control_(context.seams, deadline, context.limits.max_run_time),
      queue_(context.limits.max_chunk_bytes) {}

bool JobStream::set_on_cancel(std::function<void()> on_cancel) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (finished_ && !control_.detached()) return false;
  on_cancel_ = std::move(on_cancel);
  return true;
}

void JobStream::CancelDetached() {
  control_.CancelDetached();
  std::function<void()> on_cancel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    on_cancel = std::move(on_cancel_);
  }
  if (on_cancel) on_cancel();
}

bool JobStream::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return finished_;
}

void JobStream::Send(grpc::ByteBuffer message) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.PushMessage(std::move(message));
  Pump();
}

void JobStream::SendProgress(grpc::ByteBuffer message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!queue_.empty()) return;
  queue_.PushMessage(std::move(message));
  Pump();
}

void JobStream::SendBulk(grpc::ByteBuffer header, std::shared_ptr<BulkStream> bulk, int chunk_field) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.PushBulk(std::move(header), std::move(bulk), chunk_field);
  Pump();
}

void JobStream::SendResult(ResponseQueue::ResultFn make, std::function<void()> undo) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) return;
  queue_.PushResult([this, make = std::move(make), undo = std::move(undo)](std::chrono::nanoseconds sending) {
    absl::StatusOr<std::optional<grpc::ByteBuffer>> message = make(sending);
    if (message.ok()) undo_ = undo;
    return message;
  });
  ending_ = true;
  Pump();
}

void JobStream::SendResidentResult(MakeResidentFn make, std::function<void()> undo) {
  if (!context_.durable.enabled()) return SendResult(std::move(make), std::move(undo));
  std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) return;
  // `make` holds the stream.
  queue_.PushResult([this, make = std::move(make), undo = std::move(undo)](std::chrono::nanoseconds sending) {
    making_ = true;
    context_.durable.Run([this, make, undo, sending] { Deliver(make(sending), undo); });
    return std::optional<grpc::ByteBuffer>();
  });
  ending_ = true;
  Pump();
}

void JobStream::Deliver(absl::StatusOr<grpc::ByteBuffer> message, const std::function<void()>& undo) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    making_ = false;
    if (!finished_) {
      if (!message.ok()) return FinishOnce(message.status());
      undo_ = undo;
      queue_.PushMessage(*std::move(message));
      return Pump();
    }
  }
  // The call has ended meanwhile.
  if (message.ok() && undo) undo();
}

bool JobStream::Advanced() {
  std::lock_guard<std::mutex> lock(mutex_);
  Pump();
  return !finished_;
}

void JobStream::Close(const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) return;
  if (!status.ok()) return FinishOnce(status);
  ending_ = true;
  Pump();
}

void JobStream::Pump() {
  if (finished_) return queue_.Clear();
  if (writing_) return;
  absl::StatusOr<std::optional<grpc::ByteBuffer>> next = queue_.Take();
  if (!next.ok()) return FinishOnce(next.status());
  if (next->has_value()) {
    writing_ = true;
    writing_message_ = **std::move(next);
    StartWrite(&writing_message_);
  } else if (ending_ && !making_ && queue_.empty()) {
    FinishOnce(absl::OkStatus());
  }
}

void JobStream::Release() {
  queue_.Clear();
  control_.Cancel();
}

void JobStream::OnWriteDone(bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  EndWrite();
  writing_ = false;
  writing_message_.Clear();
  queue_.Written();
  if (finished_) return;
  if (!ok) return FinishOnce(absl::CancelledError("the client is gone"));
  delivered_ = ending_ && !making_ && queue_.empty();
  Pump();
}

void JobStream::OnCancel() {
  control_.Cancel();
  std::function<void()> on_cancel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    FinishOnce(control_.CancelStatus());
    if (!control_.detached()) on_cancel = std::move(on_cancel_);
  }
  if (on_cancel) on_cancel();
}

void JobStream::OnDone() {
  std::function<void()> undo, on_cancel;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!delivered_) undo = std::move(undo_);
    undo_ = nullptr;
    if (!control_.detached()) on_cancel = std::move(on_cancel_);
  }
  if (undo) undo();
  CallReactor::OnDone();  // may delete this
}

absl::Status SubmitJob(DeviceContext& context, JobStream& stream, Job job) {
  job.owner = &stream;
  job.party = stream.caller().name;
  job.deadline = stream.job_deadline();
  const auto cancel = [&jobs = context.jobs, &stream] { jobs.Cancel(&stream); };
  if (!stream.set_on_cancel(cancel)) return stream.control().CancelStatus();
  const absl::Status submitted = SubmitJob(context, std::move(job));
  // The call may have ended, or its operation have been cancelled, before the queue knew the job.
  if (submitted.ok() && (stream.control().detached() ? stream.control().cancelled() : stream.closed())) cancel();
  return submitted;
}

}  // namespace intrawarp::server
