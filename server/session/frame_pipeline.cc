// SPDX-License-Identifier: Apache-2.0
#include "server/session/frame_pipeline.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/crc32c.h"
#include "server/bulk/received_chunk.h"
#include "server/context/limits.h"
#include "server/job/job_support.h"
#include "server/placement/replication.h"
#include "server/registration/report_provenance.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

using std::chrono::nanoseconds;

double Milliseconds(nanoseconds duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

absl::Status TooFewBytes(const NavigateFrame& frame) {
  return InvalidField(
      "chunk", absl::StrCat("the frame ended after ", frame.received_bytes, " of ", frame.total_bytes, " bytes"));
}

absl::Status Superseded(int64_t by) {
  return WithReason(absl::AbortedError(absl::StrCat("frame ", by, " has taken its place")), v1::FRAME_SUPERSEDED,
                    {{"superseded_by", absl::StrCat(by)}});
}

absl::Status DeadlineMissed(const NavigateFrame& frame, absl::string_view when) {
  return FieldError(absl::StatusCode::kDeadlineExceeded, "frame.deadline",
                    absl::StrCat(Milliseconds(*frame.deadline), " ms had passed before the frame ", when));
}

bool IsPast(const NavigateFrame& frame, NavigateFrame::Time now) {
  return frame.deadline && now >= frame.begin + *frame.deadline;
}

// Whether the server had no room or no time for the frame, and did not run it.
bool IsRefusal(const absl::Status& status) {
  const v1::ErrorReason reason = ReasonOf(status);
  return absl::IsResourceExhausted(status) || reason == v1::EXCEEDS_CAPACITY || reason == v1::DEADLINE_UNREACHABLE;
}

FrameFate FateOf(const absl::Status& status) {
  if (ReasonOf(status) == v1::FRAME_SUPERSEDED) return FrameFate::kSuperseded;
  if (IsRefusal(status)) return FrameFate::kRefused;
  return absl::IsDeadlineExceeded(status) ? FrameFate::kMissed : FrameFate::kFailed;
}

// Frames with masks of their own cost otherwise than those without.
std::string CostKindOf(const NavigateFrame& frame, const SessionSetup& setup, bool has_chosen) {
  const bool has_mask = frame.masks != nullptr && frame.masks->mask != nullptr;
  const bool has_weight = frame.masks != nullptr && frame.masks->weight != nullptr;
  return absl::StrCat(FrameCostKind(setup, has_chosen), has_mask ? "/mask" : "", has_weight ? "/weight" : "");
}

// The names and digests of a frame's own masks, in the place of the session's.
void ReportMasks(const FrameMasks& masks, bool is_moving, v1::Report& report) {
  v1::RegistrationOptions& options = *report.mutable_options();
  v1::ReportProvenance& provenance = *report.mutable_provenance();
  if (masks.mask != nullptr) {
    *(is_moving ? options.mutable_moving_mask() : options.mutable_fixed_mask()) = VolumeName(masks.mask->id);
    *(is_moving ? provenance.mutable_moving_mask_digest() : provenance.mutable_fixed_mask_digest()) =
        masks.mask->content_digest;
  }
  if (masks.weight != nullptr) {
    *(is_moving ? options.mutable_moving_weight() : options.mutable_fixed_weight()) = VolumeName(masks.weight->id);
    *(is_moving ? provenance.mutable_moving_weight_digest() : provenance.mutable_fixed_weight_digest()) =
        masks.weight->content_digest;
  }
}

// An error of bringing a frame's masks, with the field of the frame's header that names them; with both, the field of
// the mask.
absl::Status InHeader(const FrameMasks& masks, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status named =
      FieldError(status.code(), masks.mask != nullptr ? "frame.mask" : "frame.weight", status.message());
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (url != kFieldPayload) named.SetPayload(url, payload);
  });
  return named;
}

}  // namespace

FramePipeline::FramePipeline(DeviceContext& context, std::shared_ptr<NavigateSession> session, int64_t carrier,
                             std::optional<Time> call_deadline, std::function<void()> changed)
    : context_(context),
      session_(std::move(session)),
      carrier_(carrier),
      call_deadline_(call_deadline),
      changed_(std::move(changed)),
      last_number_(session_->last_frame_number()) {}

