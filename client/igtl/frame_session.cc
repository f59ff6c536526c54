// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/frame_session.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/igtl/codec/message.h"
#include "engine/base/checked.h"
#include "engine/base/status_macros.h"
#include "wire/convert.h"

namespace intrawarp::igtl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPause{250};
constexpr std::chrono::milliseconds kLongestPause{5000};
// Frames whose answer is still to come are remembered; a session has far fewer in flight.
constexpr size_t kRemembered = 16;

}  // namespace

std::chrono::milliseconds RetryPause(int failures) {
  return std::min(kLongestPause, kFirstPause * (1 << std::clamp(failures - 1, 0, 10)));
}

Int3 StrideFor(const Geometry& grid, int64_t nodes) {
  Int3 stride = {1, 1, 1};
  const auto count = [&](int axis) { return int64_t{(grid.size[axis] + stride[axis] - 1) / stride[axis]}; };
  while (count(0) * count(1) * count(2) > nodes) {
    int finest = -1;
    for (int axis = 0; axis < 3; ++axis) {
      if (count(axis) < 3) continue;
      if (finest < 0 || stride[axis] * grid.spacing[axis] < stride[finest] * grid.spacing[finest]) finest = axis;
    }
    if (finest < 0) break;
    ++stride[finest];
  }
  return stride;
}

// One session of a plan, for images of one kind, until its end.
class FrameSession::Run {
 public:
  Run(FrameSession& owner, const Plan& plan, const Kind& kind) : owner_(owner), plan_(plan), kind_(kind) {}

  const Plan& plan() const { return plan_; }
  const Kind& kind() const { return kind_; }
  bool was_opened() const { return was_opened_; }
  bool has_answered() const { return has_answered_; }

  absl::Status Open() {
    INTRAWARP_ASSIGN_OR_RETURN(client_, client::Client::Connect(owner_.options_.server, owner_.options_.client));
    INTRAWARP_ASSIGN_OR_RETURN(const v1::Volume volume, client_->GetVolume(plan_.volume));
    INTRAWARP_ASSIGN_OR_RETURN(const Geometry grid, GeometryFromProto(volume.geometry()));
    domain_ = owner_.options_.is_volume_fixed ? grid : kind_.geometry;
    INTRAWARP_ASSIGN_OR_RETURN(const v1::NavigateConfig config, Config());
    frame_bytes_ = BytesPerPixel(kind_.pixel_type);
    for (int axis = 0; axis < 3; ++axis) {
      INTRAWARP_ASSIGN_OR_RETURN(frame_bytes_, CheckedMultiply(frame_bytes_, kind_.geometry.size[axis]));
    }
    std::lock_guard<std::mutex> lock(owner_.mutex_);
    if (owner_.plan_.version != plan_.version) return absl::CancelledError("the plan changed");
    stream_ = client_->Navigate(config);
    owner_.stream_ = stream_.get();
    return absl::OkStatus();
  }

  // Until the stream ends; why it did.
  absl::Status Stream() {
    absl::Status status = stream_->WaitUntilOpened();
    if (status.ok()) {
      was_opened_ = true;
      ++owner_.counters_.sessions;
      const absl::Status shared = owner_.options_.shares_memory ? stream_->ShareMemory() : absl::OkStatus();
      owner_.SetOpen(
          shared.ok() ? "open" : absl::StrCat("open_without_shared_memory_", absl::StatusCodeToString(shared.code())));
      std::thread sender([this] { SendAll(); });
      status = ReceiveAll();
      {
        std::lock_guard<std::mutex> lock(owner_.mutex_);
        has_ended_ = true;
      }
      owner_.changed_.notify_all();
      stream_->Cancel();
      sender.join();
    }
    std::lock_guard<std::mutex> lock(owner_.mutex_);
    owner_.stream_ = nullptr;
    owner_.TakeSlotBack(nullptr);
    owner_.counters_.Lose(Lost::kServer, static_cast<int64_t>(sent_.size()));
    return status;
  }

