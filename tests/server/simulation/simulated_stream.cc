// SPDX-License-Identifier: Apache-2.0
#include "tests/server/simulation/simulated_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "google/rpc/error_details.pb.h"
#include "server/job/job_support.h"
#include "server/session/warm_up.h"
#include "server/status/errors.h"
#include "wire/chunk.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

constexpr std::chrono::seconds kHousekeeping{1};

google::rpc::ErrorInfo InfoOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : status.details()) {
    if (detail.UnpackTo(&info)) return info;
  }
  return info;
}

v1::ErrorReason ReasonIn(const google::rpc::Status& status) {
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  v1::ErrorReason_Parse(InfoOf(status).reason(), &reason);
  return reason;
}

bool HasCause(const v1::Report& report, v1::VerdictCause cause) {
  return std::any_of(report.reasons().begin(), report.reasons().end(),
                     [&](const v1::VerdictReason& reason) { return reason.cause() == cause; });
}

// The frame whose transform the next one starts from; 0: none.
int64_t StartOf(const std::shared_ptr<NavigateSession>& session) {
  const auto start = session == nullptr ? nullptr : session->start();
  return start == nullptr ? 0 : start->frame_number;
}

// What a session claims for its frames when it opens.
int64_t PinnedOf(const SessionSetup& setup) {
  const int64_t frame = PinnedClaim(setup.expected.bytes);
  const int64_t field = setup.field ? PinnedClaim(FieldBytes(*setup.field, setup.expected.geometry)) : 0;
  return (setup.max_pending + 1) * (frame + field);
}

FrameFate FateOf(const v1::FrameResult& result, v1::ErrorReason reason) {
  if (result.status().code() == 0) {
    return HasCause(result.report(), v1::VERDICT_CAUSE_LATE) ? FrameFate::kLate : FrameFate::kOk;
  }
  if (reason == v1::FRAME_SUPERSEDED) return FrameFate::kSuperseded;
  if (reason == v1::EXCEEDS_CAPACITY || reason == v1::DEADLINE_UNREACHABLE) return FrameFate::kRefused;
  if (result.status().code() == static_cast<int>(absl::StatusCode::kResourceExhausted)) return FrameFate::kRefused;
  const bool is_missed = result.status().code() == static_cast<int>(absl::StatusCode::kDeadlineExceeded);
  return is_missed ? FrameFate::kMissed : FrameFate::kFailed;
}

}  // namespace

void SimulatedStream::Send(ClientMessage message) {
  if (finished_) return;
  connection_.push_back(std::move(message));
  Continue();
}

void SimulatedStream::Break() {
  if (finished_) return;
  ++world_.tally["streams broken"];
  world_.rules.Note("stream breaks");
  if (carrier_ != 0) session_->Detach(carrier_);
  Finish(absl::CancelledError("the client is gone"));
}

// --- What NavigateStream does.

absl::Status SimulatedStream::Receive(ClientMessage& message) {
  if (!message.request) {
    pipeline_->EndOfFrames();
    return absl::OkStatus();
  }
  v1::NavigateRequest& request = *message.request;
  if (request.has_config()) return ReceiveConfig(request.config());
  if (request.has_frame()) return ReceiveHeader(message);
  return ReceiveChunk(std::move(*request.mutable_chunk()));
}

absl::Status SimulatedStream::ReceiveConfig(const v1::NavigateConfig& config) {
  if (config.resume()) return Resume(config);
  INTRAWARP_ASSIGN_OR_RETURN(session_, world_.sessions.Open(world_.context, config));
  seen_->session = session_;
  world_.pinned_of_sessions += PinnedOf(session_->setup());
  opening_ = true;
  WarmUp(session_, [self = shared_from_this()](const absl::StatusOr<bool>& warm) {
    self->world_.time.After(Duration(0), [self, warm] { self->OnWarm(warm); });
  });
  world_.AwaitWorkers();
  return absl::OkStatus();
}

absl::Status SimulatedStream::Resume(const v1::NavigateConfig& config) {
  const bool was_active = seen_->session != nullptr && seen_->session->state() == NavigateSession::State::kActive;
  const int64_t start = seen_->detached ? seen_->start_when_detached : StartOf(seen_->session);
  absl::StatusOr<std::shared_ptr<NavigateSession>> session = world_.sessions.Open(world_.context, config);
  absl::Status status = session.status();
  if (session.ok()) {
    session_ = *session;
    status = Carry(session_->Resume(EndedFn()));
  }
  CheckResumable(status, was_active);
  if (status.ok()) CheckStart(start);
  return status;
}

