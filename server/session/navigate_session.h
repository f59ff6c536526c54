// SPDX-License-Identifier: Apache-2.0
// NavigateSession: the state of a navigation, which outlives the stream that carries it: the setup, the memory that its
// frames use, the last good transform (the start of the next frame), the recent results, the statistics.
//
// Life: OPENING (Reserve, then a warm-up) -> ACTIVE (a stream carries it) -> DETACHED (the stream broke) -> ACTIVE
// again by another stream, or CLOSED. From every state it can go to CLOSED, which frees what it holds and takes it out
// of the store. A stream is known by its carrier number; a later carrier takes over from the one before, whose calls
// then have no effect.
//
// With a state directory a session with a resume window is durable: it is there, DETACHED, after a restart of the
// server.
//
// Thread safety: safe for concurrent use. It calls a carrier without a lock of its own. No gRPC here.
#ifndef INTRAWARP_SERVER_SESSION_NAVIGATE_SESSION_H_
#define INTRAWARP_SERVER_SESSION_NAVIGATE_SESSION_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/transform/transform.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/context/server_context.h"
#include "server/ledger/grant_pool.h"
#include "server/placement/replication.h"
#include "server/registration/recent_results.h"
#include "server/session/frame_buffers.h"
#include "server/session/frame_history.h"
#include "server/session/frame_tap.h"
#include "server/session/navigate_frame.h"
#include "server/session/session_keeper.h"
#include "server/session/session_setup.h"
#include "server/session/session_statistics.h"

namespace intrawarp::server {

// The transform that the next frame starts from, with the memory that it holds.
struct GoodResult {
  int64_t frame_number = 0;
  std::shared_ptr<Grant> reservation;
  Transform transform;
  // The stages that were chosen for good, by this frame or one before it; empty: none were, or the config names them.
  std::vector<StageOptions> chosen;
};

// Room for the results of frames as expected that live at once: the one that is computed, those that wait to be sent,
// the start of the next frame, and one that is written to the state directory.
Amounts ResultRoom(const SessionSetup& setup);

// Bytes of the largest field that a frame of the expected grid has; 0 without one.
absl::StatusOr<int64_t> ExpectedFieldBytes(const SessionSetup& setup);

// Why a stream no longer carries its session: ABORTED (SESSION_ENDED) with the cause "resumed", "closed" or "idle".
absl::Status SessionEnded(const char* cause);

class NavigateSession : public std::enable_shared_from_this<NavigateSession> {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Tells a carrier that the session is not its any more.
  using EndedFn = std::function<void(const absl::Status& why)>;
  enum class State { kOpening, kActive, kDetached, kClosed };

  // OPENING, on the device of `context`, which must outlive it. The session stays there.
  NavigateSession(DeviceContext& context, std::string id, SessionSetup setup);

  const std::string& id() const { return id_; }
  const std::string& owner() const { return setup_.owner; }
  // The server on the session's device.
  DeviceContext& context() const { return context_; }
  const SessionSetup& setup() const { return setup_; }
  // The resident images and the initial transform, for BringTo before Reserve.
  Inputs MutableInputs() { return InputsOf(setup_); }
  State state() const;
  v1::Session Describe() const;

  // Takes what the frames will hold, so that no other client can: a pinned buffer for each frame that can be in flight
  // and one for each field of each, the workspace of a frame, and device memory and places for their results. A frame
  // larger than expected takes what is missing from the share of sessions.
  // Errors: those of Ledger::Admit, CANCELLED when it was closed meanwhile. May take as long as page-locking takes.
  // Once.
  absl::Status Reserve();

  // Whether it outlives a restart.
  bool is_durable() const { return keeper_ != nullptr; }
  // Keeps a session that opens, before a carrier learns of it. Waits for the disk. The errors of SessionKeeper::Begin.
  absl::Status Keep();
  // Instead of Keep and Open: a session of a row, `kept` as it was then, with its start, which may be null, waits to be
  // resumed from now on. Once.
  void Restore(const state::SessionRow& row, const v1::Session& kept, std::shared_ptr<const GoodResult> start);
  // Time to write what has changed.
  void Flush();
  // The server stops: what has changed is written from now on. Does not wait.
  void BeginSuspend();
  // Ends the session then: a durable one will be there again. Waits for its last write, until `end` at most.
  void Suspend(const absl::Status& why, Time end);

