// SPDX-License-Identifier: Apache-2.0
#include "server/session/rpc/navigate_stream.h"

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/base/worker_pool.h"
#include "server/context/limits.h"
#include "server/registration/registration_options.h"
#include "server/rpc/call_log.h"
#include "server/rpc/call_reactor.h"
#include "server/rpc/chunk_codec.h"
#include "server/rpc/job_stream.h"
#include "server/rpc/response_queue.h"
#include "server/rpc/rpc_metrics.h"
#include "server/session/frame_pipeline.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "server/session/shared_memory.h"
#include "server/session/shared_offer.h"
#include "server/session/warm_up.h"
#include "server/trail/audit_trail.h"

namespace intrawarp::server {
namespace {

constexpr char kMethod[] = "intrawarp.v1.RegistrationService/Navigate";

// Messages that have arrived and wait for those before them.
constexpr size_t kReadAhead = 4;

// Requests for shared memory that are refused before the stream ends: answers that the client does not read take
// memory.
constexpr int kMaxRefusedOffers = 16;

absl::Status ClientIsGone() { return absl::CancelledError("the client is gone"); }

// Thread safety: gRPC's reactions, the pipeline's changes and the session's end meet under mutex_.
class NavigateStream final : public CallReactor<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>>,
                             public std::enable_shared_from_this<NavigateStream> {
 public:
  NavigateStream(ServerContext& context, const grpc::CallbackServerContext& rpc)
      : CallReactor(context, rpc),
        deadline_(Deadline(rpc, context.seams)),
        audit_(AuditOf(rpc)),
        queue_(context.limits.max_chunk_bytes) {}

  void Start() {
    if (!BeginUnplaced(shared_from_this())) return;
    std::lock_guard<std::mutex> lock(mutex_);
    Continue();
  }

  void OnReadDone(bool ok) override {
    const NavigateFrame::Time received = context_.seams.steady_now();
    std::lock_guard<std::mutex> lock(mutex_);
    EndRead();
    reading_ = false;
    if (over()) return;
    // The session stays for a stream that takes it up again.
    if (const absl::Status status = ok ? CountMessage() : absl::OkStatus(); !status.ok()) return Break(status);
    arrived_.push_back({{}, received, /*is_end=*/!ok});
    arrived_.back().message.Swap(&message_);
    ended_ = !ok;
    Continue();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EndWrite();
    writing_ = false;
    writing_message_.Clear();
    queue_.Written();
    if (over()) return;
    if (!ok) return Break(ClientIsGone());
    Continue();
  }

  void OnCancel() override {
    const bool timed_out = deadline_ && context_.seams.steady_now() >= *deadline_;
    std::lock_guard<std::mutex> lock(mutex_);
    Break(timed_out ? absl::DeadlineExceededError("the deadline of the call has passed")
                    : absl::CancelledError("the call was cancelled"));
  }

 private:
  // A message, the end of the client's messages, or the slot of the frame whose header came just before.
  struct Arrived {
    grpc::ByteBuffer message;
    NavigateFrame::Time received;
    bool is_end = false;
    std::optional<v1::SharedSlot> slot = std::nullopt;
  };

  // On a worker: handles messages while the pipeline has room for them. Nobody else gives the pipeline any meanwhile
  // (busy_).
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (MayHandle()) {
      const Arrived arrived = std::move(arrived_.front());
      arrived_.pop_front();
      ReadOn();
      const absl::Status status = arrived.is_end ? EndOfFrames()
                                  : arrived.slot ? TakeSlot(*arrived.slot, lock)
                                                 : Receive(arrived, lock);
      Moved();
      if (!status.ok()) End(status);
    }
    busy_ = false;
    if (!over()) Continue();
  }

  // Everything below holds the mutex, but for OnWarm, OnEnded and OnChanged.

  bool MayHandle() const {
    return !over() && !opening_ && !arrived_.empty() && (pipeline_ == nullptr || pipeline_->MayRead());
  }

