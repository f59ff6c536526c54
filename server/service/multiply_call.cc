// SPDX-License-Identifier: Apache-2.0
#include "server/service/multiply_call.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/latency.h"
#include "engine/sparse/multiply.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "server/base/names.h"
#include "server/base/wire.h"
#include "server/bulk/bulk_stream.h"
#include "server/bulk/device_bytes.h"
#include "server/bulk/object_content.h"
#include "server/job/job_support.h"
#include "server/placement/replication.h"
#include "server/rpc/call_log.h"
#include "server/rpc/chunk_codec.h"
#include "server/rpc/job_stream.h"
#include "server/service/detached_call.h"
#include "server/sparse/matrix_messages.h"
#include "server/sparse/multiply_request.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/store/request_table.h"

namespace intrawarp::server {
namespace {

using Clock = std::chrono::steady_clock;

// What one step brings from the device: some tenths of a millisecond on a GPU.
constexpr int64_t kSlabBytes = int64_t{8} << 20;

ProductOutcome OutcomeOf(const absl::Status& status) {
  if (ReasonOf(status) == v1::EXCEEDS_CAPACITY) return ProductOutcome::kRejected;
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return ProductOutcome::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return ProductOutcome::kDeadlineMissed;
    case absl::StatusCode::kResourceExhausted:
      return ProductOutcome::kRejected;
    default:
      return ProductOutcome::kFailed;
  }
}

// Records one product in the metrics, exactly once: what nobody recorded when it is destroyed was cancelled.
class ProductRecord {
 public:
  explicit ProductRecord(Metrics& metrics) : metrics_(metrics) {}
  ProductRecord(const ProductRecord&) = delete;
  ~ProductRecord() { Failed(absl::CancelledError("")); }
  void Failed(const absl::Status& status) {
    if (!std::exchange(recorded_, true)) metrics_.ProductDone(OutcomeOf(status), {}, 0, 0);
  }
  // The call repeated a request that was recorded before.
  void Repeated() { recorded_ = true; }
  void Succeeded(std::chrono::nanoseconds elapsed, int64_t products, int64_t entries) {
    if (!std::exchange(recorded_, true)) metrics_.ProductDone(ProductOutcome::kOk, elapsed, 2 * products, entries);
  }

 private:
  Metrics& metrics_;
  bool recorded_ = false;
};

enum class Step { kEstimate, kPattern, kValues, kDownload, kDone };

// What a product holds of the device. Member order matters: memory is freed before its reservation is given back.
struct ProductMemory {
  Grant reservation;
  Arena arena;
  MultiplyPlan plan;
  Buffer values;
};

// One Multiply call. Validated on gRPC's thread, then used by its job, then by the making of its result.
struct MultiplyCall {
  MultiplyCall(ServerContext& context, std::shared_ptr<JobStream> stream)
      : context(context), stream(std::move(stream)), record(context.metrics) {}

