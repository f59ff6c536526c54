// SPDX-License-Identifier: Apache-2.0
// A session of frames as a load.
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "client/cli/bench/load_client.h"
#include "client/cpp/rpc_status.h"
#include "engine/base/status_macros.h"
#include "wire/convert.h"

namespace intrawarp::cli::bench {
namespace {

// The frame that opens the session is not counted.
constexpr int64_t kWarmFrame = 1;
constexpr int64_t kFirstFrame = 2;

class NavigationClient final : public LoadClient {
 public:
  NavigationClient(const LoadContext& context, const ClientImages& images, double phase)
      : context_(context), images_(images) {
    if (context.load.rate_hz > 0) log_.calls = ScheduledCalls(context, phase);
    if (context.load.wants_field()) {
      sink_ = CountingSink(context.load.field.encoding(), &field_, &log_.bytes_received);
      if (context.load.shared_memory) {
        view_ = [this](const v1::FrameField&, absl::Span<const char> bytes) {
          log_.bytes_received += static_cast<int64_t>(bytes.size());
          return absl::OkStatus();
        };
      }
    }
  }
  ~NavigationClient() override {
    if (stream_ != nullptr) stream_->Cancel();
    Join();
  }

  absl::Status Open() override {
    INTRAWARP_ASSIGN_OR_RETURN(client_, context_.connect());
    stream_ = client_->Navigate(Config(), {.cancellation = context_.interrupt});
    if (context_.load.shared_memory) INTRAWARP_RETURN_IF_ERROR(stream_->ShareMemory());
    INTRAWARP_ASSIGN_OR_RETURN(const client::FrameAnswer answer, Exchange(kWarmFrame));
    log_.bytes_received = 0;
    const absl::Status status = client::FromRpcStatus(answer.result.status());
    return FateOf(status) == Fate::kFailed ? status : absl::OkStatus();
  }

  void Start(const LoadClock& clock) override {
    clock_.emplace(clock);
    if (context_.load.rate_hz == 0) {
      receiver_ = std::thread([this] {
        ExchangeLoop();
        finished_ = true;
      });
      return;
    }
    sender_ = std::thread([this] { SendLoop(); });
    receiver_ = std::thread([this] {
      ReceiveLoop();
      finished_ = true;
    });
  }

  bool finished() const override { return finished_; }

  void Cancel() override {
    cancelled_ = true;
    stream_->Cancel();
  }

  ClientLog Finish() override {
    Join();
    Settle(end_, &log_.calls);
    for (const CallRecord& call : log_.calls) {
      if (!std::isnan(call.sent)) log_.bytes_sent += images_.breath.rest().pixels.size();
    }
    log_.session = stream_->closed();
    if (context_.load.shared_memory) log_.transfers = stream_->transfers();
    return std::move(log_);
  }

 private:
  v1::NavigateConfig Config() const {
    v1::NavigateConfig config;
    const LoadOptions& load = context_.load;
    config.set_moving(images_.rest);
    *config.mutable_options() = context_.task.options;
    if (load.wants_field()) *config.mutable_field() = load.field;
    if (load.rate_hz > 0) config.set_rate_hz(load.rate_hz);
    if (load.latest_wins) config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
    if (load.deadline_ms > 0) {
      *config.mutable_frame_deadline() = DurationToProto(std::chrono::milliseconds(load.deadline_ms));
    }
    return config;
  }

  absl::Status Send(int64_t number) {
    const io::HostVolume& image = images_.breath.Frame(number);
    client::Frame frame;
    frame.number = number;
    frame.geometry = image.geometry;
    frame.pixel_type = image.pixel_type;
    frame.bytes = BytesOf(image);
    return stream_->Send(frame);
  }

  absl::StatusOr<client::FrameAnswer> Exchange(int64_t number) {
    // Why a stream ended is for Receive to say.
    (void)Send(number);
    INTRAWARP_ASSIGN_OR_RETURN(std::optional<client::FrameAnswer> answer, stream_->Receive(sink_, {}, view_));
    if (!answer) return absl::UnavailableError("the server ended the stream");
    return *std::move(answer);
  }

  void SendLoop() {
    for (size_t n = 0; n < log_.calls.size(); ++n) {
      if (!clock_->SleepUntil(log_.calls[n].due)) return;
      const double now = clock_->Now();
      if (now > context_.seconds + kOverrunSeconds) break;
      log_.calls[n].sent = now;
      if (!Send(kFirstFrame + static_cast<int64_t>(n)).ok()) return;
    }
    (void)stream_->CloseSend();
  }

  // To the end of the stream.
  void ReceiveLoop() {
    while (true) {
      const absl::StatusOr<std::optional<client::FrameAnswer>> answer = stream_->Receive(sink_, {}, view_);
      if (!answer.ok()) return NoteEnd(answer.status());
      if (!answer->has_value()) return;
      Record(**answer);
    }
  }

  void ExchangeLoop() {
    double due = 0;
    if (!clock_->SleepUntil(due)) return;
    while (due < context_.seconds && static_cast<int64_t>(log_.calls.size()) < context_.max_calls) {
      CallRecord& call = log_.calls.emplace_back();
      call.due = call.sent = due;
      const absl::StatusOr<client::FrameAnswer> answer =
          Exchange(kFirstFrame + static_cast<int64_t>(log_.calls.size()) - 1);
      if (!answer.ok()) return NoteEnd(answer.status());
      Record(*answer);
      due = clock_->Now();
    }
    (void)stream_->CloseSend();
    ReceiveLoop();
  }

  void Record(const client::FrameAnswer& answer) {
    const double now = clock_->Now();
    const int64_t index = answer.result.frame_number() - kFirstFrame;
    if (index < 0 || index >= static_cast<int64_t>(log_.calls.size())) {
      return NoteFailure(absl::InternalError("the server answered a frame that was not sent"));
    }
    CallRecord& call = log_.calls[static_cast<size_t>(index)];
    const absl::Status status = client::FromRpcStatus(answer.result.status());
    SetAnswer(now, status, answer.result.report(), &call);
    if (call.fate == Fate::kFailed) NoteFailure(status);
  }

  // The stream broke.
  void NoteEnd(const absl::Status& status) {
    end_ = clock_->Now();
    NoteFailure(status);
  }

  void NoteFailure(const absl::Status& status) {
    if (cancelled_ || context_.interrupt->cancelled()) return;
    if (log_.first_failure.ok()) log_.first_failure = status;
  }

  void Join() {
    if (sender_.joinable()) sender_.join();
    if (receiver_.joinable()) receiver_.join();
  }

  const LoadContext& context_;
  const ClientImages& images_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::NavigateStream> stream_;
  client::GridData field_;
  client::GridSink sink_;
  // Reads a field of shared memory in place; null without it.
  client::FieldView view_;
  std::optional<LoadClock> clock_;
  // The sending thread writes CallRecord.sent alone, the receiving thread everything else.
  ClientLog log_;
  double end_ = std::numeric_limits<double>::infinity();
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finished_{false};
  std::thread sender_, receiver_;
};

}  // namespace

std::unique_ptr<LoadClient> MakeNavigationClient(const LoadContext& context, const ClientImages& images, double phase) {
  return std::make_unique<NavigationClient>(context, images, phase);
}

}  // namespace intrawarp::cli::bench
