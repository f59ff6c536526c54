// SPDX-License-Identifier: Apache-2.0
// SimulatedStream: a Navigate stream without gRPC, with a connection that holds what the client has sent until it is
// read, and what is written until the client takes it. It does with session and pipeline what NavigateStream does, and
// checks every answer against what the client sent.
//
// Thread safety: as VirtualTime.
#ifndef INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_STREAM_H_
#define INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_STREAM_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/session/frame_pipeline.h"
#include "server/session/navigate_session.h"
#include "server/session/session_statistics.h"
#include "tests/server/simulation/world.h"

namespace intrawarp::server {

// What the world has seen of one session, over all of its streams.
struct SessionSeen {
  std::shared_ptr<NavigateSession> session;  // null: it was never opened
  int64_t streams = 0;                       // that carried it
  int64_t headers = 0;                       // accepted by a pipeline
  std::array<int64_t, kFrameFates> fates{};  // of the answers
  int64_t last_answered = 0;
  int64_t last_good = 0;  // the last answer that serves as a start
  VirtualTime::Time last_activity;
  std::optional<VirtualTime::Time> detached;  // since when nothing carries it
  int64_t start_when_detached = 0;
  bool closed = false;
};

// A message of the client; neither: it has ended its side.
struct ClientMessage {
  std::optional<v1::NavigateRequest> request;
  // A header's: whether the frame is what the session expects, the others' answers are errors.
  bool is_valid = true;
  // A header's: the frame has the expected size.
  bool is_expected = true;
};

class SimulatedStream : public std::enable_shared_from_this<SimulatedStream> {
 public:
  using Time = VirtualTime::Time;
  using Duration = VirtualTime::Duration;

  // `reading` is how long the client takes for a message.
  SimulatedStream(World& world, std::shared_ptr<SessionSeen> seen, Duration reading)
      : world_(world), seen_(std::move(seen)), reading_(reading) {}

  // The client's side.
  void Send(ClientMessage message);
  void Break();
  // The server has said its last word; OK: a good one.
  bool finished() const { return finished_; }
  bool opened() const { return pipeline_ != nullptr; }
  bool was_refused() const { return was_refused_; }

 private:
  struct Frame {
    int64_t number = 0;
    bool is_stale = false;  // the number did not grow
    Time received;
    std::optional<Duration> deadline;
    bool is_valid = true;
    bool is_expected = true;
    int64_t total_bytes = 0;
    int64_t received_bytes = 0;
    bool is_complete() const { return received_bytes == total_bytes; }
  };

  // As in NavigateStream.
  absl::Status Receive(ClientMessage& message);
  absl::Status ReceiveConfig(const v1::NavigateConfig& config);
  absl::Status ReceiveHeader(const ClientMessage& message);
  absl::Status ReceiveChunk(v1::Chunk chunk);
  absl::Status Resume(const v1::NavigateConfig& config);
  void OnWarm(const absl::StatusOr<bool>& warm);
  absl::Status Carry(const absl::StatusOr<int64_t>& carrier);
  NavigateSession::EndedFn EndedFn();
  void OnEnded(const absl::Status& why);
  void OnChanged();
  void Continue();
  void Read();
  void TakeEvents();
  void Write();
  void Written();
  void Conclude();
  void End(const absl::Status& status);
  void Finish(const absl::Status& status);

  // The rules.
  bool Check(bool holds, absl::string_view rule) { return world_.rules.Check(holds, rule); }
  void NoteDetached();
  void CheckResumable(const absl::Status& status, bool was_active);
  void CheckStart(int64_t before);
  void CheckAnswer(const v1::FrameResult& result);
  void CheckGood(const Frame& frame, const v1::FrameResult& result);
  void CheckError(const Frame& frame, const v1::FrameResult& result);
  void CheckSuperseded(const v1::FrameResult& result, const std::string& by);
  void CheckRefusal(const Frame& frame, v1::ErrorReason reason);
  void CheckBounds();
  void CheckIdle();
  bool IsLate(const Frame& frame) const;

  World& world_;
  const std::shared_ptr<SessionSeen> seen_;
  const Duration reading_;
  std::deque<ClientMessage> connection_;
  std::shared_ptr<NavigateSession> session_;
  int64_t carrier_ = 0;
  std::shared_ptr<FramePipeline> pipeline_;
  std::deque<FramePipeline::Event> answers_;
  std::optional<FramePipeline::Event> writing_;
  bool opening_ = false;
  bool finished_ = false;
  bool was_refused_ = false;
  bool is_pumping_ = false;
  std::vector<Frame> frames_;  // in order; chunks are the last one's
  size_t answered_ = 0;        // of those
  int64_t last_number_ = 0;    // the largest of them
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_SIMULATION_SIMULATED_STREAM_H_