absl::Status SimulatedStream::ReceiveHeader(const ClientMessage& message) {
  const v1::FrameHeader& header = message.request->frame();
  const int64_t number = header.frame_number();
  pipeline_->BeginFrame(header, world_.time.now());
  Frame frame;
  frame.number = number;
  frame.is_stale = number <= std::max(last_number_, seen_->last_answered);
  last_number_ = std::max(last_number_, number);
  frame.received = seen_->last_activity = world_.time.now();
  frame.is_valid = message.is_valid;
  frame.is_expected = message.is_expected;
  world_.has_large_frames = world_.has_large_frames || !frame.is_expected;
  frame.total_bytes = header.total_bytes();
  frame.deadline = seen_->session->setup().frame_deadline;
  if (header.has_deadline()) frame.deadline = *DurationFromProto(header.deadline(), "", std::chrono::hours(24));
  frames_.push_back(frame);
  ++seen_->headers;
  world_.rules.Note("header of frame ", number);
  return absl::OkStatus();
}

absl::Status SimulatedStream::ReceiveChunk(v1::Chunk chunk) {
  Frame& frame = frames_.back();
  const bool fits = chunk.offset() == frame.received_bytes;
  if (!fits) frame.is_valid = false;
  if (frame.is_valid) frame.received_bytes += static_cast<int64_t>(chunk.data().size());
  return pipeline_->Append(wire::ReceivedChunk(std::move(chunk)));
}

void SimulatedStream::OnWarm(const absl::StatusOr<bool>& warm) {
  if (finished_) return;
  opening_ = false;
  const absl::Status status = warm.ok() ? Carry(session_->Open(*warm, EndedFn())) : warm.status();
  if (!status.ok()) return End(status);
  ++world_.tally["sessions opened"];
  Continue();
}

absl::Status SimulatedStream::Carry(const absl::StatusOr<int64_t>& carrier) {
  INTRAWARP_ASSIGN_OR_RETURN(carrier_, carrier);
  pipeline_ =
      std::make_shared<FramePipeline>(session_->context(), session_, carrier_, std::nullopt, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->OnChanged();
      });
  ++seen_->streams;
  seen_->detached.reset();
  seen_->last_activity = world_.time.now();
  return absl::OkStatus();
}

NavigateSession::EndedFn SimulatedStream::EndedFn() {
  return [weak = weak_from_this()](const absl::Status& why) {
    if (const auto self = weak.lock()) self->OnEnded(why);
  };
}

void SimulatedStream::OnEnded(const absl::Status& why) {
  if (finished_) return;
  if (absl::StrContains(why.message(), "idle")) CheckIdle();
  Finish(why);
}

// A job's; it may lose time here.
void SimulatedStream::OnChanged() {
  world_.time.After(Duration(0), [self = shared_from_this()] { self->Continue(); });
  if (Coroutine::Current() != nullptr && world_.dice.Chance(30)) {
    world_.scheduler.Compute(world_.dice.Microseconds(1, 2000));
  }
}

// Whatever can go on now goes on.
void SimulatedStream::Continue() {
  if (std::exchange(is_pumping_, true)) return;
  Read();
  TakeEvents();
  Write();
  is_pumping_ = false;
  if (!finished_ && !opening_ && pipeline_ != nullptr && pipeline_->IsDone() && answers_.empty() && !writing_) {
    Conclude();
  }
}

void SimulatedStream::Read() {
  while (!finished_ && !opening_ && !connection_.empty() && (pipeline_ == nullptr || pipeline_->MayRead())) {
    ClientMessage message = std::move(connection_.front());
    connection_.pop_front();
    const absl::Status status = Receive(message);
    if (!status.ok()) return End(status);
    if (pipeline_ != nullptr) CheckBounds();
  }
}

void SimulatedStream::TakeEvents() {
  if (pipeline_ == nullptr || finished_) return;
  while (std::optional<FramePipeline::Event> event = pipeline_->Next()) answers_.push_back(*std::move(event));
}

void SimulatedStream::Write() {
  if (finished_ || writing_ || answers_.empty()) return;
  writing_ = std::move(answers_.front());
  answers_.pop_front();
  if (writing_->answered != nullptr) {
    CheckAnswer(pipeline_->MakeResult(*writing_->answered, Duration(0)).result());
  }
  const Duration taken = std::max<Duration>(reading_, std::chrono::microseconds(10));
  world_.time.After(taken, [self = shared_from_this()] { self->Written(); });
}