void FramePipeline::BeginFrame(const v1::FrameHeader& header, Time received) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (receiving_ != nullptr) FailReceived(TooFewBytes(*receiving_));
  HeldHeader begun{header, received, TakeNumber(header.frame_number())};
  if (HasRoom()) {
    Begin(begun);
  } else {
    held_ = std::move(begun);
  }
  StartJobs();
}

// A client whose answer was lost sends the frame again: that costs it the frame, and not the session.
absl::Status FramePipeline::TakeNumber(int64_t number) {
  if (last_number_ && number <= *last_number_) {
    return InvalidField("frame.frame_number", absl::StrCat(number, " does not grow, the last one was ", *last_number_));
  }
  last_number_ = number;
  return absl::OkStatus();
}

absl::Status FramePipeline::Append(const wire::ReceivedChunk& chunk) {
  Frame frame;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (passing_over_ || stopped_) return absl::OkStatus();
    if (receiving_ == nullptr) return InvalidField("chunk", "belongs to no frame");
    frame = receiving_;
  }
  // Nobody else writes to a frame that is being received; Stop only lets go of it.
  Received(*frame, TakeChunk(chunk, *frame));
  return absl::OkStatus();
}

void FramePipeline::Received(const NavigateFrame& frame, absl::Status taken) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) return;
  if (!taken.ok()) {
    FailReceived(std::move(taken));
  } else if (frame.received_bytes == frame.total_bytes) {
    Complete();
  }
  StartJobs();
}

void FramePipeline::ShareMemory(std::shared_ptr<SharedSegment> segment) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!stopped_) segment_ = std::move(segment);
}

void FramePipeline::AppendSlot(const v1::SharedSlot& slot) {
  Frame frame;
  std::shared_ptr<SharedSegment> segment;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    segment = segment_;
    if (!passing_over_) frame = receiving_;
  }
  const bool is_slot = segment != nullptr && segment->CheckFrame(slot).ok();
  if (frame != nullptr) Received(*frame, TakeSlot(slot, segment.get(), *frame));
  if (is_slot) segment->FrameTaken(slot.slot());
}

absl::Status FramePipeline::TakeSlot(const v1::SharedSlot& slot, SharedSegment* segment, NavigateFrame& frame) const {
  if (segment == nullptr) return InvalidField("frame.slot", "the stream shares no memory");
  INTRAWARP_RETURN_IF_ERROR(segment->CheckFrame(slot));
  if (frame.memory == nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(frame.memory, LeasePinned(context_, *frame.extra, frame.total_bytes));
  }
  INTRAWARP_ASSIGN_OR_RETURN(const uint32_t checksum,
                             segment->CopyFrame(slot, frame.total_bytes, frame.memory->as<char>()));
  frame.received_bytes = frame.total_bytes;
  const uint32_t chained[] = {0, checksum};
  frame.checksum = io::Crc32c(chained, sizeof(chained));
  return absl::OkStatus();
}

absl::Status FramePipeline::TakeChunk(const wire::ReceivedChunk& chunk, NavigateFrame& frame) const {
  INTRAWARP_RETURN_IF_ERROR(
      ValidatePlace(chunk, {frame.received_bytes, frame.total_bytes, context_.limits.max_chunk_bytes}));
  if (frame.memory == nullptr) {
    INTRAWARP_ASSIGN_OR_RETURN(frame.memory, LeasePinned(context_, *frame.extra, frame.total_bytes));
  }
  INTRAWARP_RETURN_IF_ERROR(CopyPayload(chunk, frame.memory->as<char>() + frame.received_bytes));
  frame.received_bytes += chunk.size();
  const uint32_t chained[] = {frame.checksum, chunk.crc32c().value_or(0)};
  frame.checksum = io::Crc32c(chained, sizeof(chained));
  return absl::OkStatus();
}

void FramePipeline::EndOfFrames() {
  std::lock_guard<std::mutex> lock(mutex_);
  no_more_ = true;
  if (receiving_ != nullptr) FailReceived(TooFewBytes(*receiving_));
  StartJobs();
}

bool FramePipeline::MayRead() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !stopped_ && !no_more_ && !held_ && (receiving_ != nullptr || HasRoom());
}

bool FramePipeline::IsReceiving() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return receiving_ != nullptr;
}

