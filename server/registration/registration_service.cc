// SPDX-License-Identifier: Apache-2.0
#include "server/registration/registration_service.h"

#include <chrono>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "intrawarp/v1/registration.grpc.pb.h"
#include "server/bulk/chunk_codec.h"
#include "server/transform/field_request.h"
#include "server/bulk/bulk_stream.h"
#include "server/rpc/job_stream.h"
#include "server/rpc/job_support.h"
#include "server/registration/navigate_stream.h"
#include "server/registration/registration_job.h"
#include "server/registration/registration_options.h"
#include "server/registration/registration_report.h"

namespace intrawarp::server {
namespace {

using Clock = std::chrono::steady_clock;

// One Register call. Validated on gRPC's thread, then used by its job alone, then by the making of its result.
struct RegisterCall {
  RegisterCall(ServerContext& context, std::shared_ptr<JobStream> stream)
      : context(context), stream(std::move(stream)), record(context.metrics, WorkClass::kRegister) {}

  ServerContext& context;
  const std::shared_ptr<JobStream> stream;
  const Clock::time_point begin = Clock::now();
  Clock::time_point submitted;
  std::shared_ptr<const StoredVolume> fixed;
  std::shared_ptr<const StoredVolume> moving;
  RegistrationPlan plan;
  RegistrationInput input;
  // Unset: the client wants none.
  std::optional<FieldRequest> field;
  Geometry field_grid;
  RegistrationOutcome outcome;
  LatencyBreakdown latency;
  FrameRecord record;
};

absl::Status Resolve(RegisterCall& call, const grpc::ByteBuffer& bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(v1::RegisterRequest request, ParseMessage<v1::RegisterRequest>(bytes));
  INTRAWARP_ASSIGN_OR_RETURN(call.fixed, FindVolume(call.context.volumes, request.fixed(), "fixed"));
  INTRAWARP_ASSIGN_OR_RETURN(call.moving, FindVolume(call.context.volumes, request.moving(), "moving"));
  absl::StatusOr<RegistrationPlan> plan =
      ResolveOptions(request.options(), call.context.volumes, call.context.transforms);
  if (!plan.ok()) return InRequest(plan.status());
  call.plan = *std::move(plan);
  call.input = MakeRegistrationInput(call.plan, call.fixed->image, call.moving->image);
  INTRAWARP_RETURN_IF_ERROR(InRequest(ValidateRegistration(call.input)));
  if (!request.has_field()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(call.field, ResolveField(request.field(), call.plan));
  absl::StatusOr<Geometry> grid = FieldGrid(*call.field, call.fixed->image.geometry());
  if (!grid.ok()) return Prefixed(grid.status(), "field");
  call.field_grid = *grid;
  return absl::OkStatus();
}

// `memory` is null for control points, whose number is not known before.
absl::Status StreamField(RegisterCall& call, const ExecContext& ctx, std::shared_ptr<PinnedBuffer> memory,
                         const Transform& transform) {
  absl::StatusOr<FieldAnswer> answer = MakeFieldAnswer(ctx, *call.field, transform, call.field_grid);
  if (!answer.ok()) return Prefixed(answer.status(), "field");
  const int64_t bytes = answer->header.total_bytes();
  if (memory == nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(memory, LeasePinned(call.context, bytes));
  }
  auto field = std::make_shared<BulkBuffer>(std::move(memory), bytes);
  v1::RegisterResponse header;
  *header.mutable_field() = answer->header;
  call.stream->SendBulk(SerializeMessage(header), field, v1::RegisterResponse::kChunkFieldNumber);
  return ProduceField(ctx, transform, *answer, *field, call.latency, [&call] { return call.stream->Advanced(); });
}

absl::Status RunJob(RegisterCall& call, const ExecContext& ctx) {
  if (call.stream->control().cancelled()) return call.stream->control().CancelStatus();
  RegistrationTask task{call.input, [&call](int64_t bytes) { return ReserveResult(call.context, bytes); },
                        call.plan.budget, call.plan.best_effort, nullptr};
  std::shared_ptr<PinnedBuffer> memory;
  if (call.field) {
    if (call.field->form != FieldForm::kControlPoints) {
      // Before the work, so that it is not done in vain.
      PhaseTimer timer(call.latency, Phase::kAdmit);
      INTRAWARP_ASSIGN_OR_RETURN(memory, LeasePinned(call.context, FieldBytes(*call.field, call.field_grid)));
    }
    task.on_transform = [&](const Transform& transform) {
      return StreamField(call, ctx, std::move(memory), transform);
    };
  }
  absl::StatusOr<RegistrationOutcome> outcome = RunRegistration(ctx, task, call.stream->control(), call.latency);
  if (!outcome.ok()) return InRequest(outcome.status());
  call.outcome = *std::move(outcome);
  return absl::OkStatus();
}

// Stores the transform with its report and makes the last message of the stream.
absl::StatusOr<grpc::ByteBuffer> MakeResult(RegisterCall& call, const std::string& id,
                                            std::chrono::nanoseconds sending) {
  call.latency.Add(Phase::kSend, sending);
  call.latency.set_total(Clock::now() - call.begin);
  v1::RegisterResponse response;
  response.mutable_result()->set_transform(TransformName(id));
  *response.mutable_result()->mutable_report() = MakeReport(call.context.device.name(), call.outcome, call.latency);
  absl::Status stored = StoreResult(call.context, id, call.outcome, response.result().report());
  if (!stored.ok()) {
    call.record.Failed(stored);
    return stored;
  }
  call.record.Succeeded(call.outcome, call.latency);
  return SerializeMessage(response);
}

void Finish(const std::shared_ptr<RegisterCall>& call, const absl::Status& status) {
  if (!status.ok()) {
    call->record.Failed(status);
    call->stream->Close(status);
    return;
  }
  const std::string id = RandomId(call->context.seams);
  call->stream->SendResult([call, id](std::chrono::nanoseconds sending) { return MakeResult(*call, id, sending); },
                           [&transforms = call->context.transforms, id] { (void)transforms.Erase(id); });
}

absl::Status Submit(const std::shared_ptr<RegisterCall>& call) {
  call->stream->control().set_on_progress([stream = call->stream.get()](const Progress& progress) {
    v1::RegisterResponse response;
    *response.mutable_progress() = ProgressToProto(progress);
    stream->SendProgress(SerializeMessage(response));
  });
  Job job;
  job.workspace_bytes = RegistrationJobBytes(call->context.device, call->input);
  job.checkpoint = [call](const Progress& progress) { return call->stream->control().Check(progress); };
  job.run = [call](const absl::StatusOr<const ExecContext*>& ctx) {
    call->latency.Add(Phase::kQueue, Clock::now() - call->submitted);
    Finish(call, ctx.ok() ? RunJob(*call, **ctx) : ctx.status());
  };
  call->submitted = Clock::now();
  call->latency.Add(Phase::kAdmit, call->submitted - call->begin);
  return SubmitJob(call->context, std::move(job));
}

class RegistrationServiceImpl final
    : public v1::RegistrationService::WithRawCallbackMethod_Register<
          v1::RegistrationService::WithRawCallbackMethod_Navigate<v1::RegistrationService::Service>> {
 public:
  explicit RegistrationServiceImpl(ServerContext& context) : context_(context) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Register(grpc::CallbackServerContext* rpc,
                                                       const grpc::ByteBuffer* request) override {
    std::shared_ptr<JobStream> stream = JobStream::Create(context_, *rpc);
    auto call = std::make_shared<RegisterCall>(context_, stream);
    if (stream->closed()) {
      call->record.Failed(absl::ResourceExhaustedError("too many streams"));
      return stream.get();
    }
    absl::Status status = Resolve(*call, *request);
    if (status.ok()) status = Submit(call);
    if (!status.ok()) Finish(call, status);
    return stream.get();
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Navigate(grpc::CallbackServerContext* rpc) override {
    return StartNavigate(context_, *rpc);
  }

 private:
  ServerContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRegistrationService(ServerContext& context) {
  return std::make_unique<RegistrationServiceImpl>(context);
}

}  // namespace intrawarp::server
