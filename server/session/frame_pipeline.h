// SPDX-License-Identifier: Apache-2.0
// FramePipeline: the frames of one stream of a session, from their headers to their answers: received one at a time,
// registered one at a time, answered in order. The session's overload policy and the frames' deadlines take effect
// here.
//
// The transport hands over headers and chunks as they come, asks MayRead before it reads another message, and takes
// what Next has for it. Jobs tell by `changed` that Next may have something; it is called without a lock.
//
// A frame's bytes come in chunks or, once the stream shares a segment of memory with its client, lie in a slot of it. A
// field goes into a slot where one is free, and otherwise in chunks from the session's memory.
//
// Bounds. KEEP_ALL: at most max_pending + 1 frames have no answer yet. LATEST_WINS: at most max_pending + 1 frames hold
// memory, and at most kMaxUnanswered have no answer. One header beyond that is held back until there is room.
//
// Thread safety: safe for concurrent use, but for BeginFrame, Append and EndOfFrames, which one thread at a time calls.
// No gRPC here.
#ifndef INTRAWARP_SERVER_SESSION_FRAME_PIPELINE_H_
#define INTRAWARP_SERVER_SESSION_FRAME_PIPELINE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/bulk/bulk_stream.h"
#include "server/context/server_context.h"
#include "server/session/navigate_frame.h"
#include "server/session/navigate_session.h"
#include "server/session/shared_segment.h"

namespace intrawarp::wire {

class ReceivedChunk;

}  // namespace intrawarp::wire

namespace intrawarp::server {

class FramePipeline : public std::enable_shared_from_this<FramePipeline> {
 public:
  using Time = NavigateFrame::Time;
  static constexpr int kMaxUnanswered = 256;

  // An event is sent: a field of a frame, the coarse one first, or its result.
  struct Event {
    // A result, which MakeResult makes when its turn has come; null: a field.
    std::shared_ptr<NavigateFrame> answered;
    v1::FrameField field;
    // Null for a field in a slot, which is whole.
    std::shared_ptr<BulkBuffer> bytes;
  };

  // `context`: the session's. `carrier`: the stream's number in the session. `call_deadline` ends the frames' jobs;
  // nullopt: none.
  FramePipeline(DeviceContext& context, std::shared_ptr<NavigateSession> session, int64_t carrier,
                std::optional<Time> call_deadline, std::function<void()> changed);

  // A header, received at `received`. Begins the frame, or holds the header back. What is wrong with the frame is its
  // answer: INVALID_ARGUMENT, say, when its number does not grow.
  void BeginFrame(const v1::FrameHeader& header, Time received);
  // Copies and checks the payload, and page-locks memory where the session has none, without a lock. INVALID_ARGUMENT,
  // which ends the stream, when it belongs to no frame.
  absl::Status Append(const wire::ReceivedChunk& chunk);
  // Instead of chunks: copies the bytes of the frame that has begun from its slot, without a lock. The slot is the
  // client's again after it, unless it was no slot; then, and where the stream shares no memory, the frame fails.
  void AppendSlot(const v1::SharedSlot& slot);
  // From now on slots are those of `segment`.
  void ShareMemory(std::shared_ptr<SharedSegment> segment);
  // No message follows: a frame that lacks chunks fails.
  void EndOfFrames();
  // Whether another message may be read.
  bool MayRead() const;
  // Whether a frame has begun whose chunks are still to come.
  bool IsReceiving() const;
  // Everything that was received has been answered.
  bool IsDone() const;

  std::optional<Event> Next();
  // Makes the answer of a frame that Next gave; `sending` is how long its field took to send. Once a frame.
  v1::NavigateResponse MakeResult(NavigateFrame& frame, std::chrono::nanoseconds sending);

  // Cancels what is under way and drops what waits. Idempotent. Nothing is changed after it.
  void Stop();

 private:
  using Frame = std::shared_ptr<NavigateFrame>;
  struct HeldHeader {
    v1::FrameHeader header;
    Time received;
    // Whether the number of the frame may follow those before it.
    absl::Status number;
  };

  // A field on its way into a slot.
  struct SlotField {
    std::shared_ptr<SharedSegment::Field> slot;
    v1::FieldHeader header;
    std::shared_ptr<BulkBuffer> bytes;  // null before the field is announced and after it was sent
  };

  absl::Status TakeChunk(const wire::ReceivedChunk& chunk, NavigateFrame& frame) const;
  absl::Status TakeSlot(const v1::SharedSlot& slot, SharedSegment* segment, NavigateFrame& frame) const;
  // Everything of the frame that is received is there, or `taken` says what is wrong.
  void Received(const NavigateFrame& frame, absl::Status taken);

  // All with the mutex held.
  bool HasRoom() const;
  absl::Status TakeNumber(int64_t number);
  void Begin(const HeldHeader& header);
  absl::Status Admit(const v1::FrameHeader& header, NavigateFrame& frame);
  absl::Status TakeMemory(NavigateFrame& frame);
  // Masks that lie elsewhere come while the frame is received, the masks of one frame at a time; it does not start
  // before they are there.
  void FindMasks(const std::shared_ptr<FrameMasks>& masks);
  void BringMasks(const std::shared_ptr<FrameMasks>& masks);
  void Complete();
  void Supersede(int64_t by);
  void MakeLight(NavigateFrame& frame, absl::Status status);
  void FailReceived(absl::Status status);
  void StartJobs();
  absl::Status Submit(const Frame& frame);
  absl::Status CannotStart(const NavigateFrame& frame) const;
  absl::Status Explain(const NavigateFrame& frame, const absl::Status& status) const;

  // Without the mutex.
  void MasksCame(FrameMasks& masks, const absl::Status& status);

  // By the frame's job.
  void RunJob(const Frame& frame, const absl::StatusOr<const ExecContext*>& ctx);
  bool MayStart(NavigateFrame& frame, absl::Status* why);
  absl::Status RunFrame(const ExecContext& ctx, NavigateFrame& frame);
  FieldOutput MakeFieldOutput(int64_t frame_number, bool coarse);
  absl::StatusOr<std::shared_ptr<char>> LeaseField(int64_t bytes, SlotField& to) const;
  // A field that is whole in its slot.
  void SendSlot(int64_t frame_number, bool coarse, SlotField& field);
  void SendField(int64_t frame_number, bool coarse, const v1::FieldHeader& header, std::shared_ptr<BulkBuffer> bytes);
  bool stopped() const;

  // By the writer.
  void Show(NavigateFrame& frame, const v1::Report& report, FrameFate fate, std::optional<ErrorMap> map) const;
  absl::Status FillResult(NavigateFrame& frame, v1::FrameResult& result, FrameFate* fate);

  DeviceContext& context_;
  const std::shared_ptr<NavigateSession> session_;
  const int64_t carrier_;
  const std::optional<Time> call_deadline_;
  const std::function<void()> changed_;

  mutable std::mutex mutex_;
  std::shared_ptr<SharedSegment> segment_;  // null: the stream shares no memory
  Frame receiving_;
  std::optional<HeldHeader> held_;
  bool passing_over_ = false;  // the chunks of a failed frame
  bool no_more_ = false;
  bool stopped_ = false;
  std::optional<int64_t> last_number_;  // the largest so far
  std::deque<Frame> ready_;             // received or failed, waiting for their turn
  Frame running_;                       // its job is submitted
  std::deque<Event> events_;
  bool bringing_ = false;  // the masks of a frame
  int unanswered_ = 0;     // frames from their header to their result
  int light_ = 0;          // of these, those that hold no memory
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_FRAME_PIPELINE_H_
