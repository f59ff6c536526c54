// SPDX-License-Identifier: Apache-2.0
#include "server/session/navigate_session.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/bulk/bulk_stream.h"
#include "server/job/admission_metrics.h"
#include "server/job/job_support.h"
#include "server/registration/registration_report.h"
#include "server/session/session_store.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

constexpr size_t kRecentTransforms = 16;
constexpr double kUnknownLoad = 0.1;

v1::SessionState ToProto(NavigateSession::State state) {
  switch (state) {
    case NavigateSession::State::kOpening:
      return v1::SESSION_STATE_OPENING;
    case NavigateSession::State::kActive:
      return v1::SESSION_STATE_ACTIVE;
    case NavigateSession::State::kDetached:
      return v1::SESSION_STATE_DETACHED;
    case NavigateSession::State::kClosed:
      return v1::SESSION_STATE_CLOSED;
  }
  return v1::SESSION_STATE_UNSPECIFIED;
}

// The grid of the fixed image of a frame as expected.
const Geometry& ExpectedFixed(const SessionSetup& setup) {
  return setup.resident_is_fixed ? setup.resident->image.geometry() : setup.expected.geometry;
}

PlannedStages ExpectedStages(const SessionSetup& setup) {
  const Geometry& resident = setup.resident->image.geometry();
  return setup.resident_is_fixed ? StagesFor(setup.plan, resident, setup.expected.geometry)
                                 : StagesFor(setup.plan, setup.expected.geometry, resident);
}

std::chrono::system_clock::time_point TimeFromProto(const google::protobuf::Timestamp& from) {
  const std::chrono::nanoseconds since = std::chrono::seconds(from.seconds()) + std::chrono::nanoseconds(from.nanos());
  return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(since));
}

// By what frames of the kind cost before; nullopt when nothing is known, or the session has no rate.
std::optional<double> PredictedLoad(const DeviceContext& context, const SessionSetup& setup) {
  if (!setup.rate_hz) return std::nullopt;
  const int64_t size = CostSize(setup.resident->image.geometry(), setup.expected.geometry);
  const auto cost = context.jobs.costs().Predict(FrameCostKind(setup, /*has_chosen=*/setup.plan.automatic), size);
  if (!cost || !cost->sure) return std::nullopt;
  return *setup.rate_hz * std::chrono::duration<double>(cost->expected).count();
}

}  // namespace

Amounts ResultRoom(const SessionSetup& setup) {
  const auto& [stages, automatic] = ExpectedStages(setup);
  const Geometry& fixed = ExpectedFixed(setup);
  const int64_t computing = RegistrationMemoryBytes(stages, automatic, setup.plan.find_missing_tissue, fixed);
  const int64_t each = RegistrationResultBytes(stages, automatic, fixed);
  const int others = setup.max_pending + 1 + (setup.is_durable ? 1 : 0);
  return {.resident_bytes = computing + others * each, .transforms = 1 + others};
}

absl::StatusOr<int64_t> ExpectedFieldBytes(const SessionSetup& setup) {
  if (!setup.field) return 0;
  const Geometry& fixed = ExpectedFixed(setup);
  // Control points are the whole result.
  if (setup.field->form == FieldForm::kControlPoints) {
    const auto& [stages, automatic] = ExpectedStages(setup);
    return RegistrationResultBytes(stages, automatic, fixed);
  }
  absl::StatusOr<Geometry> grid = FieldGrid(*setup.field, fixed);
  // The region does not fit the grid that is expected; the frames will show which one it fits.
  if (!grid.ok()) return 0;
  return FieldBytes(*setup.field, *grid);
}

absl::Status SessionEnded(const char* cause) {
  return WithReason(absl::AbortedError(absl::StrCat("the stream no longer carries its session: ", cause)),
                    v1::SESSION_ENDED, {{"cause", cause}});
}

NavigateSession::NavigateSession(DeviceContext& context, std::string id, SessionSetup setup)
    : context_(context),
      id_(std::move(id)),
      setup_(std::move(setup)),
      predicted_load_(PredictedLoad(context, setup_)),
      keeper_(setup_.is_durable ? std::make_shared<SessionKeeper>(context, id_, setup_) : nullptr),
      create_time_(context.seams.system_now()),
      last_activity_(context.seams.steady_now()) {
  recent_.emplace(context.transforms, kRecentTransforms);
}

NavigateSession::State NavigateSession::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