 private:
  absl::StatusOr<v1::NavigateConfig> Config() const {
    const BridgeOptions& options = owner_.options_;
    v1::NavigateConfig config;
    *(options.is_volume_fixed ? config.mutable_fixed() : config.mutable_moving()) = plan_.volume;
    INTRAWARP_ASSIGN_OR_RETURN(*config.mutable_options(), StagesOfMethod(plan_.method));
    config.mutable_options()->mutable_error()->set_map(true);
    if (options.error_limit_mm > 0) config.mutable_options()->set_error_limit_mm(options.error_limit_mm);
    v1::FieldRequest& field = *config.mutable_field();
    field.set_encoding(v1::FIELD_ENCODING_FLOAT32);
    const Int3 stride = StrideFor(domain_, options.field_points);
    for (int axis = 0; axis < 3; ++axis) field.add_stride(stride[axis]);
    config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
    config.set_max_pending(2);
    config.set_late_frames(v1::LATE_FRAMES_DELIVER);
    if (options.frame_deadline_ms > 0) {
      *config.mutable_frame_deadline() = DurationToProto(std::chrono::milliseconds(options.frame_deadline_ms));
    }
    *config.mutable_frame_geometry() = GeometryToProto(kind_.geometry);
    config.set_frame_pixel_type(PixelTypeToProto(kind_.pixel_type));
    return config;
  }

  bool IsOfItsKind(const ImageFrame& frame) const {
    return frame.geometry.size == kind_.geometry.size && frame.pixel_type == kind_.pixel_type;
  }

  void SendAll() {
    for (int64_t number = 1;; ++number) {
      const absl::Span<char> slot = stream_->FrameSpace(frame_bytes_);
      ImageFrame frame;
      {
        std::unique_lock<std::mutex> lock(owner_.mutex_);
        owner_.slot_ = slot;
        owner_.slot_kind_ = kind_;
        owner_.changed_.wait(lock, [this] { return has_ended_ || owner_.newest_.has_value(); });
        if (has_ended_) return;
        // The next session is for images of another kind: it takes the one that waits.
        if (!IsOfItsKind(*owner_.newest_)) break;
        frame = *std::exchange(owner_.newest_, std::nullopt);
        owner_.TakeSlotBack(frame.loan);
        ImageFrame& kept = sent_[number] = frame;
        kept.memory = nullptr;
        kept.loan = nullptr;
        kept.voxels = {};
        if (sent_.size() > kRemembered) sent_.erase(sent_.begin());
      }
      client::Frame out;
      out.number = number;
      out.geometry = frame.geometry;
      out.pixel_type = frame.pixel_type;
      out.bytes = frame.loan != nullptr ? frame.loan->bytes() : frame.voxels;
      if (frame.loan != nullptr) out.owner = frame.loan;
      if (frame.loan == nullptr) out.owner = frame.memory;
      const bool is_in_place = !slot.empty() && out.bytes.data() == slot.data();
      out.acquisition_time = TimeOf(frame.timestamp);
      if (!stream_->Send(out).ok()) return;
      ++owner_.counters_.frames_sent;
      if (is_in_place) ++owner_.counters_.frames_in_place;
      owner_.counters_.frame_seconds.Observe(Clock::now() - frame.received);
    }
    (void)stream_->CloseSend();
  }

  absl::Status ReceiveAll() {
    while (true) {
      FrameOutcome outcome;
      INTRAWARP_ASSIGN_OR_RETURN(std::optional<client::FrameAnswer> answer,
                                 stream_->Receive(client::SinkInto(&outcome.field)));
      if (!answer) return absl::OkStatus();
      has_answered_ = true;
      outcome.answer = *std::move(answer);
      outcome.volume = plan_.volume;
      outcome.client = client_.get();
      outcome.domain = domain_;
      {
        std::lock_guard<std::mutex> lock(owner_.mutex_);
        const auto it = sent_.find(outcome.answer.result.frame_number());
        if (it != sent_.end()) outcome.frame = it->second;
        sent_.erase(sent_.begin(), sent_.upper_bound(outcome.answer.result.frame_number()));
      }
      if (outcome.frame && !owner_.options_.is_volume_fixed) outcome.domain = outcome.frame->geometry;
      owner_.on_result_(outcome);
    }
  }

  FrameSession& owner_;
  const Plan plan_;
  const Kind kind_;
  int64_t frame_bytes_ = 0;
  Geometry domain_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::NavigateStream> stream_;
  bool was_opened_ = false;
  bool has_answered_ = false;
  bool has_ended_ = false;              // guarded by the owner's mutex
  std::map<int64_t, ImageFrame> sent_;  // likewise
};