void SimulatedStream::Written() {
  writing_.reset();
  if (!finished_) Continue();
}

void SimulatedStream::Conclude() {
  Check(answered_ == frames_.size(), "a stream that ends well has answered every frame");
  ++world_.tally["streams concluded"];
  End(absl::OkStatus());
}

void SimulatedStream::End(const absl::Status& status) {
  if (finished_) return;
  if (carrier_ != 0) {
    const bool carries = session_->state() == NavigateSession::State::kActive;
    session_->CloseBy(carrier_);
    seen_->closed = seen_->closed || carries;
  }
  Finish(status);
}

void SimulatedStream::Finish(const absl::Status& status) {
  if (std::exchange(finished_, true)) return;
  was_refused_ = pipeline_ == nullptr;
  world_.rules.Note("stream ends: ", status.ToString());
  answers_.clear();
  connection_.clear();
  writing_.reset();
  if (pipeline_ != nullptr) {
    pipeline_->Stop();
    Check(!pipeline_->Next().has_value() && !pipeline_->MayRead(), "nothing comes from a pipeline that was stopped");
  }
  if (carrier_ != 0) {
    session_->Detach(carrier_);
    NoteDetached();
  } else if (opening_) {
    session_->Close(absl::CancelledError("the stream broke while the session was opening"));
    seen_->closed = true;
  }
}

// --- The rules.

void SimulatedStream::NoteDetached() {
  const NavigateSession::State state = session_->state();
  if (state == NavigateSession::State::kClosed) seen_->closed = true;
  if (state != NavigateSession::State::kDetached || seen_->detached) return;
  seen_->detached = world_.time.now();
  seen_->start_when_detached = StartOf(session_);
}

void SimulatedStream::CheckResumable(const absl::Status& status, bool was_active) {
  ++world_.tally[status.ok() ? "sessions resumed" : "sessions not resumed"];
  world_.rules.Note("resumes: ", status.ToString());
  if (seen_->session == nullptr || seen_->closed) {
    Check(ReasonOf(status) == v1::SESSION_NOT_RESUMABLE, "a session that is gone is not resumed");
    return;
  }
  if (was_active) {
    Check(status.ok(), "a stream takes over from the one before");
    return;
  }
  if (!seen_->detached) return;
  const Duration waited = world_.time.now() - *seen_->detached, window = seen_->session->setup().resume_window;
  if (waited < window) Check(status.ok(), "a session can be resumed within its window");
  if (waited >= window + 2 * kHousekeeping) Check(!status.ok(), "a session is gone some time after its window");
}

void SimulatedStream::CheckStart(int64_t before) {
  const int64_t now = StartOf(session_);
  Check(now == before, "a resumed session goes on from its last good transform");
  Check(now >= seen_->last_good, "no good transform that was answered is forgotten");
  const v1::Session session = session_->Describe();
  Check(session.last_frame_number() == seen_->last_answered, "a resumed session knows the last frame that it answered");
  Check(session.statistics().frames_in_flight() == 0, "frames of a stream that broke are dropped");
}

void SimulatedStream::CheckAnswer(const v1::FrameResult& result) {
  if (!Check(answered_ < frames_.size(), "nobody is answered twice")) return;
  const Frame& frame = frames_[answered_++];
  if (!Check(frame.number == result.frame_number(), "frames are answered in their order")) return;
  const v1::ErrorReason reason = ReasonIn(result.status());
  const FrameFate fate = FateOf(result, reason);
  ++seen_->fates[static_cast<int>(fate)];
  ++world_.tally[absl::StrCat("frames ", result.status().code() == 0 ? "OK" : v1::ErrorReason_Name(reason),
                              fate == FrameFate::kLate ? " late" : "")];
  world_.rules.Note("answer of frame ", result.frame_number(), ": ", result.status().code(), " ",
                    v1::ErrorReason_Name(reason));
  seen_->last_activity = world_.time.now();
  seen_->last_answered = std::max(seen_->last_answered, result.frame_number());
  if (result.status().code() == 0) {
    CheckGood(frame, result);
  } else {
    CheckError(frame, result);
  }
}

bool SimulatedStream::IsLate(const Frame& frame) const {
  return frame.deadline && world_.time.now() - frame.received > *frame.deadline;
}