absl::Status NavigateSession::Reserve() {
  // A tap has buffers of its own, so that a frame never lacks one that is looked at.
  const int count = setup_.max_pending + 1;
  const int frames = count + (context_.sessions.has_taps() ? kLentBuffers : 0);
  const int64_t frame_bytes = setup_.expected.bytes;
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t field_bytes, ExpectedFieldBytes(setup_));
  Claim claim;
  claim.job_class = JobClass::kFrame;
  claim.sessions = 1;
  claim.owner = owner();
  claim.workspace_bytes = SessionWorkspaceBytes(context_.device, setup_);
  const Amounts room = ResultRoom(setup_);
  claim.resident_bytes = room.resident_bytes;
  claim.transforms = room.transforms;
  const int fields = field_bytes == 0 ? 0 : count * (setup_.coarse_field ? 2 : 1);
  claim.pinned_bytes = frames * PinnedClaim(frame_bytes) + fields * PinnedClaim(field_bytes);
  INTRAWARP_ASSIGN_OR_RETURN(Grant grant, Admit(context_, claim, Share::kSession));
  INTRAWARP_RETURN_IF_ERROR(frame_buffers_.Lease(context_, grant, frames, frame_bytes));
  if (fields > 0) INTRAWARP_RETURN_IF_ERROR(field_buffers_.Lease(context_, grant, fields, field_bytes));
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kClosed) return absl::CancelledError("the session was closed");
  room_ = GrantPool::Create(grant.Split(room));
  grant_ = std::move(grant);
  return absl::OkStatus();
}

// The state when the keeper asks, unless the session is gone by then.
SessionKeeper::StateFn NavigateSession::StateFn() {
  return [weak = weak_from_this()]() -> std::optional<SessionKeeper::State> {
    const std::shared_ptr<NavigateSession> session = weak.lock();
    if (session == nullptr) return std::nullopt;
    std::lock_guard<std::mutex> lock(session->mutex_);
    if (session->state_ == State::kClosed) return std::nullopt;
    return SessionKeeper::State{session->DescribeIn(), session->start_};
  };
}

absl::Status NavigateSession::Keep() { return keeper_->Begin(StateFn()); }

void NavigateSession::Restore(const state::SessionRow& row, const v1::Session& kept,
                              std::shared_ptr<const GoodResult> start) {
  keeper_->Continue(row, StateFn());
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOpening) return;
  state_ = State::kDetached;
  detached_at_ = context_.seams.steady_now();
  create_time_ = TimeFromProto(kept.create_time());
  warm_ = true;
  resumptions_ = kept.resumptions();
  if (kept.has_last_frame_number()) last_frame_number_ = kept.last_frame_number();
  start_ = std::move(start);
  statistics_.Restore(kept.statistics());
}

void NavigateSession::Flush() {
  if (keeper_ != nullptr) keeper_->Flush();
}

void NavigateSession::Changed(SessionKeeper::Urgency urgency) {
  if (keeper_ != nullptr) keeper_->Changed(urgency);
}

void NavigateSession::BeginSuspend() {
  if (keeper_ != nullptr) keeper_->BeginSuspend();
}

void NavigateSession::Suspend(const absl::Status& why, Time end) {
  if (keeper_ != nullptr) keeper_->AwaitSuspended(end);
  Close(why);
}

absl::StatusOr<int64_t> NavigateSession::CarryBy(EndedFn ended, EndedFn* before) {
  if (state_ == State::kActive) *before = std::move(ended_);
  ended_ = std::move(ended);
  state_ = State::kActive;
  Touch();
  return ++carrier_;
}

absl::StatusOr<int64_t> NavigateSession::Open(bool warm, EndedFn ended) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOpening) return SessionEnded("closed");
  warm_ = warm;
  EndedFn nobody;
  return CarryBy(std::move(ended), &nobody);
}

absl::StatusOr<int64_t> NavigateSession::Resume(EndedFn ended) {
  EndedFn before;
  absl::StatusOr<int64_t> carrier = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kActive && state_ != State::kDetached) return SessionNotResumable("the session is not open");
    ++resumptions_;
    carrier = CarryBy(std::move(ended), &before);
  }
  context_.sessions.CountResumption();
  Changed(SessionKeeper::Urgency::kLater);
  if (before) before(SessionEnded("resumed"));
  return carrier;
}