bool FramePipeline::IsDone() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return no_more_ && unanswered_ == 0 && !held_;
}

bool FramePipeline::HasRoom() const {
  const SessionSetup& setup = session_->setup();
  if (setup.overload_policy == OverloadPolicy::kKeepAll) return unanswered_ <= setup.max_pending;
  return unanswered_ - light_ <= setup.max_pending && unanswered_ < kMaxUnanswered;
}

void FramePipeline::Begin(const HeldHeader& begun) {
  const v1::FrameHeader& header = begun.header;
  passing_over_ = false;
  ++unanswered_;
  session_->FrameBegan(carrier_);
  receiving_ = std::make_shared<NavigateFrame>(context_, begun.received);
  receiving_->number = header.frame_number();
  if (header.has_acquisition_time()) receiving_->acquisition_time = header.acquisition_time();
  absl::Status admitted = begun.number.ok() ? Admit(header, *receiving_) : begun.number;
  if (!admitted.ok()) FailReceived(std::move(admitted));
}

absl::Status FramePipeline::Admit(const v1::FrameHeader& header, NavigateFrame& frame) {
  PhaseTimer timer(frame.latency, Phase::kAdmit);
  const SessionSetup& setup = session_->setup();
  INTRAWARP_RETURN_IF_ERROR(ParseFrameHeader(context_, setup, header, frame));
  std::optional<Time> end = call_deadline_;
  if (frame.deadline && setup.late_frames == LateFrames::kDrop) {
    end = std::min(end.value_or(Time::max()), frame.begin + *frame.deadline);
  }
  frame.control.emplace(context_.seams, end, context_.limits.max_run_time);
  INTRAWARP_RETURN_IF_ERROR(TakeMemory(frame));
  if (frame.masks != nullptr) FindMasks(frame.masks);
  return absl::OkStatus();
}

void FramePipeline::FindMasks(const std::shared_ptr<FrameMasks>& masks) {
  for (std::shared_ptr<const StoredVolume>* const volume : masks->MutableInputs().volumes) {
    if (*volume == nullptr) continue;
    if (std::shared_ptr<const StoredVolume> here = FindOn(context_, *volume)) {
      *volume = std::move(here);
    } else {
      masks->state = FrameMasks::State::kMissing;
    }
  }
  if (masks->state == FrameMasks::State::kMissing) BringMasks(masks);
}

void FramePipeline::BringMasks(const std::shared_ptr<FrameMasks>& masks) {
  if (std::exchange(bringing_, true)) return;
  masks->state = FrameMasks::State::kComing;
  context_.workers.Submit([self = shared_from_this(), masks] {
    BringTo(self->context_, masks->MutableInputs(), Share::kSession,
            [self, masks](const absl::Status& status) { self->MasksCame(*masks, status); });
  });
}

void FramePipeline::MasksCame(FrameMasks& masks, const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    bringing_ = false;
    masks.state = FrameMasks::State::kHere;
    masks.status = InHeader(masks, status);
    if (stopped_) return;
    StartJobs();
  }
  changed_();
}

// Page-locks nothing: the first chunk does where the session has no buffer.
absl::Status FramePipeline::TakeMemory(NavigateFrame& frame) {
  frame.memory = session_->TakeFrameBuffer(frame.total_bytes);
  Claim claim;
  claim.job_class = JobClass::kFrame;
  claim.owner = session_->owner();
  claim.workspace_bytes = ExtraWorkspaceBytes(context_.device, session_->setup(), frame);
  if (frame.memory == nullptr) claim.pinned_bytes = PinnedClaim(frame.total_bytes);
  if (static_cast<const Amounts&>(claim) == Amounts()) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(Grant extra, server::Admit(context_, claim, Share::kSession));
  frame.extra = std::make_shared<Grant>(std::move(extra));
  return absl::OkStatus();
}

void FramePipeline::Complete() {
  NavigateFrame& frame = *receiving_;
  frame.ready = context_.seams.steady_now();
  frame.latency.Add(Phase::kReceive, frame.ready - frame.begin);
  if (session_->setup().overload_policy == OverloadPolicy::kLatestWins) Supersede(frame.number);
  ready_.push_back(std::move(receiving_));
}

