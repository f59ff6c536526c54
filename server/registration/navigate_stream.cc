// SPDX-License-Identifier: Apache-2.0
#include "server/registration/navigate_stream.h"

#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/bulk/chunk_codec.h"
#include "server/registration/kept_results.h"
#include "server/registration/navigate_frame.h"
#include "server/rpc/call_reactor.h"
#include "server/rpc/job_stream.h"
#include "server/rpc/job_support.h"
#include "server/rpc/response_queue.h"

namespace intrawarp::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kKeptTransforms = 16;

// Thread safety: gRPC's reactions and the frames' jobs meet under mutex_.
class NavigateStream final : public CallReactor<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>,
                             public std::enable_shared_from_this<NavigateStream> {
 public:
  NavigateStream(ServerContext& context, const grpc::CallbackServerContext& rpc)
      : CallReactor(context, rpc),
        control_(context.seams, Deadline(rpc, context.seams)),
        queue_(context.limits.max_chunk_bytes) {
    kept_.emplace(context.transforms, kKeptTransforms);
  }

  void Start() {
    if (!Begin(shared_from_this())) return;
    std::lock_guard<std::mutex> lock(mutex_);
    Continue();
  }

  void OnReadDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EndRead();
    reading_ = false;
    if (finished_) return;
    absl::Status status = absl::OkStatus();
    if (ok) {
      status = Receive();
      message_.Clear();
    } else {
      status = EndOfFrames();
    }
    if (!status.ok()) return FinishOnce(status);
    Continue();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EndWrite();
    writing_ = false;
    writing_message_.Clear();
    queue_.Written();
    if (finished_) return;
    if (!ok) return FinishOnce(absl::CancelledError("the client is gone"));
    Continue();
  }

  void OnCancel() override {
    control_.Cancel();
    std::lock_guard<std::mutex> lock(mutex_);
    FinishOnce(control_.CancelStatus());
  }

  void OnDone() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      kept_.reset();
    }
    CallReactor::OnDone();  // may delete this
  }

 private:
  // Everything below holds the mutex, but for what runs in a job: RunJob, RunFrame, ReserveRoom, KeepAsStart and
  // the functions of MakeFieldOutput.

  absl::Status Receive() {
    context_.metrics.RpcReceivedBytes("intrawarp.v1.RegistrationService/Navigate", message_.Length());
    INTRAWARP_ASSIGN_OR_RETURN(ReceivedRequest<v1::NavigateRequest> request,
                               ReceiveRequest<v1::NavigateRequest>(message_));
    if (!request.chunk && request.message.has_config()) return ReceiveConfig(request.message.config());
    if (setup_ == nullptr) return InvalidField("config", "must be the first message");
    if (request.chunk) return ReceiveChunk(*request.chunk);
    if (request.message.has_frame()) return ReceiveFrame(request.message.frame());
    return InvalidField("payload", "must be config, frame or chunk");
  }

  absl::Status ReceiveConfig(const v1::NavigateConfig& config) {
    if (setup_ != nullptr) return InvalidField("config", "is sent twice");
    absl::StatusOr<NavigateSetup> setup = ResolveNavigateConfig(context_, config);
    if (!setup.ok()) return setup.status();
    setup_ = std::make_shared<const NavigateSetup>(*std::move(setup));
    return absl::OkStatus();
  }

  absl::Status ReceiveFrame(const v1::FrameHeader& header) {
    if (receiving_ != nullptr) FailReceived(TooFewBytes(*receiving_));
    if (last_number_ && header.frame_number() <= *last_number_) {
      return InvalidField("frame.frame_number",
                          absl::StrCat(header.frame_number(), " does not grow, the last one was ", *last_number_));
    }
    last_number_ = header.frame_number();
    passing_over_ = false;
    ++in_flight_;
    receiving_ = std::make_shared<NavigateFrame>(context_.metrics);
    receiving_->begin = Clock::now();
    receiving_->number = header.frame_number();
    if (header.has_acquisition_time()) receiving_->acquisition_time = header.acquisition_time();
    absl::Status admitted = AdmitFrame(context_, header, *receiving_);
    if (!admitted.ok()) FailReceived(std::move(admitted));
    return absl::OkStatus();
  }

  absl::Status ReceiveChunk(const ReceivedChunk& chunk) {
    if (passing_over_) return absl::OkStatus();
    if (receiving_ == nullptr) return InvalidField("chunk", "belongs to no frame");
    NavigateFrame& frame = *receiving_;
    absl::Status valid =
        ValidateChunk(chunk, {frame.received_bytes, frame.total_bytes, context_.limits.max_chunk_bytes});
    if (!valid.ok()) {
      FailReceived(std::move(valid));
      return absl::OkStatus();
    }
    chunk.CopyTo(frame.memory->as<char>() + frame.received_bytes);
    frame.received_bytes += chunk.size();
    if (frame.received_bytes == frame.total_bytes) {
      frame.ready = Clock::now();
      frame.latency.Add(Phase::kReceive, frame.ready - frame.begin);
      ready_.push_back(std::move(receiving_));
    }
    return absl::OkStatus();
  }

  absl::Status EndOfFrames() {
    if (setup_ == nullptr) return InvalidField("config", "is missing");
    no_more_ = true;
    if (receiving_ != nullptr) FailReceived(TooFewBytes(*receiving_));
    return absl::OkStatus();
  }

  static absl::Status TooFewBytes(const NavigateFrame& frame) {
    return InvalidField(
        "chunk", absl::StrCat("the frame ended after ", frame.received_bytes, " of ", frame.total_bytes, " bytes"));
  }

  // The frame that is being received takes its place in the order with an error.
  void FailReceived(absl::Status status) {
    receiving_->status = std::move(status);
    receiving_->memory.reset();
    ready_.push_back(std::move(receiving_));
    passing_over_ = true;
  }

  // Whatever can go on now goes on.
  void Continue() {
    StartJobs();
    Pump();
    if (finished_) return;
    const bool may_read = receiving_ != nullptr || setup_ == nullptr || in_flight_ <= setup_->max_pending;
    if (!reading_ && !no_more_ && may_read) {
      reading_ = true;
      StartRead(&message_);
    }
    if (no_more_ && in_flight_ == 0 && !writing_) FinishOnce(absl::OkStatus());
  }

  void StartJobs() {
    while (!job_running_ && !ready_.empty()) {
      std::shared_ptr<NavigateFrame> frame = std::move(ready_.front());
      ready_.pop_front();
      // Once submitted, the frame is the job's, which may have ended it before Submit returns.
      absl::Status status = frame->status.ok() ? Submit(frame) : frame->status;
      if (status.ok()) {
        job_running_ = true;
      } else {
        frame->status = std::move(status);
        PushResult(std::move(frame));
      }
    }
  }

  absl::Status Submit(const std::shared_ptr<NavigateFrame>& frame) {
    Job job;
    job.job_class = JobClass::kFrame;
    job.owner = this;
    job.workspace_bytes = FrameJobBytes(context_.device, *frame);
    job.checkpoint = [self = shared_from_this()](const Progress& progress) { return self->control_.Check(progress); };
    job.run = [self = shared_from_this(), frame](const absl::StatusOr<const ExecContext*>& ctx) {
      self->RunJob(frame, ctx);
    };
    return SubmitJob(context_, std::move(job));
  }

  void RunJob(const std::shared_ptr<NavigateFrame>& frame, const absl::StatusOr<const ExecContext*>& ctx) {
    frame->latency.Add(Phase::kQueue, Clock::now() - frame->ready);
    frame->status = ctx.ok() ? RunFrame(**ctx, *frame) : ctx.status();
    if (frame->status.ok() && frame->is_good_start) KeepAsStart(frame->outcome);
    frame->memory.reset();
    std::lock_guard<std::mutex> lock(mutex_);
    job_running_ = false;
    if (finished_) return;
    PushResult(frame);
    Continue();
  }

  absl::Status RunFrame(const ExecContext& ctx, NavigateFrame& frame) {
    FrameHooks hooks{[this](int64_t bytes) { return ReserveRoom(bytes); }, MakeFieldOutput(frame)};
    return RegisterFrame(ctx, *setup_, last_good_ ? &last_good_->transform : nullptr, control_, hooks, frame);
  }

  // The oldest results that are kept make room for the next one.
  absl::StatusOr<std::shared_ptr<ResidentReservation>> ReserveRoom(int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return control_.CancelStatus();  // the results went with the stream
    kept_->MakeRoom(bytes, context_.budget);
    return ReserveResult(context_, bytes);
  }

  void KeepAsStart(const RegistrationOutcome& outcome) {
    last_good_.reset();
    last_good_.emplace(GoodResult{outcome.reservation, outcome.result.transform});
  }

  std::optional<FieldOutput> MakeFieldOutput(const NavigateFrame& frame) {
    if (!setup_->field) return std::nullopt;
    FieldOutput output;
    output.request = *setup_->field;
    output.lease = [this](int64_t bytes) { return LeasePinned(context_, bytes); };
    output.send = [this, number = frame.number](const v1::FieldHeader& header, std::shared_ptr<BulkBuffer> bytes) {
      v1::NavigateResponse response;
      response.mutable_field()->set_frame_number(number);
      *response.mutable_field()->mutable_field() = header;
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.PushBulk(SerializeMessage(response), std::move(bytes), v1::NavigateResponse::kChunkFieldNumber);
      Pump();
    };
    output.advanced = [this] {
      std::lock_guard<std::mutex> lock(mutex_);
      Pump();
      return !finished_;
    };
    return output;
  }

  void PushResult(std::shared_ptr<NavigateFrame> frame) {
    queue_.PushResult([this, frame = std::move(frame)](std::chrono::nanoseconds sending) {
      --in_flight_;
      return absl::StatusOr<grpc::ByteBuffer>(MakeResult(*frame, sending));
    });
  }

  grpc::ByteBuffer MakeResult(NavigateFrame& frame, std::chrono::nanoseconds sending) {
    v1::NavigateResponse response;
    v1::FrameResult& result = *response.mutable_result();
    result.set_frame_number(frame.number);
    if (frame.acquisition_time) *result.mutable_acquisition_time() = *frame.acquisition_time;
    if (frame.status.ok()) {
      frame.latency.Add(Phase::kSend, sending);
      frame.latency.set_total(Clock::now() - frame.begin);
      *result.mutable_report() = MakeReport(context_.device.name(), setup_->plan, frame.outcome, frame.latency);
      frame.status = Keep(frame, &result);
    }
    if (frame.status.ok()) {
      frame.record.Succeeded(frame.outcome, frame.latency);
    } else {
      frame.record.Failed(frame.status);
      result.clear_report();
    }
    *result.mutable_status() = ToRpcStatusProto(frame.status);
    return SerializeMessage(response);
  }

  absl::Status Keep(const NavigateFrame& frame, v1::FrameResult* result) {
    INTRAWARP_ASSIGN_OR_RETURN(
        std::shared_ptr<const StoredTransform> stored,
        StoreResult(context_, {RandomId(context_.seams), std::nullopt, std::nullopt}, frame.outcome, result->report()));
    result->set_transform(TransformName(stored->id));
    kept_->Keep(std::move(stored));
    return absl::OkStatus();
  }

  void Pump() {
    if (finished_) return queue_.Clear();
    if (writing_) return;
    absl::StatusOr<std::optional<grpc::ByteBuffer>> next = queue_.Take();
    if (!next.ok()) return FinishOnce(next.status());
    if (!next->has_value()) return;
    writing_ = true;
    writing_message_ = **std::move(next);
    StartWrite(&writing_message_);
  }

  // Between frames a client may take its time.
  bool OwesMessage() const override { return setup_ == nullptr || receiving_ != nullptr; }

  void Release() override {
    queue_.Clear();
    ready_.clear();
    receiving_.reset();
    control_.Cancel();
    context_.jobs.Cancel(this);
  }

  JobControl control_;

  struct GoodResult {
    std::shared_ptr<ResidentReservation> reservation;
    Transform transform;
  };
  // The job's alone; jobs follow one another.
  std::optional<GoodResult> last_good_;

  std::shared_ptr<const NavigateSetup> setup_;  // null before the config; set before there is a job
  grpc::ByteBuffer message_;
  grpc::ByteBuffer writing_message_;
  ResponseQueue queue_;
  std::deque<std::shared_ptr<NavigateFrame>> ready_;  // received or failed, waiting for their turn
  std::shared_ptr<NavigateFrame> receiving_;
  std::optional<int64_t> last_number_;
  std::optional<KeptResults> kept_;  // until OnDone
  int in_flight_ = 0;                // frames from their header to their result
  bool passing_over_ = false;        // the chunks of a failed frame
  bool job_running_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool no_more_ = false;  // the client has half-closed
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartNavigate(ServerContext& context,
                                                                           const grpc::CallbackServerContext& rpc) {
  auto stream = std::make_shared<NavigateStream>(context, rpc);
  stream->Start();
  return stream.get();
}

}  // namespace intrawarp::server
