// SPDX-License-Identifier: Apache-2.0
#include "server/service/multiply_call.h"

#include <algorithm>
#include <chrono>
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
#include "server/device/device_metrics.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_support.h"
#include "server/placement/replication.h"
#include "server/rpc/chunk_codec.h"
#include "server/rpc/job_stream.h"
#include "server/service/work_call.h"
#include "server/sparse/matrix_messages.h"
#include "server/sparse/multiply_request.h"
#include "server/sparse/product_plans.h"
#include "server/sparse/sparse_metrics.h"
#include "server/store/durable_objects.h"
#include "server/store/find_object.h"
#include "server/store/request_table.h"

namespace intrawarp::server {
namespace {

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
  explicit ProductRecord(const SparseMetrics& metrics) : metrics_(metrics) {}
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
  const SparseMetrics& metrics_;
  bool recorded_ = false;
};

enum class Step { kEstimate, kPattern, kValues, kDownload, kDone };

// What a product holds of the device. Member order matters: memory is freed before its reservation is given back.
struct ProductMemory {
  Grant reservation;
  Arena arena;
  std::shared_ptr<const HeldPlan> plan;
  Buffer values;
};

// op(A) P of a triple product.
struct Intermediate {
  Grant reservation;
  CsrMatrix matrix;
};

// The product that is under way, of two factors.
struct Factors {
  const CsrMatrix& a;
  const CsrMatrix& b;
  MultiplyOptions options;
};

grpc::ByteBuffer OperationMessage(const v1::Operation& operation) {
  v1::MultiplyResponse response;
  *response.mutable_operation() = operation;
  return SerializeMessage(response);
}

v1::MultiplyResponse ResultOf(const StoredMatrix& resident) {
  v1::MultiplyResponse response;
  *response.mutable_result()->mutable_sparse_matrix() = SparseMatrixToProto(resident);
  *response.mutable_result()->mutable_report() = resident.report;
  return response;
}

constexpr WorkKind kProduct{OperationKind::kMultiply, JobClass::kBatch, LogRoom::kSparse, "product", OperationMessage};

// One call of Multiply or MultiplyTriple.
class ProductCall : public WorkCall {
 protected:
  ProductCall(ServerContext& context, const grpc::CallbackServerContext& rpc)
      : WorkCall(kProduct, context.multiply_requests, context, rpc), record_(context.metrics.sparse) {}

 private:
  // The request, resolved.
  virtual absl::StatusOr<ProductTask> ResolveTask() const = 0;

  absl::StatusOr<std::optional<EarlierResult>> FindEarlier(const RequestKey& key) override;
  absl::Status Repeat() override;
  absl::Status Resolve() override;
  std::vector<InputPrint> FoundInputs() const override;
  absl::StatusOr<WorkNeeds> Needs() override;
  absl::StatusOr<WorkJob> ClaimJob() override;
  absl::StatusOr<ObjectContent> Run(const ExecContext& ctx) override;
  bool result_stays() const override { return resident_ != nullptr; }
  void Describe() override;
  absl::StatusOr<std::string> Store(ObjectOrigin origin) override;
  grpc::ByteBuffer Encode() const override;
  void Erase() override { context().durable.Erase(context().matrices, resident_); }
  void Release() override;
  void RecordFailure(const absl::Status& status) override { record_.Failed(status); }
  void RecordRepetition() override { record_.Repeated(); }
  void RecordSuccess() override {
    const int64_t multiplications = estimate_.multiplications + report_.intermediate().estimate().multiplications();
    record_.Succeeded(latency().total(), multiplications, shape_.entries());
  }

