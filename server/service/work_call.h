// SPDX-License-Identifier: Apache-2.0
// WorkCall: the life of a call that computes on a device and answers with a stream (Register, Multiply). A kind of call
// derives from it and says only what it reads, runs, stores and sends.
//
//   parse -> enter the table of requests -> an earlier request's result, or resolve -> place -> claim, submit -> run
//         -> keep -> store, leave the table, answer
//
// A result is stored before its request leaves the table, and the request leaves the table before it is answered: who
// has the answer and repeats the request finds the result.
//
// With `detach` the work becomes an operation before it is placed. Once its job is submitted, the call is told of the
// operation and ends, and the end of the work is the end of the operation.
//
// Each call ends once: with its result, with the result of an earlier request, or with an error. Results and errors are
// recorded in the metrics and the log, and for an operation in the audit log, too; repetitions are not.
//
// Thread safety: a kind needs none. Its functions are called one after the other: on gRPC's thread until the inputs are
// brought to the device, on the thread of BringTo until the job is submitted, then by the job, then by the making of
// the result.
#ifndef INTRAWARP_SERVER_SERVICE_WORK_CALL_H_
#define INTRAWARP_SERVER_SERVICE_WORK_CALL_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/schedule/latency.h"
#include "engine/schedule/scheduler.h"
#include "intrawarp/v1/operation.pb.h"
#include "server/bulk/object_content.h"
#include "server/context/server_context.h"
#include "server/monitor/log.h"
#include "server/operation/operation_table.h"
#include "server/placement/replication.h"
#include "server/rpc/job_stream.h"
#include "server/store/durable_objects.h"
#include "server/store/request_table.h"

namespace intrawarp {
class ExecContext;
}

namespace intrawarp::server {

// The traits that all calls of one method share.
struct WorkKind {
  OperationKind operation;
  JobClass job_class;
  LogRoom log_room;
  // The log's word for the work.
  const char* log_event;
  // The message by which a call tells of its operation.
  grpc::ByteBuffer (*operation_message)(const v1::Operation& operation);
};

// The part of a request that concerns the life of its call.
struct WorkRequest {
  // May be empty.
  std::string id;
  bool detach = false;
  // Why it cannot have `detach`; OK: it can.
  absl::Status detachable;
  // Its fingerprint without its inputs, its id and `detach`: a request is the same with and without `detach`.
  std::string print;
};

// The result of the first request with an id.
struct EarlierResult {
  // The key of that request.
  RequestKey key;
  // The name of the object.
  std::string name;
};

// A device is chosen by what the work reads and, beside it, claims.
struct WorkNeeds {
  Inputs inputs;
  Claim claim;
};

struct WorkJob {
  // Without class, checkpoint and `run`, which WorkCall sets. Its functions may refer to the call, which the job holds.
  Job job;
  // Given back once the job has run; may be null.
  std::shared_ptr<Grant> workspace;
};

class WorkCall : public std::enable_shared_from_this<WorkCall> {
 public:
  virtual ~WorkCall() = default;
  WorkCall(const WorkCall&) = delete;
  WorkCall& operator=(const WorkCall&) = delete;

  // Begins the call. Once, on a call that a shared_ptr holds. Returns what the method handler returns to gRPC.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(const grpc::ByteBuffer& request);

 protected:
  // `kind`, `requests` and `context` outlive every job of the context.
  WorkCall(const WorkKind& kind, RequestTable& requests, ServerContext& context,
           const grpc::CallbackServerContext& rpc);

  ServerContext& context() const { return context_; }
  JobStream& stream() const { return *stream_; }
  const std::shared_ptr<JobStream>& shared_stream() const { return stream_; }
  const Identity& caller() const { return stream_->caller(); }
  // Unset unless the request has an id.
  std::optional<RequestKey> request() const;
  // Once the call is placed.
  DeviceContext& device() const { return *device_; }
  // For a repetition that needs one.
  void set_device(DeviceContext& device) { device_ = &device; }
  // Null: the work ends with the call.
  OperationWork* operation() const { return operation_.get(); }
  LatencyBreakdown& latency() { return latency_; }
  // Ends a call that repeats an earlier request, with that one's result as a message or with an error.
  void AnswerRepetition(const absl::StatusOr<grpc::ByteBuffer>& result);

