// SPDX-License-Identifier: Apache-2.0
#include "server/session/session_keeper.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/schedule/copy_lane.h"
#include "server/base/names.h"
#include "server/monitor/log.h"
#include "server/registration/stage_messages.h"
#include "server/session/navigate_session.h"
#include "server/store/transform_store.h"
#include "server/transform/transform_content.h"
#include "server/transform/transform_messages.h"

namespace intrawarp::server {
namespace {

// A write is followed by so many times its duration without one.
constexpr int kRest = 9;

std::string ChosenText(const GoodResult& start) {
  v1::RegistrationOptions options;
  for (const StageOptions& stage : start.chosen) *options.add_stages() = StageToProto(stage);
  return start.chosen.empty() ? "" : options.SerializeAsString();
}

// A transform without an id: its form, and the domain that an affine map's content lacks.
std::string DescriptionOf(const GoodResult& start) {
  StoredTransform stored{"", {}, std::nullopt, start.reservation, start.transform};
  return TransformToProto(stored, /*with_report=*/false).SerializeAsString();
}

}  // namespace

SessionKeeper::SessionKeeper(DeviceContext& context, const std::string& id, const SessionSetup& setup)
    : context_(context) {
  row_.id = id;
  row_.owner = setup.owner;
  row_.by_admin = setup.by_admin;
  row_.config = setup.asked.SerializeAsString();
  row_.resident = PrintOf(setup);
}

state::SessionRow SessionKeeper::RowOf(const v1::Session& session, const Start& start) const {
  state::SessionRow row = row_;
  row.description = session.SerializeAsString();
  row.start_header = start.origin.header;
  row.start_description = start.origin.description;
  row.chosen = start.chosen;
  return row;
}

absl::Status SessionKeeper::Begin(StateFn state) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ == Phase::kEnded) return absl::CancelledError("the session was closed");
    is_writing_ = true;
  }
  row_.incarnation = RandomId(context_.seams);
  state_ = std::move(state);
  const std::optional<State> first = state_();
  const absl::Status committed = first ? context_.durable.CommitSession(RowOf(first->session, {}), nullptr)
                                       : absl::CancelledError("the session was closed");
  bool has_ended = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    has_ended = phase_ == Phase::kEnded;
    if (!has_ended) {
      is_writing_ = false;
      if (committed.ok()) phase_ = Phase::kOpen;
    }
  }
  if (has_ended) {
    RemoveRow();
    return absl::CancelledError("the session was closed");
  }
  idle_.notify_all();
  return committed;
}

void SessionKeeper::Continue(const state::SessionRow& row, StateFn state) {
  row_ = row;
  state_ = std::move(state);
  std::lock_guard<std::mutex> lock(mutex_);
  phase_ = Phase::kOpen;
  v1::Session kept;
  if (kept.ParseFromString(row.description) && kept.has_start_frame_number())
    durable_frame_ = kept.start_frame_number();
}

void SessionKeeper::Changed(Urgency urgency) { Changed(std::make_optional(urgency)); }

void SessionKeeper::Changed(std::optional<Urgency> urgency) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (phase_ != Phase::kOpen) return;
    is_dirty_ |= urgency.has_value();
    is_urgent_ |= urgency == Urgency::kNow;
    if (!is_dirty_ || is_writing_ || urgency == Urgency::kLater) return;
    if (!is_urgent_ && context_.seams.steady_now() < next_write_) return;
    is_writing_ = true;
    is_dirty_ = is_urgent_ = false;
  }
  context_.durable.Run([self = shared_from_this()] { self->Write(); });
}

void SessionKeeper::Write() {
  write_began_ = context_.seams.steady_now();
  const std::optional<State> state = state_();
  if (!state) return Written(absl::CancelledError("the session is gone"));
  if (state->start == nullptr) return WriteRow(state->session, {});
  const bool is_there = start_.frame == state->start->frame_number && start_.origin.payload != nullptr;
  if (is_there) return WriteRow(state->session, start_);
  Copy(*state);
}

