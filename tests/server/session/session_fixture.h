// SPDX-License-Identifier: Apache-2.0
// A carrier of a session without gRPC: it hands frames to a pipeline and takes the answers when the test asks. The
// scheduler is the server's, the clock is the test's.
#ifndef INTRAWARP_TESTS_SERVER_SESSION_SESSION_FIXTURE_H_
#define INTRAWARP_TESTS_SERVER_SESSION_SESSION_FIXTURE_H_

#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "server/bulk/received_chunk.h"
#include "server/session/frame_pipeline.h"
#include "server/session/navigate_session.h"
#include "server/session/session_store.h"
#include "server/session/warm_up.h"
#include "tests/server/navigate_frames.h"
#include "tests/server/service_fixture.h"

namespace intrawarp::server {

class Carrier {
 public:
  // `on_field` is called by the job of a frame while it sends the field.
  Carrier(std::shared_ptr<NavigateSession> session, std::function<void()> on_field)
      : context_(session->context()), session_(std::move(session)), on_field_(std::move(on_field)) {}
  ~Carrier() {
    if (pipeline_ != nullptr) Finish();
  }

  absl::Status Open(bool warm) { return Begin(session_->Open(warm, EndedFn())); }
  absl::Status Resume() { return Begin(session_->Resume(EndedFn())); }

  NavigateSession& session() { return *session_; }
  FramePipeline& pipeline() { return *pipeline_; }
  v1::SessionStatistics statistics() const { return session_->Describe().statistics(); }
  // What the session said when it was no longer ours; OK: it still is.
  absl::Status ended() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }

  // As a stream does: a frame at a time.
  absl::Status Send(const std::vector<v1::NavigateRequest>& requests) {
    for (v1::NavigateRequest request : requests) {
      if (request.has_frame()) {
        pipeline_->BeginFrame(request.frame(), context_.seams.steady_now());
      } else {
        INTRAWARP_RETURN_IF_ERROR(pipeline_->Append(wire::ReceivedChunk(std::move(*request.mutable_chunk()))));
      }
    }
    return absl::OkStatus();
  }
  // The answers so far.
  std::vector<v1::FrameResult>& Answers() {
    while (std::optional<FramePipeline::Event> event = pipeline_->Next()) {
      if (event->answered == nullptr) {
        order_.push_back((event->field.coarse() ? "coarse " : "field ") + std::to_string(event->field.frame_number()));
        continue;
      }
      answers_.push_back(pipeline_->MakeResult(*event->answered, std::chrono::nanoseconds(0)).result());
      order_.push_back("result " + std::to_string(answers_.back().frame_number()));
    }
    return answers_;
  }
  // What came, in its order: "coarse 1", "field 1", "result 1".
  const std::vector<std::string>& order() const { return order_; }
  // The stream breaks.
  void Break() {
    session_->Detach(carrier_);
    pipeline_->Stop();
  }
  void Finish() {
    pipeline_->Stop();
    session_->CloseBy(carrier_);
  }

 private:
  absl::Status Begin(const absl::StatusOr<int64_t>& carrier) {
    INTRAWARP_ASSIGN_OR_RETURN(carrier_, carrier);
    pipeline_ = std::make_shared<FramePipeline>(context_, session_, carrier_, std::nullopt, on_field_);
    return absl::OkStatus();
  }
  NavigateSession::EndedFn EndedFn() {
    return [this](const absl::Status& why) {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = why;
    };
  }

  DeviceContext& context_;
  const std::shared_ptr<NavigateSession> session_;
  const std::function<void()> on_field_;
  int64_t carrier_ = 0;
  std::shared_ptr<FramePipeline> pipeline_;
  std::vector<v1::FrameResult> answers_;
  std::vector<std::string> order_;
  mutable std::mutex mutex_;
  absl::Status ended_;
};

// Holds the frame that sends its field until it is let go. A job may still call the hook when the gate is gone.
class FieldGate {
 public:
  std::function<void()> hook() {
    return [state = state_] {
      if (!state->armed.exchange(false)) return;
      state->reached.set_value();
      state->go.get_future().wait();
    };
  }
  void Arm() { state_->armed = true; }
  void WaitUntilReached() { state_->reached.get_future().wait(); }
  void Open() { state_->go.set_value(); }

 private:
  struct State {
    std::atomic<bool> armed = false;
    std::promise<void> reached, go;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

class SessionTest : public ServiceTest {
 protected:
  using ServiceTest::ServiceTest;

  void SetUp() override {
    const std::vector<float> image = ResidentImage();
    PutVolume("resident", Grid(), image);
  }
  // Sessions that a test leaves open.
  void TearDown() override {
    context().sessions.CloseAll(absl::CancelledError("the test is over"));
    ServiceTest::TearDown();
  }

  static v1::NavigateConfig FieldConfig() {
    v1::NavigateConfig config = RigidConfig();
    config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    return config;
  }

  // A new session with a carrier; fails the test for an error.
  std::unique_ptr<Carrier> Open(
      const v1::NavigateConfig& config, std::function<void()> on_field = [] {}) {
    absl::StatusOr<std::shared_ptr<NavigateSession>> session = context().sessions.Open(context(), config);
    EXPECT_OK(session.status());
    std::promise<absl::StatusOr<bool>> warm;
    WarmUp(*session, [&](const absl::StatusOr<bool>& done) { warm.set_value(done); });
    const absl::StatusOr<bool> warmed = warm.get_future().get();
    EXPECT_OK(warmed.status());
    auto carrier = std::make_unique<Carrier>(*session, std::move(on_field));
    EXPECT_OK(carrier->Open(*warmed));
    return carrier;
  }
  // Waits for so many answers.
  std::vector<v1::FrameResult>& Answers(Carrier& carrier, size_t count) {
    EXPECT_TRUE(Eventually([&] { return carrier.Answers().size() >= count; }));
    return carrier.Answers();
  }
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SESSION_SESSION_FIXTURE_H_