void FramePipeline::Supersede(int64_t by) {
  for (const Frame& waiting : ready_) {
    if (waiting->status.ok()) MakeLight(*waiting, Superseded(by));
  }
  if (running_ == nullptr || running_->superseded_by) return;
  if (running_->started && !session_->setup().cancel_running) return;
  running_->superseded_by = by;
  running_->control->Cancel();
  context_.jobs.Cancel(running_.get());
}

void FramePipeline::MakeLight(NavigateFrame& frame, absl::Status status) {
  frame.status = std::move(status);
  frame.memory.reset();
  frame.shown_pixels.reset();
  frame.extra.reset();
  frame.masks.reset();
  if (!std::exchange(frame.is_light, true)) ++light_;
}

// The frame that is being received takes its place in the order with an error.
void FramePipeline::FailReceived(absl::Status status) {
  MakeLight(*receiving_, std::move(status));
  ready_.push_back(std::move(receiving_));
  passing_over_ = true;
}

void FramePipeline::StartJobs() {
  while (!stopped_ && running_ == nullptr && !ready_.empty()) {
    const std::shared_ptr<FrameMasks> masks = ready_.front()->masks;
    if (masks != nullptr && masks->state == FrameMasks::State::kMissing) BringMasks(masks);
    if (masks != nullptr && masks->state != FrameMasks::State::kHere) return;
    Frame frame = std::move(ready_.front());
    ready_.pop_front();
    if (masks != nullptr && !masks->status.ok()) MakeLight(*frame, masks->status);
    if (frame->status.ok()) {
      running_ = frame;
      absl::Status submitted = Submit(frame);
      if (submitted.ok()) return;
      running_ = nullptr;
      MakeLight(*frame, std::move(submitted));
    }
    events_.push_back({std::move(frame), {}, nullptr});
  }
}

absl::Status FramePipeline::Submit(const Frame& frame) {
  Job job;
  job.job_class = JobClass::kFrame;
  job.owner = frame.get();
  job.party = session_->owner();
  if (frame->deadline) job.deadline = frame->begin + *frame->deadline;
  const SessionSetup& setup = session_->setup();
  const std::shared_ptr<const GoodResult> start = session_->start();
  job.cost_kind = CostKindOf(*frame, setup, start != nullptr && !start->chosen.empty());
  job.cost_size = CostSize(setup.resident->image.geometry(), frame->geometry);
  job.completed = [frame] { return frame->is_whole; };
  job.workspace_bytes = FrameJobBytes(context_.device, *frame);
  job.checkpoint = [frame](const Progress& progress) { return frame->control->Check(progress); };
  job.on_held = [frame](SchedulerClock::Duration held) {
    frame->control->Held(held);
    frame->latency.Held(held);
  };
  job.run = [self = shared_from_this(), frame, extra = frame->extra](const absl::StatusOr<const ExecContext*>& ctx) {
    self->RunJob(frame, ctx);
  };
  return SubmitJob(context_, std::move(job));
}

void FramePipeline::RunJob(const Frame& frame, const absl::StatusOr<const ExecContext*>& ctx) {
  frame->latency.Add(Phase::kQueue, context_.seams.steady_now() - frame->ready);
  absl::Status status = ctx.status();
  if (MayStart(*frame, &status)) status = RunFrame(**ctx, *frame);
  frame->is_whole = status.ok() && frame->outcome.result.stop_reason != StopReason::kBudget;
  if (status.ok() && frame->is_good_start) session_->SetStart(carrier_, *frame);
  frame->memory.reset();
  frame->extra.reset();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_ = nullptr;
    if (stopped_) return;
    frame->status = Explain(*frame, status);
    if (!frame->status.ok() && !frame->has_field) MakeLight(*frame, frame->status);
    events_.push_back({frame, {}, nullptr});
    StartJobs();
  }
  changed_();
}

bool FramePipeline::MayStart(NavigateFrame& frame, absl::Status* why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (why->ok()) *why = CannotStart(frame);
  frame.started = why->ok();
  return frame.started;
}

absl::Status FramePipeline::CannotStart(const NavigateFrame& frame) const {
  if (stopped_ || frame.superseded_by) return absl::CancelledError("the frame was cancelled while it waited");
  return IsPast(frame, context_.seams.steady_now()) ? DeadlineMissed(frame, "could start") : absl::OkStatus();
}