// On the lane of copies, beside the frames.
void SessionKeeper::Copy(const State& state) {
  Claim claim;
  claim.device = context_.index;
  claim.owner = row_.owner;
  claim.uploading_bytes = ContentClaim(context_, state.start->transform.resident_bytes());
  absl::StatusOr<Grant> grant = context_.ledger.Admit(claim, Share::kSession);
  if (!grant.ok()) return Written(grant.status());
  absl::Status submitted;
  auto copy = [self = shared_from_this(), state,
               grant = std::make_shared<Grant>(*std::move(grant))](const absl::StatusOr<const ExecContext*>& ctx) {
    const GoodResult& from = *state.start;
    absl::StatusOr<ObjectContent> content = ctx.ok() ? CopyTransform(**ctx, from.transform, std::move(*grant))
                                                     : absl::StatusOr<ObjectContent>(ctx.status());
    if (!self->EndCopy()) return;
    if (!content.ok()) return self->Written(content.status());
    Start start{from.frame_number, {}, ChosenText(from)};
    start.origin.description = DescriptionOf(from);
    self->context_.durable.Run([self, session = state.session, start = std::move(start),
                                content = std::make_shared<ObjectContent>(*std::move(content))] {
      self->WriteContent(session, start, std::move(*content));
    });
  };
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_copying_ = phase_ != Phase::kEnded;
    if (!is_copying_) submitted = absl::CancelledError("the session was closed");
  }
  if (submitted.ok()) {
    submitted = context_.copies.Submit(std::move(copy));
    if (submitted.ok() || !EndCopy()) return;
  }
  Written(submitted);
}

bool SessionKeeper::EndCopy() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(is_copying_, false);
}

void SessionKeeper::WriteContent(const v1::Session& session, Start start, ObjectContent content) {
  absl::StatusOr<ObjectOrigin> origin = KeepContent(context_.durable, std::move(content));
  if (!origin.ok()) return Written(origin.status());
  start.origin.header = std::move(origin->header);
  start.origin.payload = std::move(origin->payload);
  WriteRow(session, std::move(start));
}

void SessionKeeper::WriteRow(const v1::Session& session, Start start) {
  const absl::Status written = context_.durable.UpdateSession(RowOf(session, start), start.origin.payload.get());
  if (written.ok()) {
    std::lock_guard<std::mutex> lock(mutex_);
    durable_frame_ = start.frame;
    std::swap(start_, start);
  }
  Written(written);
}

void SessionKeeper::Written(const absl::Status& status) {
  bool has_ended = false, begins_again = false, fails_now = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const Time now = context_.seams.steady_now();
    next_write_ = now + kRest * (now - write_began_);
    fails_now = !status.ok() && !has_failed_ && phase_ == Phase::kOpen;
    has_failed_ = !status.ok();
    has_ended = phase_ == Phase::kEnded;
    // What failed is tried again, but not at once.
    begins_again = status.ok() && is_dirty_ && is_urgent_;
    is_dirty_ = !begins_again && (is_dirty_ || !status.ok());
    is_urgent_ = false;
    is_writing_ = has_ended || begins_again;
  }
  if (fails_now) {
    Log(Severity::kWarning, "session_not_written", {{"session", SessionName(row_.id)}, {"cause", status.ToString()}});
  }
  if (has_ended) return RemoveRow();
  if (begins_again) return context_.durable.Run([self = shared_from_this()] { self->Write(); });
  idle_.notify_all();
}

// With nobody else writing. A row that stays comes back with the next start, and expires.
void SessionKeeper::RemoveRow() {
  std::function<void()> gone;
  bool stays = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stays = is_suspended_;
    gone = std::move(gone_);
  }
  const absl::Status removed = stays ? absl::OkStatus() : context_.durable.RemoveSession(row_);
  if (!removed.ok()) {
    Log(Severity::kError, "session_not_removed", {{"session", SessionName(row_.id)}, {"cause", removed.ToString()}});
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_writing_ = false;
    start_ = Start();
  }
  idle_.notify_all();
  if (gone) gone();
}

void SessionKeeper::End(std::function<void()> gone) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool has_row = phase_ == Phase::kOpen;
    phase_ = Phase::kEnded;
    if (is_writing_ && !std::exchange(is_copying_, false)) {
      gone_ = std::move(gone);
      return;
    }
    if (has_row) {
      gone_ = std::move(gone);
      is_writing_ = true;
      gone = [self = shared_from_this()] { self->RemoveRow(); };
    }
  }
  if (gone) context_.durable.Run(std::move(gone));
}

void SessionKeeper::BeginSuspend() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_suspended_ = true;
  }
  Changed(Urgency::kNow);
}

void SessionKeeper::AwaitSuspended(Time end) {
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait_until(lock, end, [this] { return !is_writing_; });
}

std::optional<int64_t> SessionKeeper::durable_frame() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return durable_frame_;
}

}  // namespace intrawarp::server