  // A carrier takes the session up; the one before is told. Makes a session that opens ACTIVE, `warm` as for
  // Session.warm. FAILED_PRECONDITION (SESSION_NOT_RESUMABLE) when it is closed.
  absl::StatusOr<int64_t> Open(bool warm, EndedFn ended);
  // The same for one that is ACTIVE or DETACHED.
  absl::StatusOr<int64_t> Resume(EndedFn ended);
  // The carrier's stream broke: the session waits to be resumed, or is closed when it has no window for that.
  void Detach(int64_t carrier);
  // The carrier ends the session; its EndedFn is not called. `gone`, which may be empty, is called once a restart does
  // not bring the session back: later, on another thread, for a durable session, otherwise at once.
  using GoneFn = std::function<void()>;
  void CloseBy(int64_t carrier, GoneFn gone = nullptr);
  // Ends the session; its carrier is told `why`. `gone` as CloseBy's.
  void Close(const absl::Status& why, GoneFn gone = nullptr);

  enum class Expiry { kNone, kIdle, kUnresumed };
  // What has expired at `now`; the caller closes the session.
  Expiry ExpiryAt(Time now) const;

  // A buffer of the session's for a frame; null for a size or number beyond those.
  std::shared_ptr<PinnedBuffer> TakeFrameBuffer(int64_t bytes) { return frame_buffers_.Take(bytes); }
  // A buffer of the session's for a field, or, for a size or number beyond those, a lease from the pool.
  absl::StatusOr<std::shared_ptr<char>> TakeFieldBuffer(int64_t bytes);
  // Who takes the frames from now on; null: nobody.
  void set_tap(std::shared_ptr<FrameTap> tap);
  std::shared_ptr<FrameTap> tap() const;
  // A buffer of the session's for its tap, which keeps the buffer until it lets go; null while kLentBuffers are lent.
  std::shared_ptr<const PinnedBuffer> LendPixels(std::shared_ptr<PinnedBuffer> pixels);
  // How the last frames ended, as FrameHistory::Since.
  std::vector<AnsweredFrame> AnsweredSince(int64_t sequence) const;

  // Room for a result: from the share of sessions, where the oldest recent results give way, or else from what the
  // session has taken.
  absl::StatusOr<std::shared_ptr<Grant>> ReserveResult(int64_t bytes);

  // Where the next frame starts; null: as the config says.
  std::shared_ptr<const GoodResult> start() const;
  void SetStart(int64_t carrier, const NavigateFrame& frame);
  // Stores a frame's result, for as long as the session lives and 16 newer ones do not push it out. The transform's
  // name.
  absl::StatusOr<std::string> Keep(const RegistrationOutcome& outcome, const v1::Report& report);

  // The frames of the carrier.
  void FrameBegan(int64_t carrier);
  void FrameAnswered(int64_t carrier, const NavigateFrame& frame, FrameFate fate);
  void CoarseFieldSent();
  void FramesDropped(int64_t count);
  std::optional<int64_t> last_frame_number() const;
  // Session.kept_frame_number.
  std::optional<int64_t> durable_frame() const { return keeper_ == nullptr ? std::nullopt : keeper_->durable_frame(); }
  // The part of its device's time that the frames take: measured, or predicted, or 0.1 when nothing is known.
  double ExpectedLoad() const;

 private:
  // All with the mutex held.
  absl::StatusOr<int64_t> CarryBy(EndedFn ended, EndedFn* before);
  bool IsCarriedBy(int64_t carrier) const { return carrier == carrier_ && state_ == State::kActive; }
  void Touch() { last_activity_ = context_.seams.steady_now(); }
  std::optional<double> Load() const;
  v1::Session DescribeIn() const;
  // Without it.
  void Free();
  void NotDurable(GoneFn gone) const;
  void Changed(SessionKeeper::Urgency urgency);
  SessionKeeper::StateFn StateFn();

  DeviceContext& context_;
  const std::string id_;
  SessionSetup setup_;  // constant but for its inputs, which opening brings to the device
  const std::optional<double> predicted_load_;
  const std::shared_ptr<SessionKeeper> keeper_;  // null for a session that is not durable
  FrameBuffers frame_buffers_;
  FrameBuffers field_buffers_;

  mutable std::mutex mutex_;
  std::chrono::system_clock::time_point create_time_;
  State state_ = State::kOpening;
  bool warm_ = false;
  int64_t carrier_ = 0;  // 0: nobody yet
  EndedFn ended_;        // of the carrier
  int resumptions_ = 0;
  Time last_activity_;
  Time detached_at_;
  std::optional<int64_t> last_frame_number_;
  std::shared_ptr<const GoodResult> start_;
  std::optional<RecentResults> recent_;  // until closed
  Grant grant_;                          // a place, and workspace for a frame
  std::shared_ptr<GrantPool> room_;      // for results; null before Reserve and when closed
  SessionStatistics statistics_;
  FrameHistory history_;
  std::shared_ptr<FrameTap> tap_;
  // Outlives the session with the last buffer.
  const std::shared_ptr<std::atomic<int>> lent_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_NAVIGATE_SESSION_H_