  void AuditInputs();
  void Held(std::chrono::nanoseconds held);
  void SendProgress(v1::MultiplyProgress::Step step);
  absl::Status NoMemory(int64_t bytes, const std::string& why);
  absl::Status Reserve(int64_t bytes);
  absl::Status OnDevice(const absl::Status& status);
  absl::Status RunSteps(const ExecContext& ctx);
  absl::Status RunStep(const ExecContext& ctx);
  // Whether the product that is under way is C.
  bool is_last() const { return product_ == (task_.is_triple ? 2 : 1); }
  Factors CurrentFactors() const;
  // The resident memory of the device, in all.
  int64_t capacity() { return context().ledger.capacity(Resource::kResident, Share::kCommon, device().index); }
  // The most that the caller can ever have.
  int64_t most() {
    const int64_t of_owner = context().ledger.owner_limit(Resource::kResident);
    return of_owner > 0 ? std::min(capacity(), of_owner) : capacity();
  }
  absl::Status EstimateStep(const ExecContext& ctx);
  absl::StatusOr<MultiplyEstimate> Estimate(const ExecContext& ctx, const Factors& factors);
  absl::Status TakePlan(std::shared_ptr<const HeldPlan> plan);
  absl::Status PatternStep(const ExecContext& ctx);
  absl::Status ValuesStep(const ExecContext& ctx);
  absl::Status MakeValues(const ExecContext& ctx);
  absl::Status AllocateArena(const ExecContext& ctx);
  void MakeIntermediate();
  absl::Status FinishProduct(const ExecContext& ctx, std::shared_ptr<PinnedBuffer> pinned);
  absl::Status DownloadStep(const ExecContext& ctx);
  absl::Status MakeResident(const ExecContext& ctx);
  void BeginDownload(std::shared_ptr<PinnedBuffer> pinned);
  absl::Status InsertResident(ObjectOrigin& origin);

  // The matrix of the first request with this id; null: this one is the first.
  std::shared_ptr<const StoredMatrix> first_;
  Step step_ = Step::kEstimate;
  bool in_step_ = false;  // rather than between two
  ProductTask task_;
  // The product that is under way: 1, then 2 in a triple product. Its estimate, and whether its plan was there.
  int product_ = 1;
  MultiplyEstimate estimate_;
  bool plan_reused_ = false;
  ProductMemory memory_;
  // The shape of the product, from kPattern on.
  v1::SparseMatrixShape shape_;
  // The first product of a triple product while the second one is under way.
  Intermediate intermediate_;
  // While it is downloaded.
  DeviceBytes on_device_;
  std::shared_ptr<BulkBuffer> bulk_;
  v1::MultiplyReport report_;
  // The product, once it is resident; null: it is sent.
  std::shared_ptr<StoredMatrix> resident_;
  // On a server that keeps its objects: the content that makes the product again, and the grant of its memory before
  // it.
  Grant content_grant_;
  ObjectContent content_;
  ProductRecord record_;
};

constexpr const char* MethodOf(const v1::MultiplyRequest&) { return "Multiply"; }
constexpr const char* MethodOf(const v1::MultiplyTripleRequest&) { return "MultiplyTriple"; }

template <typename Request>
class ProductCallOf final : public ProductCall {
 public:
  ProductCallOf(ServerContext& context, const grpc::CallbackServerContext& rpc) : ProductCall(context, rpc) {}

 private:
  absl::StatusOr<WorkRequest> Parse(const grpc::ByteBuffer& bytes) override {
    INTRAWARP_ASSIGN_OR_RETURN(request_, ParseMessage<Request>(bytes));
    WorkRequest work;
    work.id = std::exchange(*request_.mutable_request_id(), "");
    work.detach = request_.detach();
    if (!request_.has_keep()) work.detachable = InvalidField("keep", "must be set with detach");
    request_.clear_detach();
    work.print = Fingerprint(MethodOf(request_), request_);
    return work;
  }
  std::vector<InputPrint> NamedInputs() const override {
    std::vector<InputPrint> prints;
    for (const std::string& name : InputNames(request_)) {
      prints.push_back(InputPrint::Of(name, FindMatrix(context().matrices, name, "", caller())));
    }
    return prints;
  }
  absl::StatusOr<ProductTask> ResolveTask() const override {
    return ResolveProduct(request_, context().matrices, caller());
  }