// What ended a frame early, in the words of the wire.
absl::Status FramePipeline::Explain(const NavigateFrame& frame, const absl::Status& status) const {
  if (status.ok()) return status;
  if (frame.superseded_by) return Superseded(*frame.superseded_by);
  const bool ended_early = absl::IsCancelled(status) || absl::IsDeadlineExceeded(status);
  if (!ended_early || ReasonOf(status) == v1::BUDGET_USED_UP) return status;
  if (!IsPast(frame, context_.seams.steady_now())) return status;
  return DeadlineMissed(frame, frame.started ? "was registered" : "could start");
}

absl::Status FramePipeline::RunFrame(const ExecContext& ctx, NavigateFrame& frame) {
  const std::shared_ptr<const GoodResult> start = session_->start();
  // Memory beyond the session's own is not lent: it is given back with the job.
  if (session_->tap() != nullptr && frame.extra == nullptr) frame.shown_pixels = session_->LendPixels(frame.memory);
  FrameHooks hooks{[this](int64_t bytes) { return session_->ReserveResult(bytes); }, {}, {}};
  if (session_->setup().field) hooks.field = MakeFieldOutput(frame.number, /*coarse=*/false);
  if (session_->setup().coarse_field) hooks.coarse_field = MakeFieldOutput(frame.number, /*coarse=*/true);
  const FrameStart from = start == nullptr ? FrameStart() : FrameStart{&start->transform, start->chosen};
  return RegisterFrame(ctx, session_->setup(), from, hooks, frame);
}

FieldOutput FramePipeline::MakeFieldOutput(int64_t frame_number, bool coarse) {
  FieldOutput output;
  output.request = *session_->setup().field;
  auto field = std::make_shared<SlotField>();
  output.lease = [this, field](int64_t bytes) { return LeaseField(bytes, *field); };
  output.send = [this, field, frame_number, coarse](const v1::FieldHeader& header, std::shared_ptr<BulkBuffer> bytes) {
    if (field->slot == nullptr) return SendField(frame_number, coarse, header, std::move(bytes));
    field->header = header;
    field->bytes = std::move(bytes);
  };
  output.advanced = [this, field, frame_number, coarse] {
    if (field->bytes != nullptr && field->bytes->produced() == field->bytes->total_bytes()) {
      SendSlot(frame_number, coarse, *field);
    }
    changed_();
    return !stopped();
  };
  return output;
}

absl::StatusOr<std::shared_ptr<char>> FramePipeline::LeaseField(int64_t bytes, SlotField& to) const {
  std::shared_ptr<SharedSegment> segment;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    segment = segment_;
  }
  if (segment != nullptr) to.slot = segment->TakeField(bytes);
  if (to.slot != nullptr) return to.slot->memory;
  return session_->TakeFieldBuffer(bytes);
}

void FramePipeline::SendSlot(int64_t frame_number, bool coarse, SlotField& field) {
  Event event;
  event.field.set_frame_number(frame_number);
  *event.field.mutable_field() = field.header;
  if (coarse) event.field.set_coarse(true);
  field.bytes.reset();
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_ || (coarse && running_->superseded_by)) return;
  *event.field.mutable_slot() = segment_->Publish(*field.slot, field.header.total_bytes());
  if (coarse) session_->CoarseFieldSent();
  events_.push_back(std::move(event));
}

void FramePipeline::SendField(int64_t frame_number, bool coarse, const v1::FieldHeader& header,
                              std::shared_ptr<BulkBuffer> bytes) {
  Event event;
  event.field.set_frame_number(frame_number);
  *event.field.mutable_field() = header;
  if (coarse) event.field.set_coarse(true);
  event.bytes = std::move(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_ || (coarse && running_->superseded_by)) return;
    running_->has_field = true;
    if (coarse) session_->CoarseFieldSent();
    events_.push_back(std::move(event));
  }
  changed_();
}

bool FramePipeline::stopped() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stopped_;
}

std::optional<FramePipeline::Event> FramePipeline::Next() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