void NavigateSession::Detach(int64_t carrier) {
  bool waits = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!IsCarriedBy(carrier)) return;
    ended_ = nullptr;
    waits = setup_.resume_window.count() > 0;
    if (waits) {
      state_ = State::kDetached;
      detached_at_ = context_.seams.steady_now();
    }
  }
  if (!waits) return CloseBy(carrier);
  Changed(SessionKeeper::Urgency::kNow);
}

// Tells of a session that no restart brings back.
void NavigateSession::NotDurable(GoneFn gone) const {
  if (!gone) return;
  if (keeper_ == nullptr) return gone();
  context_.durable.Run(std::move(gone));
}

void NavigateSession::CloseBy(int64_t carrier, GoneFn gone) {
  bool is_carried = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_carried = IsCarriedBy(carrier);
    if (is_carried) ended_ = nullptr;
  }
  if (!is_carried) return NotDurable(std::move(gone));
  Close(absl::OkStatus(), std::move(gone));
}

void NavigateSession::Close(const absl::Status& why, GoneFn gone) {
  EndedFn ended;
  bool was_closed = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    was_closed = std::exchange(state_, State::kClosed) == State::kClosed;
    if (!was_closed) ended = std::exchange(ended_, nullptr);
  }
  if (was_closed) return NotDurable(std::move(gone));
  Free();
  if (ended) ended(why);
  if (keeper_ == nullptr) return NotDurable(std::move(gone));
  keeper_->End(std::move(gone));
}

void NavigateSession::Free() {
  context_.jobs.Cancel(this);  // the warm-up
  frame_buffers_.Release();
  field_buffers_.Release();
  std::shared_ptr<const GoodResult> start;  // freed after the lock
  std::shared_ptr<FrameTap> tap;
  Grant grant;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    start = std::move(start_);
    tap = std::move(tap_);
    grant = std::move(grant_);
    if (room_ != nullptr) room_->Close();
    room_.reset();
    recent_.reset();
  }
  context_.sessions.Erase(*this);
}

NavigateSession::Expiry NavigateSession::ExpiryAt(Time now) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kDetached) {
    return now - detached_at_ >= setup_.resume_window ? Expiry::kUnresumed : Expiry::kNone;
  }
  const bool is_idle = state_ == State::kActive && statistics_.in_flight() == 0;
  return is_idle && now - last_activity_ >= setup_.idle_timeout ? Expiry::kIdle : Expiry::kNone;
}

absl::StatusOr<std::shared_ptr<char>> NavigateSession::TakeFieldBuffer(int64_t bytes) {
  if (std::shared_ptr<PinnedBuffer> buffer = field_buffers_.Take(bytes)) return BytesOf(std::move(buffer));
  INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<PinnedBuffer> lease,
                             LeasePinned(context_, bytes, owner(), Share::kSession));
  return BytesOf(std::move(lease));
}

void NavigateSession::set_tap(std::shared_ptr<FrameTap> tap) {
  std::lock_guard<std::mutex> lock(mutex_);
  tap_.swap(tap);  // the one before goes after the lock
}

std::shared_ptr<FrameTap> NavigateSession::tap() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return tap_;
}

std::shared_ptr<const PinnedBuffer> NavigateSession::LendPixels(std::shared_ptr<PinnedBuffer> pixels) {
  if (lent_->fetch_add(1) >= kLentBuffers) {
    lent_->fetch_sub(1);
    return nullptr;
  }
  const PinnedBuffer* const buffer = pixels.get();
  return {buffer, [pixels = std::move(pixels), lent = lent_](const PinnedBuffer*) mutable {
            pixels.reset();
            lent->fetch_sub(1);
          }};
}

std::vector<AnsweredFrame> NavigateSession::AnsweredSince(int64_t sequence) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return history_.Since(sequence);
}

absl::StatusOr<std::shared_ptr<Grant>> NavigateSession::ReserveResult(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!recent_) return absl::CancelledError("the session was closed");
  recent_->MakeRoom(bytes, context_.ledger, context_.index);
  const Amounts amounts{.resident_bytes = bytes, .transforms = 1};
  absl::StatusOr<Grant> grant =
      context_.ledger.Admit({amounts, JobClass::kFrame, context_.index, owner()}, Share::kSession);
  if (grant.ok()) return std::make_shared<Grant>(*std::move(grant));
  if (room_ == nullptr) return grant.status();
  recent_->MakeRoom(bytes, *room_);
  if (std::optional<Grant> own = room_->Lend(amounts)) return std::make_shared<Grant>(*std::move(own));
  context_.metrics.admission.CountRejection(ReasonOf(grant.status()));
  return grant.status();
}