  Request request_;
};

std::vector<InputPrint> ProductCall::FoundInputs() const {
  std::vector<InputPrint> prints;
  for (const std::shared_ptr<const StoredMatrix>& matrix : InputsOf(task_)) prints.push_back(InputPrint::Of(matrix));
  return prints;
}

absl::StatusOr<std::optional<EarlierResult>> ProductCall::FindEarlier(const RequestKey& key) {
  INTRAWARP_ASSIGN_OR_RETURN(first_, FindResult(context().matrices, key));
  if (first_ == nullptr) return std::nullopt;
  return EarlierResult{*first_->request, SparseMatrixName(first_->id)};
}

absl::Status ProductCall::Repeat() {
  AnswerRepetition(SerializeMessage(ResultOf(*first_)));
  return absl::OkStatus();
}

// Products that stay have no digest of their own without a state directory, but a name.
void ProductCall::AuditInputs() {
  CallAudit& audit = stream().audit();
  const ProductTask& task = task_;
  const auto add = [&audit](const char* role, const std::shared_ptr<const StoredMatrix>& matrix) {
    if (matrix == nullptr) return;
    audit.Name(role, SparseMatrixName(matrix->id));
    audit.Digest(role, matrix->content_digest);
  };
  add("r", task.r);
  add("a", task.a);
  add(task.is_triple ? "p" : "b", task.b);
  add("mask", task.mask);
  add("addend", task.addend);
  v1::MultiplyOptions options = task.resolved;
  options.clear_mask();
  options.clear_addend();
  audit.Options(options);
}

absl::Status ProductCall::Resolve() {
  INTRAWARP_ASSIGN_OR_RETURN(task_, ResolveTask());
  AuditInputs();
  return absl::OkStatus();
}

absl::StatusOr<WorkNeeds> ProductCall::Needs() {
  WorkNeeds needs;
  needs.inputs.matrices = {&task_.r, &task_.a, &task_.b, &task_.mask, &task_.addend};
  return needs;
}

// A hold between two steps is in no phase yet.
void ProductCall::Held(std::chrono::nanoseconds held) {
  if (!in_step_) return latency().Add(Phase::kQueue, held);
  latency().Held(step_ == Step::kValues ? Phase::kOptimise : Phase::kPrepare, held);
}

// Multiplications of op(A) B if the entries were spread evenly, and the entries themselves.
int64_t CostSize(const ProductTask& task) {
  const ConstCsrView a = task.a->matrix.view(), b = task.b->matrix.view();
  const double per_row = static_cast<double>(b.entries) / std::max(b.rows, 1);
  return static_cast<int64_t>(std::min(static_cast<double>(a.entries) * (1 + per_row), 1e18)) + b.entries;
}

std::string CostKind(const ProductTask& task) {
  return absl::StrCat("multiply/", static_cast<int>(task.options.precision), "/",
                      static_cast<int>(task.options.semiring), "/", static_cast<int>(task.options.path),
                      task.options.many_executions ? "/plan" : "", task.options.transpose_a ? "/transpose" : "",
                      task.is_triple ? "/triple" : "", task.reuse_plan ? "/reuse" : "",
                      task.resident_id ? "/keep" : "/send");
}

// The steps claim what they need.
absl::StatusOr<WorkJob> ProductCall::ClaimJob() {
  if (task_.mask != nullptr) task_.options.mask = task_.mask->matrix.view();
  if (task_.addend != nullptr) task_.options.addend = task_.addend->matrix.view();
  WorkJob work;
  work.job.cost_kind = CostKind(task_);
  work.job.cost_size = CostSize(task_);
  work.job.completed = [this] { return step_ == Step::kDone; };
  work.job.on_held = [this](std::chrono::nanoseconds held) { Held(held); };
  return work;
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

void ProductCall::SendProgress(v1::MultiplyProgress::Step step) {
  constexpr int kSteps = v1::MultiplyProgress::STEP_MULTIPLIED;  // of a product
  const int before = (product_ - 1) * kSteps;
  if (operation() != nullptr) {
    return operation()->Progressed({StepName(step), before + step, task_.is_triple ? 2 * kSteps : kSteps, "steps"});
  }
  v1::MultiplyResponse response;
  v1::MultiplyProgress& progress = *response.mutable_progress();
  progress.set_step(step);
  *progress.mutable_estimate() = EstimateToProto(estimate_);
  progress.set_entries(shape_.entries());
  progress.set_product(product_);
  stream().Send(SerializeMessage(response));
}

std::string EstimateText(const char* product, const MultiplyEstimate& e) {
  return absl::StrCat(product, " takes up to ", EstimatedBytes(e), " bytes of device memory: ", e.workspace_bytes,
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
absl::Status ProductCall::NoMemory(int64_t bytes, const std::string& why) {
  const Ledger& ledger = context().ledger;
  const int64_t capacity = this->capacity();
  const int64_t available = ledger.available(Resource::kResident, Share::kCommon, device().index);
  const char* const product = !task_.is_triple ? "the product" : is_last() ? "the second product" : "the first product";
  const std::string message = absl::StrCat(EstimateText(product, estimate_), "; ", why);
  ErrorMetadata metadata = EstimateMetadata(estimate_);
  metadata.merge(InUse(bytes, capacity - available, capacity));
  if (bytes <= capacity) {
    return WithReason(absl::ResourceExhaustedError(message), v1::MULTIPLY_MEMORY, metadata);
  }
  metadata["resource"] = "resident_memory";
  return WithReason(absl::FailedPreconditionError(message), v1::EXCEEDS_CAPACITY, metadata);
}

// Room for `bytes` in all, what is reserved already included.
absl::Status ProductCall::Reserve(int64_t bytes) {
  Grant& reservation = memory_.reservation;
  if (bytes <= reservation.resident_bytes()) return absl::OkStatus();
  reservation.ShrinkResident(0);
  absl::StatusOr<Grant> reserved =
      context().ledger.Admit({{.resident_bytes = bytes}, JobClass::kBatch, device().index, caller().name});
  if (ReasonOf(reserved.status()) == v1::OWNER_QUOTA) {
    context().metrics.admission.CountRejection(v1::OWNER_QUOTA);
    return reserved.status();
  }
  if (!reserved.ok()) {
    const absl::Status status = NoMemory(bytes, std::string(reserved.status().message()));
    context().metrics.admission.CountRejection(ReasonOf(status));
    return status;
  }
  reservation = *std::move(reserved);
  return absl::OkStatus();
}

// Why the engine ended: what the device itself could not give with the estimate, what ended the call by its own status.
absl::Status ProductCall::OnDevice(const absl::Status& status) {
  if (absl::IsCancelled(status)) return stream().control().CancelStatus();
  if (!absl::IsResourceExhausted(status)) return InMultiplyRequest(status);
  context().metrics.device.CountError(DeviceError::kOutOfMemory, device().index);
  return NoMemory(EstimatedBytes(estimate_), std::string(status.message()));
}

Factors ProductCall::CurrentFactors() const {
  if (!task_.is_triple) return {task_.a->matrix, task_.b->matrix, task_.options};
  if (product_ == 1) return {task_.a->matrix, task_.b->matrix, FirstOptions(task_)};
  const StoredMatrix& left = task_.r != nullptr ? *task_.r : *task_.b;
  return {left.matrix, intermediate_.matrix, SecondOptions(task_)};
}

int64_t ValueBytes(const MultiplyPlan& plan) { return plan.pattern().entries * BytesPerValue(plan.value_type()); }

int64_t ResidentBytesOf(const MultiplyPlan& plan) {
  const ConstPatternView c = plan.pattern();
  return MatrixResidentBytes(c.rows, c.entries, plan.value_type());
}

absl::StatusOr<MultiplyEstimate> ProductCall::Estimate(const ExecContext& ctx, const Factors& factors) {
  const ConstCsrView a = factors.a.view();
  const int64_t transposition_bytes = TranspositionBytes(a, factors.options);
  INTRAWARP_RETURN_IF_ERROR(Reserve(transposition_bytes));
  absl::StatusOr<MultiplyEstimate> estimate = EstimateMultiply(ctx, a, factors.b.view(), factors.options);
  if (!estimate.ok()) return OnDevice(estimate.status());
  estimate->workspace_bytes += transposition_bytes;
  return estimate;
}

// Whether the product may have chosen a way that takes more memory than another. The server takes the other where the
// first never fits: that follows from its capacity and the caller's limit, not from free memory, so the bits are the
// same every time.
bool CanTakeLess(const ExecContext& ctx, const MultiplyOptions& options) {
  return ctx.is_cuda() && options.mask && !options.complement_mask && options.mask_route == MaskRoute::kAuto;
}

absl::Status ProductCall::EstimateStep(const ExecContext& ctx) {
  PhaseTimer timer(latency(), Phase::kPrepare);
  const Factors factors = CurrentFactors();
  plan_reused_ = false;
  if (task_.reuse_plan) {
    std::shared_ptr<const HeldPlan> plan =
        context().product_plans.Find({factors.a.pattern(), factors.b.pattern(), factors.options});
    if (plan != nullptr) return TakePlan(std::move(plan));
  }
  INTRAWARP_ASSIGN_OR_RETURN(estimate_, Estimate(ctx, factors));
  if (CanTakeLess(ctx, factors.options) && EstimatedBytes(estimate_) > most()) {
    task_.options.mask_route = MaskRoute::kMasked;
    INTRAWARP_ASSIGN_OR_RETURN(estimate_, Estimate(ctx, CurrentFactors()));
  }
  int64_t bytes = EstimatedBytes(estimate_);
  if (is_last() && task_.resident_id) {
    const ConstCsrView a = factors.a.view();
    bytes = std::max(bytes, MatrixResidentBytes(factors.options.transpose_a ? a.columns : a.rows, estimate_.max_entries,
                                                ValueTypeOf(factors.options.precision)));
  }
  INTRAWARP_RETURN_IF_ERROR(Reserve(bytes));
  SendProgress(v1::MultiplyProgress::STEP_ESTIMATED);
  step_ = Step::kPattern;
  return absl::OkStatus();
}

// With a plan that stays, the product needs only workspace and C, whose size is known.
absl::Status ProductCall::TakePlan(std::shared_ptr<const HeldPlan> plan) {
  estimate_ = plan->estimate;
  INTRAWARP_RETURN_IF_ERROR(Reserve(estimate_.workspace_bytes + ResidentBytesOf(plan->plan)));
  SendProgress(v1::MultiplyProgress::STEP_ESTIMATED);
  shape_ = ShapeToProto(plan->plan.pattern(), plan->plan.value_type());
  memory_.plan = std::move(plan);
  plan_reused_ = true;
  context().metrics.sparse.PlanUsed(PlanUse::kReused);
  SendProgress(v1::MultiplyProgress::STEP_PLANNED);
  step_ = Step::kValues;
  return absl::OkStatus();
}

absl::Status ProductCall::AllocateArena(const ExecContext& ctx) {
  absl::StatusOr<Buffer> workspace =
      ctx.device().Allocate(Arena::Rounded(static_cast<size_t>(estimate_.workspace_bytes)), ctx.stream());
  if (!workspace.ok()) return OnDevice(workspace.status());
  memory_.arena = Arena(*std::move(workspace));
  return absl::OkStatus();
}

absl::Status ProductCall::PatternStep(const ExecContext& ctx) {
  PhaseTimer timer(latency(), Phase::kPrepare);
  INTRAWARP_RETURN_IF_ERROR(AllocateArena(ctx));
  const Factors factors = CurrentFactors();
  absl::StatusOr<MultiplyPlan> plan =
      PlanMultiply(ctx.WithArena(memory_.arena), factors.a.view(), factors.b.view(), factors.options);
  if (!plan.ok()) return OnDevice(plan.status());
  shape_ = ShapeToProto(plan->pattern(), plan->value_type());
  const auto made = std::make_shared<HeldPlan>(HeldPlan{Grant(), *std::move(plan), estimate_});
  memory_.plan = made;
  if (task_.reuse_plan) {
    // What the plan enqueued is done before another stream may use it.
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
    context().product_plans.Insert({factors.a.pattern(), factors.b.pattern(), factors.options}, device().index, made);
    context().metrics.sparse.PlanUsed(PlanUse::kMade);
  }
  SendProgress(v1::MultiplyProgress::STEP_PLANNED);
  step_ = Step::kValues;
  return absl::OkStatus();
}

// The product becomes a matrix that is accounted for what it takes.
absl::Status ProductCall::MakeResident(const ExecContext& ctx) {
  ProductMemory memory = std::exchange(memory_, ProductMemory());
  auto resident = std::make_shared<StoredMatrix>();
  resident->matrix = memory.plan->plan.ResultWith(std::move(memory.values));
  const int64_t bytes = ResidentBytesOf(memory.plan->plan);
  memory.plan = nullptr;
  memory.reservation.ShrinkResident(bytes);
  resident->reservation = std::move(memory.reservation);
  resident_ = std::move(resident);
  if (context().durable.enabled()) {
    v1::UploadHeader header;
    *header.mutable_sparse_matrix()->mutable_shape() = shape_;
    INTRAWARP_ASSIGN_OR_RETURN(
        content_, CopyContent(ctx, std::move(header), WireBytes(resident_->matrix.view()), std::move(content_grant_)));
  }
  step_ = Step::kDone;
  return absl::OkStatus();
}

// The first product becomes a factor of the second.
void ProductCall::MakeIntermediate() {
  v1::IntermediateProduct& report = *report_.mutable_intermediate();
  *report.mutable_shape() = shape_;
  *report.mutable_estimate() = EstimateToProto(estimate_);
  report.set_plan_reused(plan_reused_);
  ProductMemory memory = std::exchange(memory_, ProductMemory());
  intermediate_.matrix = memory.plan->plan.ResultWith(std::move(memory.values));
  const int64_t bytes = ResidentBytesOf(memory.plan->plan);
  memory.plan = nullptr;
  memory.reservation.ShrinkResident(bytes);
  intermediate_.reservation = std::move(memory.reservation);
  task_.a = nullptr;
  shape_.Clear();
  product_ = 2;
  step_ = Step::kEstimate;
}

void ProductCall::BeginDownload(std::shared_ptr<PinnedBuffer> pinned) {
  const MultiplyPlan& plan = memory_.plan->plan;
  on_device_ = WireBytes({plan.pattern(), plan.value_type(), memory_.values.as<void>()});
  bulk_ = std::make_shared<BulkBuffer>(std::move(pinned), TotalBytes(on_device_));
  v1::MultiplyResponse response;
  *response.mutable_header()->mutable_shape() = shape_;
  response.mutable_header()->set_total_bytes(bulk_->total_bytes());
  stream().SendBulk(SerializeMessage(response), bulk_, v1::MultiplyResponse::kChunkFieldNumber);
  step_ = Step::kDownload;
}

// The workspace goes back, and the reservation shrinks to plan and values.
absl::Status ProductCall::MakeValues(const ExecContext& ctx) {
  PhaseTimer timer(latency(), Phase::kOptimise);
  if (plan_reused_) INTRAWARP_RETURN_IF_ERROR(AllocateArena(ctx));
  const MultiplyPlan& plan = memory_.plan->plan;
  absl::StatusOr<Buffer> values = ctx.device().Allocate(ValueBytes(plan), ctx.stream());
  if (!values.ok()) return OnDevice(values.status());
  memory_.values = *std::move(values);
  const Factors factors = CurrentFactors();
  absl::Status status = ExecuteMultiply(ctx.WithArena(memory_.arena), plan, factors.a.view(), factors.b.view(),
                                        memory_.values.as<void>());
  const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
  if (status.ok()) status = synchronized;
  if (!status.ok()) return OnDevice(status);
  memory_.arena = Arena();
  memory_.reservation.ShrinkResident(std::max(plan.bytes() + ValueBytes(plan), ResidentBytesOf(plan)));
  return absl::OkStatus();
}

absl::Status ProductCall::ValuesStep(const ExecContext& ctx) {
  // Before the work, so that it is not done in vain.
  std::shared_ptr<PinnedBuffer> pinned;
  const MultiplyPlan& plan = memory_.plan->plan;
  const int64_t wire_bytes = TotalBytes(WireBytes({plan.pattern(), plan.value_type(), nullptr}));
  if (is_last() && task_.resident_id) {
    const int64_t bytes = ContentClaim(context(), wire_bytes);
    Claim claim{{.uploading_bytes = bytes}};
    claim.owner = caller().name;
    INTRAWARP_ASSIGN_OR_RETURN(content_grant_, Admit(context(), claim));
  } else if (is_last()) {
    INTRAWARP_ASSIGN_OR_RETURN(pinned, LeasePinned(context(), wire_bytes, caller().name));
  }
  INTRAWARP_RETURN_IF_ERROR(MakeValues(ctx));
  SendProgress(v1::MultiplyProgress::STEP_MULTIPLIED);
  if (is_last()) return FinishProduct(ctx, std::move(pinned));
  MakeIntermediate();
  return absl::OkStatus();
}

// Nobody needs the factors any more.
absl::Status ProductCall::FinishProduct(const ExecContext& ctx, std::shared_ptr<PinnedBuffer> pinned) {
  intermediate_ = Intermediate();
  task_.r = task_.a = task_.b = task_.mask = task_.addend = nullptr;
  if (task_.resident_id) return MakeResident(ctx);
  BeginDownload(std::move(pinned));
  return absl::OkStatus();
}

absl::Status ProductCall::DownloadStep(const ExecContext& ctx) {
  PhaseTimer timer(latency(), Phase::kDownload);
  BulkBuffer& bulk = *bulk_;
  const int64_t begin = bulk.produced();
  const int64_t bytes = std::min(kSlabBytes, bulk.total_bytes() - begin);
  const absl::Status copied = CopyRange(ctx, on_device_, begin, bytes, bulk.at(begin));
  // Also after an error: nothing may write into the buffer any more.
  const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
  INTRAWARP_RETURN_IF_ERROR(copied);
  INTRAWARP_RETURN_IF_ERROR(synchronized);
  bulk.Advance(begin + bytes);
  if (!stream().Advanced()) return stream().control().CancelStatus();
  if (begin + bytes < bulk.total_bytes()) return absl::OkStatus();
  memory_ = ProductMemory();
  bulk_ = nullptr;  // the stream has it
  step_ = Step::kDone;
  return absl::OkStatus();
}

absl::Status ProductCall::RunStep(const ExecContext& ctx) {
  switch (step_) {
    case Step::kEstimate:
      return EstimateStep(ctx);
    case Step::kPattern:
      return PatternStep(ctx);
    case Step::kValues:
      return ValuesStep(ctx);
    case Step::kDownload:
      return DownloadStep(ctx);
    case Step::kDone:
      break;
  }
  return absl::OkStatus();
}

// All steps, with a checkpoint before each.
absl::Status ProductCall::RunSteps(const ExecContext& ctx) {
  while (step_ != Step::kDone) {
    if (ctx.Checkpoint({}) == Decision::kCancel) return stream().control().CancelStatus();
    in_step_ = true;
    const absl::Status status = RunStep(ctx);
    in_step_ = false;
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<ObjectContent> ProductCall::Run(const ExecContext& ctx) {
  const absl::Status status = RunSteps(ctx);
  if (status.ok()) return std::exchange(content_, {});
  // What the steps before the last checkpoint allocated belongs to the stream of that time.
  (void)ctx.device().Synchronize(ctx.stream());
  return status;
}

void ProductCall::Describe() {
  report_.set_device(device().device.name());
  *report_.mutable_options() = task_.resolved;
  *report_.mutable_shape() = shape_;
  *report_.mutable_estimate() = EstimateToProto(estimate_);
  *report_.mutable_latency() = LatencyToProto(latency());
  report_.set_plan_reused(plan_reused_);
  stream().audit().Device(device().device.name());
}

// Under the id that it has.
absl::Status ProductCall::InsertResident(ObjectOrigin& origin) {
  v1::MultiplyResult result;
  *result.mutable_sparse_matrix() = SparseMatrixToProto(*resident_);
  *result.mutable_report() = resident_->report;
  origin.description = result.SerializeAsString();
  return context().durable.Insert(context().matrices, resident_, origin);
}

absl::StatusOr<std::string> ProductCall::Store(ObjectOrigin origin) {
  resident_->owner = caller().name;
  resident_->create_time = context().seams.system_now();
  resident_->expiry = ExpiryAfter(context().seams, task_.ttl);
  resident_->report = report_;
  resident_->request = request();
  resident_->id = *task_.resident_id;
  resident_->id_was_chosen = resident_->id.empty();
  absl::Status inserted;
  do {
    if (resident_->id_was_chosen) resident_->id = RandomId(context().seams);
    inserted = InsertResident(origin);
  } while (resident_->id_was_chosen && absl::IsAlreadyExists(inserted));
  INTRAWARP_RETURN_IF_ERROR(inserted);
  return SparseMatrixName(resident_->id);
}

grpc::ByteBuffer ProductCall::Encode() const {
  if (resident_ != nullptr) return SerializeMessage(ResultOf(*resident_));
  v1::MultiplyResponse response;
  *response.mutable_result()->mutable_report() = report_;
  return SerializeMessage(response);
}

void ProductCall::Release() {
  task_ = ProductTask();
  memory_ = ProductMemory();
  intermediate_ = Intermediate();
  resident_ = nullptr;
  content_grant_ = Grant();
  content_ = ObjectContent();
  if (bulk_ != nullptr) bulk_->Abandon();
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartMultiply(ServerContext& context,
                                                          const grpc::CallbackServerContext& rpc,
                                                          const grpc::ByteBuffer& request) {
  return std::make_shared<ProductCallOf<v1::MultiplyRequest>>(context, rpc)->Start(request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartMultiplyTriple(ServerContext& context,
                                                                const grpc::CallbackServerContext& rpc,
                                                                const grpc::ByteBuffer& request) {
  return std::make_shared<ProductCallOf<v1::MultiplyTripleRequest>>(context, rpc)->Start(request);
}

}  // namespace intrawarp::server