v1::NavigateResponse FramePipeline::MakeResult(NavigateFrame& frame, nanoseconds sending) {
  v1::NavigateResponse response;
  v1::FrameResult& result = *response.mutable_result();
  result.set_frame_number(frame.number);
  if (const std::optional<int64_t> kept = session_->durable_frame()) result.set_kept_frame_number(*kept);
  if (frame.acquisition_time) *result.mutable_acquisition_time() = *frame.acquisition_time;
  frame.latency.Add(Phase::kSend, sending);
  frame.latency.set_total(context_.seams.steady_now() - frame.begin);
  FrameFate fate = FrameFate::kOk;
  if (frame.status.ok()) frame.status = FillResult(frame, result, &fate);
  if (frame.status.ok()) {
    frame.record.Succeeded(frame.outcome, frame.latency, fate == FrameFate::kLate);
  } else {
    fate = FateOf(frame.status);
    frame.record.Failed(frame.status);
    result.clear_report();
  }
  *result.mutable_status() = ToRpcStatusProto(frame.status);
  session_->FrameAnswered(carrier_, frame, fate);
  std::lock_guard<std::mutex> lock(mutex_);
  --unanswered_;
  if (frame.is_light) --light_;
  if (held_ && HasRoom()) {
    const HeldHeader held = *std::exchange(held_, std::nullopt);
    Begin(held);
    if (no_more_ && receiving_ != nullptr) FailReceived(TooFewBytes(*receiving_));
    StartJobs();
  }
  return response;
}

absl::Status FramePipeline::FillResult(NavigateFrame& frame, v1::FrameResult& result, FrameFate* fate) {
  const SessionSetup& setup = session_->setup();
  const std::optional<nanoseconds> limit = LimitOf(frame, setup);
  const bool is_late = limit && frame.latency.total() > *limit;
  if (is_late && frame.deadline && setup.late_frames == LateFrames::kDrop) return DeadlineMissed(frame, "was answered");
  // The client did not ask for the map that the tap has.
  std::optional<ErrorMap> map = frame.outcome.quality.error_map;
  if (!setup.plan.error.map) frame.outcome.quality.error_map.reset();
  v1::Report& report = *result.mutable_report();
  report = MakeReport(context_.device.name(), setup.plan, frame.outcome, frame.latency);
  if (frame.landmarks) SetLandmarks(*frame.landmarks, *report.mutable_options());
  const StoredVolume* const resident = setup.resident.get();
  const ReportedImages images =
      setup.resident_is_fixed ? ReportedImages{resident, nullptr} : ReportedImages{nullptr, resident};
  *report.mutable_provenance() = MakeProvenance(images, setup.plan, context_.seams, frame.latency.total());
  if (frame.masks != nullptr) ReportMasks(*frame.masks, setup.resident_is_fixed, report);
  if (is_late) {
    AddLateness(*limit, frame.latency.total(), report);
    *fate = FrameFate::kLate;
  }
  INTRAWARP_ASSIGN_OR_RETURN(*result.mutable_transform(), session_->Keep(frame.outcome, report));
  if (frame.shown_pixels != nullptr) Show(frame, report, *fate, std::move(map));
  return absl::OkStatus();
}

void FramePipeline::Show(NavigateFrame& frame, const v1::Report& report, FrameFate fate,
                         std::optional<ErrorMap> map) const {
  const std::shared_ptr<FrameTap> tap = session_->tap();
  std::shared_ptr<const PinnedBuffer> pixels = std::move(frame.shown_pixels);
  if (tap == nullptr) return;
  tap->Take({frame.number, frame.begin, frame.geometry, frame.pixel_type, frame.rescale, std::move(pixels),
             frame.outcome.reservation, frame.outcome.result.transform, std::move(map), report, fate,
             frame.latency.total(), LimitOf(frame, session_->setup())});
}

void FramePipeline::Stop() {
  std::deque<Event> events;  // what goes is freed after the lock
  std::deque<Frame> ready;
  Frame receiving;
  std::shared_ptr<SharedSegment> segment;
  int dropped = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(stopped_, true)) return;
    dropped = std::exchange(unanswered_, 0);
    events.swap(events_);
    ready.swap(ready_);
    receiving.swap(receiving_);
    segment.swap(segment_);
    held_.reset();
    if (running_ != nullptr) {
      running_->control->Cancel();
      context_.jobs.Cancel(running_.get());
    }
  }
  session_->FramesDropped(dropped);
}

}  // namespace intrawarp::server