  // These let go of the lock while they copy, and while a segment is made.
  absl::Status Receive(const Arrived& arrived, std::unique_lock<std::mutex>& lock) {
    context_.metrics.rpc.BytesReceived(kMethod, static_cast<int64_t>(arrived.message.Length()));
    INTRAWARP_ASSIGN_OR_RETURN(const ReceivedRequest<v1::NavigateRequest> request,
                               ReceiveRequest<v1::NavigateRequest>(arrived.message));
    if (!request.chunk && request.message.has_config()) return ReceiveConfig(request.message.config());
    if (pipeline_ == nullptr) return InvalidField("config", "must be the first message");
    if (request.chunk) return ReceiveChunk(*request.chunk, lock);
    if (request.message.has_frame()) return ReceiveFrame(request.message.frame(), arrived.received);
    if (request.message.has_shared_memory()) return OfferMemory(request.message.shared_memory(), lock);
    if (request.message.has_shared_memory_attach()) return AttachMemory(request.message.shared_memory_attach());
    return InvalidField("payload", "must be config, frame, chunk, shared_memory or shared_memory_attach");
  }

  // A frame in a slot is taken like its chunks: once the pipeline has room for it.
  absl::Status ReceiveFrame(const v1::FrameHeader& header, NavigateFrame::Time received) {
    pipeline_->BeginFrame(header, received);
    if (header.has_slot()) arrived_.push_front({{}, received, /*is_end=*/false, header.slot()});
    return absl::OkStatus();
  }

  absl::Status TakeSlot(const v1::SharedSlot& slot, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    pipeline_->AppendSlot(slot);
    lock.lock();
    return absl::OkStatus();
  }

  absl::Status OfferMemory(const v1::SharedMemoryRequest& request, std::unique_lock<std::mutex>& lock) {
    if (offered_ != nullptr) return InvalidField("shared_memory", "is asked for twice");
    lock.unlock();
    absl::StatusOr<SharedOffer> offer = MakeSharedOffer(session_->context(), *session_, request);
    lock.lock();
    if (over()) return absl::OkStatus();
    if (absl::IsInvalidArgument(offer.status())) return Within("shared_memory", offer.status());
    v1::NavigateResponse response;
    if (offer.ok()) {
      offered_ = std::move(offer->segment);
      *response.mutable_shared_memory() = std::move(offer->offer);
    } else if (++refused_offers_ > kMaxRefusedOffers) {
      return InvalidField("shared_memory", absl::StrCat("was refused ", kMaxRefusedOffers, " times"));
    } else {
      *response.mutable_shared_memory()->mutable_status() = ToRpcStatusProto(offer.status());
    }
    queue_.PushMessage(SerializeMessage(response));
    Pump();
    return absl::OkStatus();
  }

  absl::Status AttachMemory(const v1::SharedMemoryAttach& attach) {
    if (offered_ == nullptr || attach.nonce() != offered_->nonce()) {
      return InvalidField("shared_memory_attach.nonce", "is not that of the stream's segment");
    }
    pipeline_->ShareMemory(offered_);
    return absl::OkStatus();
  }

  absl::Status ReceiveChunk(const wire::ReceivedChunk& chunk, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    absl::Status status = pipeline_->Append(chunk);
    lock.lock();
    return status;
  }

  absl::Status ReceiveConfig(const v1::NavigateConfig& config) {
    if (session_ != nullptr) return InvalidField("config", "is sent twice");
    INTRAWARP_RETURN_IF_ERROR(TakePlace(Share::kSession));
    INTRAWARP_ASSIGN_OR_RETURN(session_, context_.sessions.Open(context_, config, caller()));
    AuditSession(config);
    if (config.resume()) return Carry(session_->Resume(EndedFn()));
    opening_ = true;
    WarmUp(session_, [self = shared_from_this()](const absl::StatusOr<bool>& warm) { self->OnWarm(warm); });
    return absl::OkStatus();
  }