 private:
  // The kind's part, in the order of the calls.

  // Takes the request.
  virtual absl::StatusOr<WorkRequest> Parse(const grpc::ByteBuffer& bytes) = 0;
  // The inputs as the names in the request find them.
  virtual std::vector<InputPrint> NamedInputs() const = 0;
  // The result of the first request with this key, which the call holds from then on; nullopt: there is none. The
  // errors of FindResult.
  virtual absl::StatusOr<std::optional<EarlierResult>> FindEarlier(const RequestKey& key) = 0;
  // Answers with the earlier result, by AnswerRepetition: at once, or by a job.
  virtual absl::Status Repeat() = 0;
  // Finds and audits the inputs, and checks everything that needs no device.
  virtual absl::Status Resolve() = 0;
  // The inputs as Resolve found them, in the order of NamedInputs.
  virtual std::vector<InputPrint> FoundInputs() const = 0;
  // The pointers in WorkNeeds::inputs are to members of the call.
  virtual absl::StatusOr<WorkNeeds> Needs() = 0;
  // The inputs are on the device: claims what the job will hold.
  virtual absl::StatusOr<WorkJob> ClaimJob() = 0;
  // The work. Returns what makes the result again: nothing on a server that keeps no objects, or when the result does
  // not stay.
  virtual absl::StatusOr<ObjectContent> Run(const ExecContext& ctx) = 0;
  // Whether the result becomes an object. After Run.
  virtual bool result_stays() const { return true; }
  // Everything has been sent, and the latency is whole: makes and audits the report.
  virtual void Describe() = 0;
  // Inserts the result into its store, and returns its name. May wait for the disk. Only when result_stays().
  virtual absl::StatusOr<std::string> Store(ObjectOrigin origin) = 0;
  // The last message of the stream.
  virtual grpc::ByteBuffer Encode() const = 0;
  // Nobody learned of the stored result: removes it. Waits for the disk. Only when result_stays().
  virtual void Erase() = 0;
  // The call has failed: lets go of memory and grants.
  virtual void Release() = 0;
  // The call in the metrics. The first of these calls counts.
  virtual void RecordFailure(const absl::Status& status) = 0;
  virtual void RecordRepetition() = 0;
  virtual void RecordSuccess() = 0;

  absl::Status Begin(const grpc::ByteBuffer& bytes);
  absl::Status TakeKey(const WorkRequest& request);
  absl::Status Enter();
  absl::Status BeginDetached();
  absl::Status BeginOperation();
  void AnswerWith(const Operation& operation);
  void EndRepeatedOperation();
  void Acknowledge();
  absl::Status Place();
  absl::Status Submit();
  absl::Status SubmitDetached(Job job);
  void RunJob(const absl::StatusOr<const ExecContext*>& ctx);
  void WriteContent();
  void SendResult();
  absl::StatusOr<grpc::ByteBuffer> MakeResult(std::chrono::nanoseconds sending);
  absl::Status StoreAndAudit();
  void FinishOperation();
  void EndOperation(const absl::Status& status, std::vector<std::string> results, std::chrono::nanoseconds elapsed);
  void Fail(const absl::Status& status);
  void LogEnd(const absl::Status& status) const;

  const WorkKind& kind_;
  RequestTable& requests_;
  ServerContext& context_;
  const std::shared_ptr<JobStream> stream_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point submitted_;
  // WorkRequest::print.
  std::string print_;
  RequestKey key_;
  RequestTicket ticket_;
  std::optional<EarlierResult> earlier_;
  std::shared_ptr<OperationWork> operation_;
  // The operation's job was submitted: how it ends is the operation's end.
  bool is_detached_ = false;
  // Set once the call is placed.
  DeviceContext* device_ = nullptr;
  // Until the disk has it.
  ObjectContent content_;
  ObjectOrigin origin_;
  // The name of the result, once it is stored.
  std::string result_name_;
  LatencyBreakdown latency_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SERVICE_WORK_CALL_H_
