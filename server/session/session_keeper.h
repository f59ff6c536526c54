// SPDX-License-Identifier: Apache-2.0
// SessionKeeper: keeps a session in the state directory, so that it outlives a restart of the server.
//
// The session's row is committed when it opens and goes when it closes. In between the newest state is written behind
// the frames: one write at a time, each of the state as it is when the write begins, and so seldom that writing takes a
// tenth of the time at most. No frame waits for it; while the disk fails, the last state that was written stays.
//
// Thread safety: safe for concurrent use. It calls the session without a lock of its own.
#ifndef INTRAWARP_SERVER_SESSION_SESSION_KEEPER_H_
#define INTRAWARP_SERVER_SESSION_SESSION_KEEPER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/bulk/object_content.h"
#include "server/context/server_context.h"
#include "server/session/session_setup.h"
#include "server/state/catalogue.h"
#include "server/store/durable_objects.h"

namespace intrawarp::server {

struct GoodResult;

class SessionKeeper : public std::enable_shared_from_this<SessionKeeper> {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // A session at one moment.
  struct State {
    v1::Session session;
    std::shared_ptr<const GoodResult> start;  // null: none
  };
  // Null: the session is gone.
  using StateFn = std::function<std::optional<State>()>;

  // `context` is that of the session's device.
  SessionKeeper(DeviceContext& context, const std::string& id, const SessionSetup& setup);

  // Commits the row of a session that opens. Waits for the disk. STATE_FULL, STATE_UNAVAILABLE; CANCELLED when it ended
  // meanwhile. Once.
  absl::Status Begin(StateFn state);
  // Instead, for a session of a row that is there.
  void Continue(const state::SessionRow& row, StateFn state);

  // The session has changed. kSoon: it is written unless the last write is too fresh; Flush makes up for it then.
  // kLater: by Flush or the next write. kNow: as soon as a write under way is done.
  enum class Urgency { kLater, kSoon, kNow };
  void Changed(Urgency urgency);
  // Writes what has changed if it is time. Whoever keeps house calls it.
  void Flush() { Changed(std::nullopt); }

  // The session is over: its row goes, then `gone` is called, on another thread. Waits for no device: a copy of the
  // start that is under way comes to nothing. Once.
  void End(std::function<void()> gone);
  // The server stops: the row stays from now on, and the newest state is written.
  void BeginSuspend();
  // Waits until it is, or until `end`.
  void AwaitSuspended(Time end);

  // The frame of the start that the disk has.
  std::optional<int64_t> durable_frame() const;

 private:
  enum class Phase { kNew, kOpen, kEnded };
  // The transform that a session starts from, as the row has it.
  struct Start {
    std::optional<int64_t> frame;
    ObjectOrigin origin;
    std::string chosen;
  };

  void Changed(std::optional<Urgency> urgency);
  void Write();
  void Copy(const State& state);
  // Whether the copy that has ended, or cannot begin, is still wanted.
  bool EndCopy();
  void WriteContent(const v1::Session& session, Start start, ObjectContent content);
  void WriteRow(const v1::Session& session, Start start);
  void Written(const absl::Status& status);
  void RemoveRow();
  state::SessionRow RowOf(const v1::Session& session, const Start& start) const;

  DeviceContext& context_;
  state::SessionRow row_;  // but for what changes; constant once begun
  StateFn state_;          // constant once begun

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  Phase phase_ = Phase::kNew;
  bool is_suspended_ = false;
  bool is_writing_ = false;  // whoever writes has start_ and write_began_
  bool is_copying_ = false;  // whoever writes waits for the device
  bool is_dirty_ = false;
  bool is_urgent_ = false;
  bool has_failed_ = false;
  Time next_write_;
  std::function<void()> gone_;
  std::optional<int64_t> durable_frame_;
  // The start that the row has; without a payload in memory of this process before the first write.
  Start start_;
  Time write_began_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_SESSION_KEEPER_H_