std::shared_ptr<const GoodResult> NavigateSession::start() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return start_;
}

void NavigateSession::SetStart(int64_t carrier, const NavigateFrame& frame) {
  const RegistrationResult& result = frame.outcome.result;
  GoodResult good{frame.number, frame.outcome.reservation, result.transform, {}};
  // A budget may have kept the better choice from being tried.
  const bool is_whole = result.stop_reason != StopReason::kBudget;
  if (is_whole && result.choice && result.choice->is_deformed()) good.chosen = result.choice->stages;
  std::shared_ptr<const GoodResult> start;  // what goes is freed after the lock
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (good.chosen.empty() && start_ != nullptr) good.chosen = start_->chosen;
    start = std::make_shared<const GoodResult>(std::move(good));
    if (!IsCarriedBy(carrier)) return;
    start_.swap(start);
  }
  Changed(SessionKeeper::Urgency::kSoon);
}

absl::StatusOr<std::string> NavigateSession::Keep(const RegistrationOutcome& outcome, const v1::Report& report) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!recent_) return absl::CancelledError("the session was closed");
  INTRAWARP_ASSIGN_OR_RETURN(
      std::shared_ptr<const StoredTransform> stored,
      StoreResult(context_, {RandomId(context_.seams), std::nullopt, std::nullopt, owner()}, outcome, report));
  const std::string name = TransformName(stored->id);
  recent_->Add(std::move(stored));
  return name;
}

void NavigateSession::FrameBegan(int64_t carrier) {
  std::lock_guard<std::mutex> lock(mutex_);
  statistics_.Began();
  if (IsCarriedBy(carrier)) Touch();
}

void NavigateSession::FrameAnswered(int64_t carrier, const NavigateFrame& frame, FrameFate fate) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    statistics_.Ended(fate, frame.latency);
    history_.Add({0, frame.number, context_.seams.steady_now(), frame.latency, LimitOf(frame, setup_), fate,
                  frame.status.ok() && NeedsReview(frame.outcome.quality.review_reasons)});
    if (!IsCarriedBy(carrier)) return;
    // A number that did not grow was answered with an error.
    last_frame_number_ = std::max(last_frame_number_.value_or(frame.number), frame.number);
    Touch();
  }
  Changed(SessionKeeper::Urgency::kLater);
}

void NavigateSession::CoarseFieldSent() {
  std::lock_guard<std::mutex> lock(mutex_);
  statistics_.CoarseFieldSent();
}

void NavigateSession::FramesDropped(int64_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int64_t i = 0; i < count; ++i) statistics_.Ended(FrameFate::kDropped);
}

std::optional<int64_t> NavigateSession::last_frame_number() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return last_frame_number_;
}

std::optional<double> NavigateSession::Load() const {
  const std::optional<std::chrono::nanoseconds> device_time = statistics_.MeanDeviceTime();
  if (!setup_.rate_hz || !device_time) return std::nullopt;
  return *setup_.rate_hz * std::chrono::duration<double>(*device_time).count();
}

double NavigateSession::ExpectedLoad() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<double> load = Load();
  return load ? *load : predicted_load_.value_or(kUnknownLoad);
}

v1::Session NavigateSession::Describe() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return DescribeIn();
}

v1::Session NavigateSession::DescribeIn() const {
  v1::Session to;
  to.set_name(SessionName(id_));
  to.set_owner(owner());
  to.set_device(context_.device.name());
  *to.mutable_config() = setup_.resolved;
  to.mutable_config()->set_session_id(id_);
  *to.mutable_create_time() = TimestampToProto(create_time_);
  to.set_reserved_bytes(frame_buffers_.bytes() + field_buffers_.bytes());
  to.set_state(ToProto(state_));
  to.set_warm(warm_);
  if (last_frame_number_) to.set_last_frame_number(*last_frame_number_);
  if (start_ != nullptr) to.set_start_frame_number(start_->frame_number);
  if (const std::optional<int64_t> kept = durable_frame()) to.set_kept_frame_number(*kept);
  to.set_resumptions(resumptions_);
  if (const std::optional<double> load = Load()) to.set_load(*load);
  *to.mutable_statistics() = statistics_.ToProto();
  return to;
}

}  // namespace intrawarp::server
