// SPDX-License-Identifier: Apache-2.0
// A caller of Register as a load: one registration after the other, each of whose transforms it deletes.
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include "client/cli/bench/load_client.h"
#include "engine/base/status_macros.h"

namespace intrawarp::cli::bench {
namespace {

// How long a transform whose deletion fails stays.
constexpr int kTtlSeconds = 2 * 3600;
// A closed loop waits for so long after a call that did not end well. After so many unexpected failures a client ends.
constexpr std::chrono::milliseconds kFailurePause(10);
constexpr int kMaxFailures = 100;

class RegistrationClient final : public LoadClient {
 public:
  RegistrationClient(const LoadContext& context, const ClientImages& images, double phase) : context_(context) {
    if (context.load.rate_hz > 0) log_.calls = ScheduledCalls(context, phase);
    request_.set_fixed(images.fixed);
    request_.set_moving(images.rest);
    *request_.mutable_options() = context.task.options;
    request_.mutable_ttl()->set_seconds(kTtlSeconds);
    if (!context.load.wants_field()) return;
    *request_.mutable_field() = context.load.field;
    sink_ = CountingSink(context.load.field.encoding(), &field_, &log_.bytes_received);
  }
  ~RegistrationClient() override {
    cancellation_.Cancel();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Open() override {
    INTRAWARP_ASSIGN_OR_RETURN(client_, context_.connect());
    CallRecord warm;
    Call(&warm);
    log_.bytes_received = 0;
    return std::exchange(log_.first_failure, absl::OkStatus());
  }

  void Start(const LoadClock& clock) override {
    clock_.emplace(clock);
    thread_ = std::thread([this] {
      context_.load.rate_hz > 0 ? OpenLoop() : ClosedLoop();
      if (IsOver()) end_ = clock_->Now();
      finished_ = true;
    });
  }

  bool finished() const override { return finished_; }
  void Cancel() override { cancellation_.Cancel(); }

  ClientLog Finish() override {
    thread_.join();
    Settle(end_, &log_.calls);
    return std::move(log_);
  }

 private:
  void OpenLoop() {
    for (CallRecord& call : log_.calls) {
      if (!clock_->SleepUntil(call.due) || IsOver()) return;
      call.sent = clock_->Now();
      if (call.sent > context_.seconds + kOverrunSeconds) {
        call.sent = std::nan("");
        return;
      }
      Call(&call);
    }
  }

  void ClosedLoop() {
    double due = 0;
    if (!clock_->SleepUntil(due)) return;
    while (due < context_.seconds && static_cast<int64_t>(log_.calls.size()) < context_.max_calls && !IsOver()) {
      CallRecord& call = log_.calls.emplace_back();
      call.due = call.sent = due;
      Call(&call);
      if (call.fate != Fate::kOk) (void)cancellation_.WaitFor(kFailurePause);
      due = clock_->Now();
    }
  }

  // Before the time of the load.
  bool IsOver() const {
    return cancellation_.cancelled() || context_.interrupt->cancelled() || failures_ >= kMaxFailures;
  }

  // One registration, and the deletion of its transform, which its latency does not count.
  void Call(CallRecord* call) {
    const std::string name = context_.holdings->NewTransform();
    request_.set_transform_id(IdOf(name));
    const absl::StatusOr<v1::RegisterResult> result =
        client_->Register(request_, /*on_progress=*/nullptr, sink_, {.cancellation = &cancellation_});
    const double now = clock_ ? clock_->Now() : 0;
    // A call that was cut off has no answer; its transform may have been stored all the same.
    if (result.ok() || !cancellation_.cancelled()) {
      SetAnswer(now, result.status(), result.ok() ? result->report() : v1::Report(), call);
      if (call->fate == Fate::kFailed) NoteFailure(result.status());
    }
    NoteFailure(context_.holdings->Release(name, result.status(), *client_));
  }

  void NoteFailure(const absl::Status& status) {
    if (status.ok()) return;
    ++failures_;
    if (log_.first_failure.ok()) log_.first_failure = status;
  }

  const LoadContext& context_;
  v1::RegisterRequest request_;
  std::unique_ptr<client::Client> client_;
  client::Cancellation cancellation_;
  client::GridData field_;
  client::GridSink sink_;
  std::optional<LoadClock> clock_;
  ClientLog log_;
  int failures_ = 0;
  double end_ = std::numeric_limits<double>::infinity();
  std::atomic<bool> finished_{false};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<LoadClient> MakeRegistrationClient(const LoadContext& context, const ClientImages& images,
                                                   double phase) {
  return std::make_unique<RegistrationClient>(context, images, phase);
}

}  // namespace intrawarp::cli::bench