void SimulatedStream::CheckGood(const Frame& frame, const v1::FrameResult& result) {
  Check(frame.is_valid && frame.is_complete(), "only a frame that came whole has a result");
  Check(!frame.is_stale, "numbers grow");
  const bool says_late = HasCause(result.report(), v1::VERDICT_CAUSE_LATE);
  Check(says_late == IsLate(frame), "a late answer says so");
  Check(!says_late || result.report().verdict() == v1::VERDICT_REVIEW, "a late answer is not ok");
  Check(!says_late || session_->setup().late_frames == LateFrames::kDeliver, "late answers go to who wants them");
  const auto id = ParseTransformName(result.transform(), "");
  Check(id.ok() && world_.transforms.Find(*id).ok(), "the result of an answer is kept");
  if (HasCause(result.report(), v1::VERDICT_CAUSE_WORSE_THAN_START)) return;
  seen_->last_good = result.frame_number();
  const bool is_carried = session_->state() == NavigateSession::State::kActive;
  Check(!is_carried || StartOf(session_) >= result.frame_number(),
        "the next frame starts from the last good transform");
}

void SimulatedStream::CheckError(const Frame& frame, const v1::FrameResult& result) {
  const google::rpc::ErrorInfo info = InfoOf(result.status());
  const v1::ErrorReason reason = ReasonIn(result.status());
  Check(!result.has_report() && result.transform().empty(), "an error has no result");
  if (frame.is_stale) {
    Check(reason == v1::INVALID_FIELD, "a number that does not grow is an error of its frame");
    return;
  }
  switch (reason) {
    case v1::FRAME_SUPERSEDED:
      return CheckSuperseded(result, info.metadata().at("superseded_by"));
    case v1::DEADLINE_PASSED:
      Check(frame.deadline && world_.time.now() - frame.received >= *frame.deadline, "no deadline passes early");
      return;
    case v1::DEADLINE_UNREACHABLE:
      Check(frame.deadline.has_value(), "only a deadline is out of reach");
      return;
    case v1::INVALID_FIELD:
    case v1::CHUNK_OUT_OF_ORDER:
      Check(!frame.is_valid || !frame.is_complete(), "a frame that is well formed is not invalid");
      return;
    default:
      CheckRefusal(frame, reason);
  }
}

void SimulatedStream::CheckSuperseded(const v1::FrameResult& result, const std::string& by) {
  int64_t number = 0;
  Check(session_->setup().overload_policy == OverloadPolicy::kLatestWins, "KEEP_ALL keeps all");
  Check(absl::SimpleAtoi(by, &number) && number > result.frame_number(), "a newer frame takes the place");
  const auto newer = std::find_if(frames_.begin(), frames_.end(),
                                  [&](const Frame& frame) { return frame.number == number && !frame.is_stale; });
  Check(newer != frames_.end() && newer->is_valid && newer->is_complete(),
        "a frame that takes another's place has come whole");
}

// What a session was promised when it opened does not run out, and a sound device fails nobody.
void SimulatedStream::CheckRefusal(const Frame& frame, v1::ErrorReason reason) {
  if (world_.options.fault) return;
  const bool is_memory = reason == v1::PINNED_MEMORY || reason == v1::RESIDENT_MEMORY || reason == v1::EXCEEDS_CAPACITY;
  const bool is_of_another_size = !frame.is_expected && is_memory;
  Check(is_of_another_size,
        absl::StrCat("a session has what it was promised, but a frame got ", v1::ErrorReason_Name(reason)));
}

void SimulatedStream::CheckBounds() {
  const SessionSetup& setup = session_->setup();
  const auto unanswered = static_cast<int>(frames_.size() - answered_);
  const bool keeps_all = setup.overload_policy == OverloadPolicy::kKeepAll;
  // One header is held back.
  const int most = 1 + (keeps_all ? setup.max_pending + 1 : FramePipeline::kMaxUnanswered);
  Check(unanswered <= most, "the number of frames without an answer is bounded");
}

void SimulatedStream::CheckIdle() {
  ++world_.tally["sessions idle"];
  const Duration idle = world_.time.now() - seen_->last_activity;
  Check(idle >= session_->setup().idle_timeout, "only an idle session is closed for it");
  Check(answered_ == frames_.size(), "a session with a frame under way is not idle");
  seen_->closed = true;
}

}  // namespace intrawarp::server