  void AuditSession(const v1::NavigateConfig& config) {
    const SessionSetup& setup = session_->setup();
    audit_->Name("session", SessionName(session_->id()));
    audit_->Digest("resident", setup.resident->content_digest);
    AuditPlan(setup.plan, config.options(), *audit_);
  }

  void OnWarm(const absl::StatusOr<bool>& warm) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_) return;
    opening_ = false;
    const absl::Status status = warm.ok() ? Carry(session_->Open(*warm, EndedFn())) : warm.status();
    if (!status.ok()) return End(status);
    Continue();
  }

  absl::Status Carry(const absl::StatusOr<int64_t>& carrier) {
    if (!carrier.ok()) return carrier.status();
    carrier_ = *carrier;
    pipeline_ =
        std::make_shared<FramePipeline>(session_->context(), session_, carrier_, deadline_, [weak = weak_from_this()] {
          if (const std::shared_ptr<NavigateStream> self = weak.lock()) self->OnChanged();
        });
    v1::NavigateResponse response;
    v1::SessionOpened& opened = *response.mutable_opened();
    *opened.mutable_session() = session_->Describe();
    if (opened.session().resumptions() > 0 && opened.session().has_start_frame_number()) {
      opened.set_resumed_from_frame(opened.session().start_frame_number());
    }
    queue_.PushMessage(SerializeMessage(response));
    return absl::OkStatus();
  }

  NavigateSession::EndedFn EndedFn() {
    return [weak = weak_from_this()](const absl::Status& why) {
      if (const std::shared_ptr<NavigateStream> self = weak.lock()) self->OnEnded(why);
    };
  }

  void OnEnded(const absl::Status& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    FinishOnce(why);
  }

  void OnChanged() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!over()) Continue();
  }

  absl::Status EndOfFrames() {
    if (pipeline_ == nullptr) return InvalidField("config", "is missing");
    pipeline_->EndOfFrames();
    return absl::OkStatus();
  }

  // Whatever can go on now goes on.
  void Continue() {
    TakeEvents();
    Pump();
    if (over() || opening_) return;
    if (!busy_ && MayHandle()) {
      busy_ = true;
      Moved();
      context_.receivers.Submit([self = shared_from_this()] { self->Work(); });
    }
    ReadOn();
    if (pipeline_ != nullptr && pipeline_->IsDone() && queue_.empty() && !writing_) Conclude();
  }

  void ReadOn() {
    const bool has_room = pipeline_ == nullptr ? arrived_.empty() && !busy_ : pipeline_->MayRead();
    if (reading_ || ended_ || over() || opening_ || !has_room || arrived_.size() >= kReadAhead) return;
    reading_ = true;
    StartRead(&message_);
  }

  void TakeEvents() {
    if (pipeline_ == nullptr) return;
    while (std::optional<FramePipeline::Event> event = pipeline_->Next()) {
      if (event->answered == nullptr) {
        v1::NavigateResponse response;
        *response.mutable_field() = std::move(event->field);
        if (event->bytes == nullptr) {
          queue_.PushMessage(SerializeMessage(response));
          continue;
        }
        queue_.PushBulk(SerializeMessage(response), std::move(event->bytes), v1::NavigateResponse::kChunkFieldNumber);
        continue;
      }
      queue_.PushResult([this, frame = std::move(event->answered)](std::chrono::nanoseconds sending) {
        const v1::NavigateResponse response = pipeline_->MakeResult(*frame, sending);
        const v1::FrameResult& result = response.result();
        LogWorkEnd({LogRoom::kRegistration, "frame", trace_id(), frame->number}, frame->status, frame->latency);
        audit_->Frame(SessionName(session_->id()),
                      {frame->number, frame->checksum, frame->status, frame->latency.total(), frame->mask_digests},
                      result.has_report() ? &result.report() : nullptr);
        return absl::StatusOr<grpc::ByteBuffer>(SerializeMessage(response));
      });
    }
  }

  void Pump() {
    if (over() || writing_) return;
    absl::StatusOr<std::optional<grpc::ByteBuffer>> next = queue_.Take();
    if (!next.ok()) return End(next.status());
    if (!next->has_value()) return;
    writing_ = true;
    writing_message_ = **std::move(next);
    StartWrite(&writing_message_);
    queue_.Prepare();
  }

  // Every frame has been answered: the session's last word, then the end. A broken connection looks like a client that
  // has sent its last frame, until the transport refuses that word; so the session is closed only then.
  void Conclude() {
    if (std::exchange(concluded_, true)) {
      // The client may not have read the last fields yet.
      if (offered_ != nullptr) context_.sessions.shared_memory()->KeepWhileRead(offered_, context_.seams.steady_now());
      return End(absl::OkStatus());
    }
    v1::NavigateResponse response;
    *response.mutable_closed() = session_->Describe();
    response.mutable_closed()->set_state(v1::SESSION_STATE_CLOSED);
    queue_.PushMessage(SerializeMessage(response));
    Pump();
  }

  // The stream ends well or with an error of its own, and the session with it.
  void End(const absl::Status& status) {
    if (over()) return;
    if (carrier_ == 0) return FinishOnce(status);
    if (!session_->is_durable()) {
      session_->CloseBy(carrier_);
      return FinishOnce(status);
    }
    // The client learns of it once a restart does not bring the session back.
    ending_ = true;
    session_->CloseBy(carrier_, [self = shared_from_this(), status] {
      std::lock_guard<std::mutex> lock(self->mutex_);
      self->FinishOnce(status);
    });
  }

  bool over() const { return finished_ || ending_; }

  // The stream ends for want of a client; the session may outlive it.
  void Break(const absl::Status& status) {
    if (finished_) return;
    if (carrier_ != 0) session_->Detach(carrier_);
    FinishOnce(status);
  }

  // Between frames a client may take its time.
  bool OwesMessage() const override {
    return !busy_ && arrived_.empty() && (pipeline_ == nullptr || pipeline_->IsReceiving());
  }

  void Release() override {
    queue_.Clear();
    arrived_.clear();
    offered_.reset();
    if (pipeline_ != nullptr) pipeline_->Stop();
    if (carrier_ != 0) {
      session_->Detach(carrier_);
    } else if (session_ != nullptr) {
      AbandonOpening();
    }
  }

  void AbandonOpening() {
    if (opening_) session_->Close(absl::CancelledError("the stream broke while the session was opening"));
  }

  const std::optional<NavigateFrame::Time> deadline_;
  const std::shared_ptr<CallAudit> audit_;
  std::shared_ptr<NavigateSession> session_;  // null before the config
  int64_t carrier_ = 0;                       // ours in the session; 0: we do not carry it yet
  std::shared_ptr<FramePipeline> pipeline_;   // null before we carry the session
  std::shared_ptr<SharedSegment> offered_;    // null: the stream has no segment
  int refused_offers_ = 0;
  grpc::ByteBuffer message_;  // being read
  std::deque<Arrived> arrived_;
  grpc::ByteBuffer writing_message_;
  ResponseQueue queue_;
  bool opening_ = false;
  bool ending_ = false;  // the session goes, then the call
  bool concluded_ = false;
  bool reading_ = false;
  bool ended_ = false;  // no message comes after those that arrived
  bool busy_ = false;   // a worker handles what arrived
  bool writing_ = false;
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartNavigate(ServerContext& context,
                                                                           const grpc::CallbackServerContext& rpc) {
  auto stream = std::make_shared<NavigateStream>(context, rpc);
  stream->Start();
  return stream.get();
}

}  // namespace intrawarp::server