FrameSession::FrameSession(const BridgeOptions& options, OnResult on_result, Counters* counters)
    : options_(options), on_result_(std::move(on_result)), counters_(*counters) {
  plan_ = {options.starts_at_once, options.volume, options.method, 0};
  thread_ = std::thread([this] { Loop(); });
}

FrameSession::~FrameSession() {
  Change([this](Plan& plan) {
    plan.is_running = false;
    is_ending_ = true;
  });
  thread_.join();
}

void FrameSession::Put(ImageFrame frame) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (newest_ || !plan_.is_running) counters_.Lose(Lost::kFrame);
    if (plan_.is_running) newest_ = std::move(frame);
  }
  changed_.notify_all();
}

std::shared_ptr<SlotLoan> FrameSession::LendSlot(const Int3& size, PixelType pixel_type) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (slot_.empty() || !loan_.expired()) return nullptr;
  if (slot_kind_.geometry.size != size || slot_kind_.pixel_type != pixel_type) return nullptr;
  auto loan = std::make_shared<SlotLoan>(slot_);
  loan_ = loan;
  return loan;
}

void FrameSession::TakeSlotBack(const std::shared_ptr<SlotLoan>& kept) {
  slot_ = {};
  const std::shared_ptr<SlotLoan> loan = loan_.lock();
  if (loan != nullptr && loan != kept) loan->TakeBack();
  loan_.reset();
}

void FrameSession::Change(const std::function<void(Plan& plan)>& change) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    change(plan_);
    ++plan_.version;
    if (!plan_.is_running) {
      newest_.reset();
      ForgetLoss();
    }
    if (stream_ != nullptr) stream_->Cancel();
  }
  changed_.notify_all();
}

void FrameSession::Start() {
  Change([](Plan& plan) { plan.is_running = true; });
}
void FrameSession::Stop() {
  Change([](Plan& plan) { plan.is_running = false; });
}
void FrameSession::SetVolume(const std::string& volume) {
  Change([&](Plan& plan) { plan.volume = volume; });
}
absl::Status FrameSession::SetMethod(const std::string& method) {
  INTRAWARP_RETURN_IF_ERROR(StagesOfMethod(method).status());
  Change([&](Plan& plan) { plan.method = method; });
  return absl::OkStatus();
}

FrameSession::State FrameSession::state() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

void FrameSession::SetOpen(const std::string& word) {
  std::lock_guard<std::mutex> lock(mutex_);
  state_ = {word, false, 0};
  ForgetLoss();
}

void FrameSession::ForgetFailures() { failures_ = state_.failures = 0; }

void FrameSession::ForgetLoss() {
  state_.is_lost = false;
  lost_.reset();
}

std::optional<std::chrono::milliseconds> FrameSession::EndRun(const Run& run, const absl::Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status.ok() || plan_.version != run.plan().version) {
    ForgetFailures();
    return std::nullopt;
  }
  ++(run.was_opened() ? counters_.sessions_lost : counters_.session_failures);
  if (run.was_opened() && absl::IsUnavailable(status)) {
    lost_ = run.kind();
    state_.is_lost = true;
  }
  if (run.has_answered()) failures_ = 0;
  state_.failures = ++failures_;
  state_.word = std::string(absl::StatusCodeToString(status.code()));
  return RetryPause(failures_);
}

void FrameSession::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_ending_) {
    if (failures_ == 0 && !lost_) state_.word = plan_.is_running ? "waits_for_an_image" : "stopped";
    const Plan plan = plan_;
    const auto is_changed = [&] { return is_ending_ || plan_.version != plan.version; };
    changed_.wait(lock, [&] { return is_changed() || (plan.is_running && (newest_ || lost_)); });
    if (is_changed()) {
      ForgetFailures();
      continue;
    }
    const Kind kind = newest_ ? Kind{newest_->geometry, newest_->pixel_type} : *lost_;
    lock.unlock();
    std::optional<std::chrono::milliseconds> pause;
    {
      Run run(*this, plan, kind);
      absl::Status status = run.Open();
      if (status.ok()) status = run.Stream();
      pause = EndRun(run, status);
    }
    lock.lock();
    if (pause && changed_.wait_for(lock, *pause, is_changed)) ForgetFailures();
  }
}

}  // namespace intrawarp::igtl