  ServerContext& context;
  // Set once the call is placed.
  DeviceContext* device = nullptr;
  const std::shared_ptr<JobStream> stream;
  const Clock::time_point begin = Clock::now();
  Clock::time_point submitted;
  RequestKey key;
  RequestTicket ticket;
  // The fingerprint of the request without its inputs.
  std::string request_print;
  // The operation as which the work goes on without the call; null: it does not.
  std::shared_ptr<OperationWork> operation;
  // The operation's job was submitted: how it ends is the operation's end.
  bool is_detached = false;
  Step step = Step::kEstimate;
  bool in_step = false;  // rather than between two
  ProductTask task;
  MultiplyEstimate estimate;
  ProductMemory memory;
  // The shape of the product, from kPattern on.
  v1::SparseMatrixShape shape;
  // While it is downloaded.
  DeviceBytes on_device;
  std::shared_ptr<BulkBuffer> bulk;
  // What is kept.
  std::shared_ptr<StoredMatrix> kept;
  // On a server that keeps its objects: how it is made again, and what holds its memory until then.
  Grant content_grant;
  ObjectContent content;
  ObjectOrigin origin;
  LatencyBreakdown latency;
  ProductRecord record;
};

grpc::ByteBuffer OperationMessage(const v1::Operation& operation) {
  v1::MultiplyResponse response;
  *response.mutable_operation() = operation;
  return SerializeMessage(response);
}

const char* StepName(v1::MultiplyProgress::Step step) {
  switch (step) {
    case v1::MultiplyProgress::STEP_ESTIMATED:
      return "estimated";
    case v1::MultiplyProgress::STEP_PLANNED:
      return "planned";
    default:
      return "multiplied";
  }
}

void SendProgress(MultiplyCall& call, v1::MultiplyProgress::Step step) {
  if (call.operation != nullptr) {
    return call.operation->Progressed({StepName(step), step, v1::MultiplyProgress::STEP_MULTIPLIED, "steps"});
  }
  v1::MultiplyResponse response;
  v1::MultiplyProgress& progress = *response.mutable_progress();
  progress.set_step(step);
  *progress.mutable_estimate() = EstimateToProto(call.estimate);
  progress.set_entries(call.shape.entries());
  call.stream->Send(SerializeMessage(response));
}

std::string Describe(const MultiplyEstimate& e) {
  return absl::StrCat("the product takes up to ", EstimatedBytes(e), " bytes of device memory: ", e.workspace_bytes,
                      " of work, ", e.plan_bytes, " of pattern and ", e.value_bytes, " of values for at most ",
                      e.max_entries, " entries from ", e.multiplications, " multiplications");
}

ErrorMetadata EstimateMetadata(const MultiplyEstimate& e) {
  return {{"workspace_bytes", absl::StrCat(e.workspace_bytes)},
          {"result_bytes", absl::StrCat(e.plan_bytes + e.value_bytes)},
          {"max_entries", absl::StrCat(e.max_entries)},
          {"multiplications", absl::StrCat(e.multiplications)}};
}

// The product needs `bytes` of device memory, which are not there.
absl::Status NoMemory(MultiplyCall& call, int64_t bytes, const std::string& why) {
  const Ledger& ledger = call.context.ledger;
  const int64_t capacity = ledger.capacity(Resource::kResident, Share::kCommon, call.device->index);
  const int64_t available = ledger.available(Resource::kResident, Share::kCommon, call.device->index);
  const std::string message = absl::StrCat(Describe(call.estimate), "; ", why);
  ErrorMetadata metadata = EstimateMetadata(call.estimate);
  metadata.merge(InUse(bytes, capacity - available, capacity));
  if (bytes <= capacity) {
    return WithReason(absl::ResourceExhaustedError(message), v1::MULTIPLY_MEMORY, metadata);
  }
  metadata["resource"] = "resident_memory";
  return WithReason(absl::FailedPreconditionError(message), v1::EXCEEDS_CAPACITY, metadata);
}

// Room for `bytes` in all, what is reserved already included.
absl::Status Reserve(MultiplyCall& call, int64_t bytes) {
  Grant& reservation = call.memory.reservation;
  if (bytes <= reservation.resident_bytes()) return absl::OkStatus();
  reservation.ShrinkResident(0);
  absl::StatusOr<Grant> reserved = call.context.ledger.Admit(
      {{.resident_bytes = bytes}, JobClass::kBatch, call.device->index, call.stream->caller().name});
  if (ReasonOf(reserved.status()) == v1::OWNER_QUOTA) {
    call.context.metrics.CountRejection(v1::OWNER_QUOTA);
    return reserved.status();
  }
  if (!reserved.ok()) {
    const absl::Status status = NoMemory(call, bytes, std::string(reserved.status().message()));
    call.context.metrics.CountRejection(ReasonOf(status));
    return status;
  }
  reservation = *std::move(reserved);
  return absl::OkStatus();
}

// Why the engine ended: what the device itself could not give with the estimate, what ended the call by its own status.
absl::Status OnDevice(MultiplyCall& call, const absl::Status& status) {
  if (absl::IsCancelled(status)) return call.stream->control().CancelStatus();
  if (!absl::IsResourceExhausted(status)) return InMultiplyRequest(status);
  call.context.metrics.CountDeviceError(DeviceError::kOutOfMemory, call.device->index);
  return NoMemory(call, EstimatedBytes(call.estimate), std::string(status.message()));
}

absl::Status EstimateStep(MultiplyCall& call, const ExecContext& ctx) {
  PhaseTimer timer(call.latency, Phase::kPrepare);
  const ProductTask& task = call.task;
  const int64_t transposition_bytes = TranspositionBytes(task);
  INTRAWARP_RETURN_IF_ERROR(Reserve(call, transposition_bytes));
  absl::StatusOr<MultiplyEstimate> estimate =
      EstimateMultiply(ctx, task.a->matrix.view(), task.b->matrix.view(), task.options);
  if (!estimate.ok()) return OnDevice(call, estimate.status());
  call.estimate = *estimate;
  call.estimate.workspace_bytes += transposition_bytes;
  int64_t bytes = EstimatedBytes(call.estimate);
  if (task.keep_id) {
    const ConstCsrView a = task.a->matrix.view();
    bytes = std::max(bytes, MatrixResidentBytes(task.options.transpose_a ? a.columns : a.rows,
                                                call.estimate.max_entries, ValueTypeOf(task.options.precision)));
  }
  INTRAWARP_RETURN_IF_ERROR(Reserve(call, bytes));
  SendProgress(call, v1::MultiplyProgress::STEP_ESTIMATED);
  call.step = Step::kPattern;
  return absl::OkStatus();
}

absl::Status PatternStep(MultiplyCall& call, const ExecContext& ctx) {
  PhaseTimer timer(call.latency, Phase::kPrepare);
  ProductMemory& memory = call.memory;
  const ProductTask& task = call.task;
  absl::StatusOr<Buffer> workspace =
      ctx.device().Allocate(Arena::Rounded(static_cast<size_t>(call.estimate.workspace_bytes)), ctx.stream());
  if (!workspace.ok()) return OnDevice(call, workspace.status());
  memory.arena = Arena(*std::move(workspace));
  absl::StatusOr<MultiplyPlan> plan =
      PlanMultiply(ctx.WithArena(memory.arena), task.a->matrix.view(), task.b->matrix.view(), task.options);
  if (!plan.ok()) return OnDevice(call, plan.status());
  memory.plan = *std::move(plan);
  call.shape = ShapeToProto(memory.plan.pattern(), memory.plan.value_type());
  SendProgress(call, v1::MultiplyProgress::STEP_PLANNED);
  call.step = Step::kValues;
  return absl::OkStatus();
}

int64_t ValueBytes(const MultiplyPlan& plan) { return plan.pattern().entries * BytesPerValue(plan.value_type()); }

// The product becomes a matrix that is accounted for what it takes.
absl::Status Keep(MultiplyCall& call, const ExecContext& ctx) {
  ProductMemory memory = std::exchange(call.memory, ProductMemory());
  const ConstPatternView c = memory.plan.pattern();
  auto kept = std::make_shared<StoredMatrix>();
  kept->matrix = std::move(memory.plan).TakeResult(std::move(memory.values));
  memory.reservation.ShrinkResident(MatrixResidentBytes(c.rows, c.entries, kept->matrix.view().type));
  kept->reservation = std::move(memory.reservation);
  call.kept = std::move(kept);
  if (call.context.durable.enabled()) {
    v1::UploadHeader header;
    *header.mutable_sparse_matrix()->mutable_shape() = call.shape;
    INTRAWARP_ASSIGN_OR_RETURN(call.content, CopyContent(ctx, std::move(header), WireBytes(call.kept->matrix.view()),
                                                         std::move(call.content_grant)));
  }
  call.step = Step::kDone;
  return absl::OkStatus();
}

void BeginDownload(MultiplyCall& call, std::shared_ptr<PinnedBuffer> pinned) {
  const MultiplyPlan& plan = call.memory.plan;
  call.on_device = WireBytes({plan.pattern(), plan.value_type(), call.memory.values.as<void>()});
  call.bulk = std::make_shared<BulkBuffer>(std::move(pinned), TotalBytes(call.on_device));
  v1::MultiplyResponse response;
  *response.mutable_header()->mutable_shape() = call.shape;
  response.mutable_header()->set_total_bytes(call.bulk->total_bytes());
  call.stream->SendBulk(SerializeMessage(response), call.bulk, v1::MultiplyResponse::kChunkFieldNumber);
  call.step = Step::kDownload;
}

absl::Status ValuesStep(MultiplyCall& call, const ExecContext& ctx) {
  ProductMemory& memory = call.memory;
  ProductTask& task = call.task;
  const ConstPatternView c = memory.plan.pattern();
  // Before the work, so that it is not done in vain.
  std::shared_ptr<PinnedBuffer> pinned;
  const int64_t wire_bytes = TotalBytes(WireBytes({c, memory.plan.value_type(), nullptr}));
  if (task.keep_id) {
    const int64_t bytes = ContentClaim(call.context, wire_bytes);
    Claim claim{{.uploading_bytes = bytes}};
    claim.owner = call.stream->caller().name;
    INTRAWARP_ASSIGN_OR_RETURN(call.content_grant, Admit(call.context, claim));
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(pinned, LeasePinned(call.context, wire_bytes, call.stream->caller().name));
  }
  {
    PhaseTimer timer(call.latency, Phase::kOptimise);
    absl::StatusOr<Buffer> values = ctx.device().Allocate(ValueBytes(memory.plan), ctx.stream());
    if (!values.ok()) return OnDevice(call, values.status());
    memory.values = *std::move(values);
    absl::Status status = ExecuteMultiply(ctx.WithArena(memory.arena), memory.plan, task.a->matrix.view(),
                                          task.b->matrix.view(), memory.values.as<void>());
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    if (status.ok()) status = synchronized;
    if (!status.ok()) return OnDevice(call, status);
  }
  memory.arena = Arena();
  memory.reservation.ShrinkResident(std::max(static_cast<int64_t>(memory.plan.bytes()) + ValueBytes(memory.plan),
                                             MatrixResidentBytes(c.rows, c.entries, memory.plan.value_type())));
  task.a = task.b = task.mask = task.addend = nullptr;
  SendProgress(call, v1::MultiplyProgress::STEP_MULTIPLIED);
  if (task.keep_id) return Keep(call, ctx);
  BeginDownload(call, std::move(pinned));
  return absl::OkStatus();
}

absl::Status DownloadStep(MultiplyCall& call, const ExecContext& ctx) {
  PhaseTimer timer(call.latency, Phase::kDownload);
  BulkBuffer& bulk = *call.bulk;
  const int64_t begin = bulk.produced();
  const int64_t bytes = std::min(kSlabBytes, bulk.total_bytes() - begin);
  const absl::Status copied = CopyRange(ctx, call.on_device, begin, bytes, bulk.at(begin));
  // Also after an error: nothing may write into the buffer any more.
  const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
  INTRAWARP_RETURN_IF_ERROR(copied);
  INTRAWARP_RETURN_IF_ERROR(synchronized);
  bulk.Advance(begin + bytes);
  if (!call.stream->Advanced()) return call.stream->control().CancelStatus();
  if (begin + bytes < bulk.total_bytes()) return absl::OkStatus();
  call.memory = ProductMemory();
  call.bulk = nullptr;  // the stream has it
  call.step = Step::kDone;
  return absl::OkStatus();
}

absl::Status RunStep(MultiplyCall& call, const ExecContext& ctx) {
  switch (call.step) {
    case Step::kEstimate:
      return EstimateStep(call, ctx);
    case Step::kPattern:
      return PatternStep(call, ctx);
    case Step::kValues:
      return ValuesStep(call, ctx);
    case Step::kDownload:
      return DownloadStep(call, ctx);
    case Step::kDone:
      break;
  }
  return absl::OkStatus();
}

// All steps, with a checkpoint before each.
absl::Status RunSteps(MultiplyCall& call, const ExecContext& ctx) {
  while (call.step != Step::kDone) {
    if (ctx.Checkpoint({}) == Decision::kCancel) return call.stream->control().CancelStatus();
    call.in_step = true;
    const absl::Status status = RunStep(call, ctx);
    call.in_step = false;
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Under the id that it has.
absl::Status InsertKept(MultiplyCall& call) {
  v1::MultiplyResult result;
  *result.mutable_sparse_matrix() = SparseMatrixToProto(*call.kept);
  *result.mutable_report() = call.kept->report;
  call.origin.description = result.SerializeAsString();
  return call.context.durable.Insert(call.context.matrices, call.kept, call.origin);
}

// Stores what is kept.
absl::Status Store(MultiplyCall& call, const v1::MultiplyReport& report) {
  StoredMatrix& kept = *call.kept;
  kept.owner = call.stream->caller().name;
  kept.create_time = call.context.seams.system_now();
  kept.expiry = ExpiryAfter(call.context.seams, call.task.ttl);
  kept.report = report;
  if (!call.key.id.empty()) kept.request = call.key;
  kept.id = *call.task.keep_id;
  if (!kept.id.empty()) return InsertKept(call);
  kept.id_was_chosen = true;
  absl::Status inserted;
  do {
    kept.id = RandomId(call.context.seams);
    inserted = InsertKept(call);
  } while (absl::IsAlreadyExists(inserted));
  return inserted;
}

v1::MultiplyReport MakeReport(const MultiplyCall& call) {
  v1::MultiplyReport report;
  report.set_device(call.device->device.name());
  *report.mutable_options() = call.task.resolved;
  *report.mutable_shape() = call.shape;
  *report.mutable_estimate() = EstimateToProto(call.estimate);
  *report.mutable_latency() = LatencyToProto(call.latency);
  return report;
}

v1::MultiplyResponse ResultOf(const StoredMatrix& kept) {
  v1::MultiplyResponse response;
  *response.mutable_result()->mutable_sparse_matrix() = SparseMatrixToProto(kept);
  *response.mutable_result()->mutable_report() = kept.report;
  return response;
}

void LogEnd(const MultiplyCall& call, const absl::Status& status) {
  LogWorkEnd({LogRoom::kSparse, "product", call.stream->trace_id(), std::nullopt}, status, call.latency);
}

// The last message of the stream.
absl::StatusOr<grpc::ByteBuffer> MakeResult(MultiplyCall& call, std::chrono::nanoseconds sending) {
  call.latency.Add(Phase::kSend, sending);
  call.latency.set_total(Clock::now() - call.begin);
  v1::MultiplyResponse response;
  *response.mutable_result()->mutable_report() = MakeReport(call);
  CallAudit& audit = call.stream->audit();
  audit.Device(call.device->device.name());
  if (call.origin.payload != nullptr) audit.Digest("result", call.origin.payload->digest());
  if (call.kept != nullptr) {
    const absl::Status stored = Store(call, response.result().report());
    call.origin = ObjectOrigin();
    if (!stored.ok()) {
      call.record.Failed(stored);
      LogEnd(call, stored);
      return stored;
    }
    audit.Name("result", SparseMatrixName(call.kept->id));
    response = ResultOf(*call.kept);
  }
  call.ticket = RequestTicket();  // from now on a repetition finds what is kept
  call.record.Succeeded(call.latency.total(), call.estimate.multiplications, call.shape.entries());
  LogEnd(call, absl::OkStatus());
  return SerializeMessage(response);
}

void Fail(MultiplyCall& call, const absl::Status& status) {
  call.record.Failed(status);
  LogEnd(call, status);
  call.ticket = RequestTicket();
  call.task = ProductTask();
  call.memory = ProductMemory();
  call.kept = nullptr;
  call.content_grant = Grant();
  call.content = ObjectContent();
  call.origin = ObjectOrigin();
  if (call.bulk != nullptr) call.bulk->Abandon();
  if (call.is_detached) {
    return EndOperation(*call.stream, *call.operation, status, {}, Clock::now() - call.begin);
  }
  if (call.operation != nullptr) call.operation->Drop();
  call.stream->Close(status);
}

// The result of an operation, which nobody's call waits for.
void FinishOperation(MultiplyCall& call) {
  const absl::Status made = MakeResult(call, std::chrono::nanoseconds(0)).status();
  std::vector<std::string> results;
  if (made.ok()) results.push_back(SparseMatrixName(call.kept->id));
  EndOperation(*call.stream, *call.operation, made, std::move(results), call.latency.total());
}

void SendResult(const std::shared_ptr<MultiplyCall>& call) {
  if (call->is_detached) return FinishOperation(*call);
  const auto make = [call](std::chrono::nanoseconds sending) { return MakeResult(*call, sending); };
  if (call->kept == nullptr) return call->stream->SendResult(make, nullptr);
  std::function<void()> undo;
  // A matrix that nobody learned of goes again, unless its request can be repeated.
  if (call->key.id.empty()) {
    undo = [&context = call->context, kept = call->kept] {
      context.durable.Run([&context, kept] { context.durable.Erase(context.matrices, kept); });
    };
  }
  call->stream->SendKeptResult(make, std::move(undo));
}

// The matrix is written before it is answered.
void KeepResult(const std::shared_ptr<MultiplyCall>& call) {
  absl::StatusOr<ObjectOrigin> origin = KeepContent(call->context.durable, std::exchange(call->content, {}));
  if (!origin.ok()) return Fail(*call, origin.status());
  call->origin = *std::move(origin);
  SendResult(call);
}

void Succeed(const std::shared_ptr<MultiplyCall>& call) {
  if (call->kept == nullptr || !call->context.durable.enabled()) return SendResult(call);
  call->context.durable.Run([call] { KeepResult(call); });
}

// Answers a repeated request with the first one's matrix.
void Repeat(MultiplyCall& call, const StoredMatrix& first) {
  call.record.Repeated();
  call.ticket = RequestTicket();
  call.stream->audit().Name("repeated", SparseMatrixName(first.id));
  call.stream->SendResult([message = SerializeMessage(ResultOf(first))](
                              std::chrono::nanoseconds) { return absl::StatusOr<grpc::ByteBuffer>(message); },
                          nullptr);
}

void RunJob(const std::shared_ptr<MultiplyCall>& call, const absl::StatusOr<const ExecContext*>& ctx) {
  call->latency.Add(Phase::kQueue, Clock::now() - call->submitted);
  if (call->operation != nullptr) call->operation->Started();
  if (!ctx.ok()) {
    const bool cancelled = absl::IsCancelled(ctx.status());
    return Fail(*call, cancelled ? call->stream->control().CancelStatus() : ctx.status());
  }
  const absl::Status status = RunSteps(*call, **ctx);
  if (status.ok()) return Succeed(call);
  // What the steps before the last checkpoint allocated belongs to the stream of that time.
  (void)(*ctx)->device().Synchronize((*ctx)->stream());
  Fail(*call, status);
}

// A hold between two steps is in no phase yet.
void Held(MultiplyCall& call, std::chrono::nanoseconds held) {
  if (!call.in_step) return call.latency.Add(Phase::kQueue, held);
  call.latency.Held(call.step == Step::kValues ? Phase::kOptimise : Phase::kPrepare, held);
}

// Multiplications if the entries were spread evenly, and the entries themselves.
int64_t CostSize(const ProductTask& task) {
  const ConstCsrView a = task.a->matrix.view(), b = task.b->matrix.view();
  const double per_row = static_cast<double>(b.entries) / std::max(b.rows, 1);
  return static_cast<int64_t>(std::min(static_cast<double>(a.entries) * (1 + per_row), 1e18)) + b.entries;
}

std::string CostKind(const ProductTask& task) {
  return absl::StrCat("multiply/", static_cast<int>(task.options.precision), "/",
                      static_cast<int>(task.options.semiring), "/", static_cast<int>(task.options.path),
                      task.options.many_executions ? "/plan" : "", task.options.transpose_a ? "/transpose" : "",
                      task.keep_id ? "/keep" : "/send");
}

absl::Status Submit(const std::shared_ptr<MultiplyCall>& call) {
  Job job;
  job.job_class = JobClass::kBatch;
  job.cost_kind = CostKind(call->task);
  job.cost_size = CostSize(call->task);
  job.completed = [call] { return call->step == Step::kDone; };
  job.on_held = [call](std::chrono::nanoseconds held) { Held(*call, held); };
  job.checkpoint = [call](const Progress& progress) { return call->stream->control().Check(progress); };
  job.run = [call](const absl::StatusOr<const ExecContext*>& ctx) { RunJob(call, ctx); };
  call->submitted = Clock::now();
  call->latency.Add(Phase::kAdmit, call->submitted - call->begin);
  return StartJob(call, std::move(job), OperationMessage);
}

// Chooses a device, and brings the matrices there that are elsewhere.
absl::Status Place(const std::shared_ptr<MultiplyCall>& call) {
  ProductTask& task = call->task;
  Inputs inputs;
  inputs.matrices = {&task.a, &task.b, &task.mask, &task.addend};
  INTRAWARP_ASSIGN_OR_RETURN(call->device, PlaceJob(call->context, inputs, JobClass::kBatch, Claim()));
  BringTo(*call->device, inputs, Share::kCommon, [call](const absl::Status& brought) {
    ProductTask& task = call->task;
    if (task.mask != nullptr) task.options.mask = task.mask->matrix.view();
    if (task.addend != nullptr) task.options.addend = task.addend->matrix.view();
    const absl::Status status = brought.ok() ? Submit(call) : brought;
    if (!status.ok()) Fail(*call, status);
  });
  return absl::OkStatus();
}

// Products that are kept have no digest of their own without a state directory, but a name.
void AuditInputs(const MultiplyCall& call) {
  CallAudit& audit = call.stream->audit();
  const ProductTask& task = call.task;
  const auto add = [&audit](const char* role, const std::shared_ptr<const StoredMatrix>& matrix) {
    if (matrix == nullptr) return;
    audit.Name(role, SparseMatrixName(matrix->id));
    audit.Digest(role, matrix->content_digest);
  };
  add("a", task.a);
  add("b", task.b);
  add("mask", task.mask);
  add("addend", task.addend);
  v1::MultiplyOptions options = task.resolved;
  options.clear_mask();
  options.clear_addend();
  audit.Options(options);
}

absl::Status ValidateDetached(const v1::MultiplyRequest& request) {
  if (!request.detach()) return absl::OkStatus();
  INTRAWARP_RETURN_IF_ERROR(ValidateDetachedId(request.request_id()));
  return request.has_keep() ? absl::OkStatus() : InvalidField("keep", "must be set with detach");
}

std::string PrintOf(const std::string& request_print, const ProductTask& task) {
  return WithInputs(request_print, {InputPrint::Of(task.a), InputPrint::Of(task.b), InputPrint::Of(task.mask),
                                    InputPrint::Of(task.addend)});
}

// The same by the names in the request.
std::string PrintOf(const std::string& request_print, const v1::MultiplyRequest& request, const MultiplyCall& call) {
  const auto matrix = [&](const std::string& name) {
    return InputPrint::Of(name, FindMatrix(call.context.matrices, name, "", call.stream->caller()));
  };
  const v1::MultiplyOptions& options = request.options();
  return WithInputs(request_print,
                    {matrix(request.a()), matrix(request.b()), matrix(options.mask()), matrix(options.addend())});
}

// The print that tells the request from others. A request is the same with and without `detach`.
absl::Status TakeKey(MultiplyCall& call, v1::MultiplyRequest& request) {
  INTRAWARP_RETURN_IF_ERROR(ValidateRequestId(request.request_id(), "request_id"));
  INTRAWARP_RETURN_IF_ERROR(ValidateDetached(request));
  call.key.id = std::exchange(*request.mutable_request_id(), "");
  request.clear_detach();
  call.request_print = Fingerprint("Multiply", request);
  // A request without an id is compared with none.
  if (!call.key.id.empty()) call.key.fingerprint = PrintOf(call.request_print, request, call);
  call.key.owner = call.stream->caller().name;
  return absl::OkStatus();
}

// The place of the request among those with its id, and the first one's matrix.
absl::StatusOr<std::shared_ptr<const StoredMatrix>> EnterRequest(MultiplyCall& call) {
  INTRAWARP_ASSIGN_OR_RETURN(call.ticket, call.context.multiply_requests.Enter(call.key));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<const StoredMatrix> first, FindResult(call.context.matrices, call.key));
  if (first != nullptr) call.key = *first->request;
  return first;
}

absl::Status ResolveInputs(MultiplyCall& call, const v1::MultiplyRequest& request) {
  INTRAWARP_ASSIGN_OR_RETURN(call.task, ResolveProduct(request, call.context.matrices, call.stream->caller()));
  // A name may have changed hands since the request came.
  call.key.fingerprint = PrintOf(call.request_print, call.task);
  AuditInputs(call);
  return absl::OkStatus();
}

// An operation that has made its result before it began: that of a request without `detach`, or one whose operation is
// forgotten.
void FinishRepeatedOperation(MultiplyCall& call, const StoredMatrix& first) {
  call.record.Repeated();
  call.ticket = RequestTicket();
  call.operation->Done({SparseMatrixName(first.id)});
  Acknowledge(call.context, call.stream, call.operation, OperationMessage);
}

absl::Status BeginDetached(const std::shared_ptr<MultiplyCall>& call, const v1::MultiplyRequest& request) {
  INTRAWARP_ASSIGN_OR_RETURN(const bool answered, AnswerEarlier(call->context, *call->stream, OperationKind::kMultiply,
                                                                call->key, OperationMessage));
  if (answered) {
    call->record.Repeated();
    return absl::OkStatus();
  }
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredMatrix> first, EnterRequest(*call));
  if (first == nullptr) INTRAWARP_RETURN_IF_ERROR(ResolveInputs(*call, request));
  INTRAWARP_ASSIGN_OR_RETURN(
      call->operation, Detach(call->context, call->stream, OperationKind::kMultiply, call->key, OperationMessage));
  if (call->operation == nullptr) {
    call->record.Repeated();
    return absl::OkStatus();
  }
  if (first == nullptr) return Place(call);
  FinishRepeatedOperation(*call, *first);
  return absl::OkStatus();
}

absl::Status Begin(const std::shared_ptr<MultiplyCall>& call, const grpc::ByteBuffer& bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(v1::MultiplyRequest request, ParseMessage<v1::MultiplyRequest>(bytes));
  const bool detach = request.detach();
  INTRAWARP_RETURN_IF_ERROR(TakeKey(*call, request));
  if (detach) return BeginDetached(call, request);
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const StoredMatrix> first, EnterRequest(*call));
  if (first != nullptr) {
    Repeat(*call, *first);
    return absl::OkStatus();
  }
  INTRAWARP_RETURN_IF_ERROR(ResolveInputs(*call, request));
  return Place(call);
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartMultiply(ServerContext& context,
                                                          const grpc::CallbackServerContext& rpc,
                                                          const grpc::ByteBuffer& request) {
  std::shared_ptr<JobStream> stream = JobStream::Create(context, rpc);
  auto call = std::make_shared<MultiplyCall>(context, stream);
  if (stream->closed()) {
    call->record.Failed(absl::ResourceExhaustedError("too many streams"));
    return stream.get();
  }
  const absl::Status status = Begin(call, request);
  if (!status.ok()) Fail(*call, status);
  return stream.get();
}

}  // namespace intrawarp::server
