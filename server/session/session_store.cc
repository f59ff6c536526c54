// SPDX-License-Identifier: Apache-2.0
#include "server/session/session_store.h"

#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/context/limits.h"
#include "server/context/server_context.h"
#include "server/device/device_set.h"
#include "server/job/admission_metrics.h"
#include "server/placement/placement.h"
#include "server/placement/replication.h"
#include "server/session/navigate_frame.h"
#include "server/session/navigate_session.h"
#include "server/session/session_setup.h"
#include "server/session/shared_memory.h"
#include "server/status/errors.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {
namespace {

// For the last writes of all sessions at a stop.
constexpr std::chrono::seconds kLastWrite{5};

// The config but for what names the session.
v1::NavigateConfig Content(v1::NavigateConfig config) {
  config.clear_session_id();
  config.clear_resume();
  return config;
}

bool IsSameConfig(const v1::NavigateConfig& asked, const v1::NavigateConfig& opened) {
  const std::string content = Content(asked).SerializeAsString();
  return content.empty() || content == Content(opened).SerializeAsString();
}

}  // namespace

absl::Status SessionNotResumable(absl::string_view why) {
  return WithReason(absl::FailedPreconditionError(why), v1::SESSION_NOT_RESUMABLE);
}

absl::StatusOr<SessionStore::Pointer> SessionStore::Open(ServerContext& context, const v1::NavigateConfig& config,
                                                         const Identity& caller) {
  if (!config.session_id().empty()) INTRAWARP_RETURN_IF_ERROR(ValidateId(config.session_id(), "config.session_id"));
  // Memory that was kept for the end of an earlier stream is free for this session.
  if (shared_memory_ != nullptr) shared_memory_->Expire(context.seams.steady_now());
  return config.resume() ? FindToResume(config, caller) : OpenNew(context, config, caller);
}

absl::StatusOr<SessionStore::Pointer> SessionStore::OpenNew(ServerContext& context, const v1::NavigateConfig& config,
                                                            const Identity& caller) {
  INTRAWARP_ASSIGN_OR_RETURN(SessionSetup setup, ResolveNavigateConfig(context, config, caller));
  const std::string id = config.session_id().empty() ? RandomId(context.seams) : config.session_id();
  return OpenWith(context, id, std::move(setup));
}

absl::StatusOr<SessionStore::Pointer> SessionStore::OpenWith(ServerContext& context, const std::string& id,
                                                             SessionSetup setup) {
  std::lock_guard<std::mutex> placing(placing_);
  INTRAWARP_ASSIGN_OR_RETURN(DeviceContext * device, Place(context, setup));
  return Insert(*device, id, std::move(setup));
}

absl::StatusOr<DeviceContext*> SessionStore::Place(ServerContext& context, SessionSetup& setup) const {
  if (context.devices.size() == 1) return &context.devices[0];
  const Inputs inputs = InputsOf(setup);
  Claim claim;
  claim.workspace_bytes = SessionWorkspaceBytes(context.devices[0].device, setup);
  claim.resident_bytes = ResultRoom(setup).resident_bytes;
  std::vector<PlacementState> states = PlacementStates(context, inputs, JobClass::kFrame, claim, Share::kSession);
  for (const Pointer& session : List("", std::numeric_limits<int>::max())) {
    states[session->context().index].load += session->ExpectedLoad();
  }
  const std::optional<int> placed = PlaceSession(states);
  if (!placed) return NoUsableDevice(context, inputs);
  return &context.devices[*placed];
}

absl::StatusOr<SessionStore::Pointer> SessionStore::Insert(DeviceContext& device, const std::string& id,
                                                           SessionSetup setup) {
  auto session = std::make_shared<NavigateSession>(device, id, std::move(setup));
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string key = OwnedKey(id, session->owner());
  if (sessions_.contains(key)) return AlreadyExists(SessionName(id));
  const int max = device.limits.max_sessions;
  if (static_cast<int>(sessions_.size()) >= max) {
    device.metrics.admission.CountRejection(v1::TOO_MANY_SESSIONS);
    return WithReason(absl::ResourceExhaustedError(absl::StrCat(max, " sessions are open, which is the limit")),
                      v1::TOO_MANY_SESSIONS, InUse(max, max));
  }
  if (open_[device.index]++ == 0) any_open_(device.index, true);
  sessions_.emplace(key, session);
  ++counts_.opened;
  return session;
}

absl::StatusOr<SessionStore::Pointer> SessionStore::FindToResume(const v1::NavigateConfig& config,
                                                                 const Identity& caller) {
  if (config.session_id().empty()) return InvalidField("config.session_id", "must name the session to be resumed");
  const absl::StatusOr<Pointer> session = Find(config.session_id(), caller);
  if (!session.ok()) return SessionNotResumable(session.status().message());
  if (!IsSameConfig(config, (*session)->setup().asked)) {
    return SessionNotResumable("the session was opened with another config");
  }
  if ((*session)->state() == NavigateSession::State::kOpening) return SessionNotResumable("the session is opening");
  INTRAWARP_RETURN_IF_ERROR(CheckPlaced((*session)->context()));
  return session;
}

void SessionStore::CountResumption() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++counts_.resumed;
}

absl::StatusOr<SessionStore::Pointer> SessionStore::Find(const std::string& id, const Identity& caller) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto own = sessions_.find(OwnedKey(id, caller.name));
  if (own != sessions_.end()) return own->second;
  const std::string first = OwnedKey(id, "");
  const auto it = sessions_.lower_bound(first);
  const auto is_one = [&](auto at) { return at != sessions_.end() && absl::StartsWith(at->first, first); };
  if (!caller.is_admin() || !is_one(it)) return NotFound(SessionName(id));
  if (is_one(std::next(it))) return SeveralOwners(SessionName(id));
  return it->second;
}

std::vector<SessionStore::Pointer> SessionStore::List(const std::string& after, int limit,
                                                      const Identity& caller) const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Pointer> page;
  for (auto it = sessions_.upper_bound(after); it != sessions_.end() && static_cast<int>(page.size()) < limit; ++it) {
    if (caller.MaySee(it->second->owner())) page.push_back(it->second);
  }
  return page;
}

void SessionStore::Expire(std::chrono::steady_clock::time_point now) {
  for (const Pointer& session : List("", std::numeric_limits<int>::max())) {
    const NavigateSession::Expiry expiry = session->ExpiryAt(now);
    if (expiry == NavigateSession::Expiry::kNone) {
      session->Flush();
      continue;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++(expiry == NavigateSession::Expiry::kIdle ? counts_.idle : counts_.unresumed);
    }
    session->Close(SessionEnded("idle"));
  }
}

void SessionStore::CloseAll(const absl::Status& why) {
  for (const Pointer& session : List("", std::numeric_limits<int>::max())) session->Close(why);
}

void SessionStore::SuspendAll(const absl::Status& why) {
  const std::vector<Pointer> sessions = List("", std::numeric_limits<int>::max());
  for (const Pointer& session : sessions) session->BeginSuspend();
  const auto end = std::chrono::steady_clock::now() + kLastWrite;
  for (const Pointer& session : sessions) session->Suspend(why, end);
}

void SessionStore::Erase(const NavigateSession& session) {
  Pointer erased;  // freed after the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = sessions_.find(OwnedKey(session.id(), session.owner()));
  if (it == sessions_.end() || it->second.get() != &session) return;
  erased = std::move(it->second);
  sessions_.erase(it);
  const int device = session.context().index;
  if (--open_[device] == 0) any_open_(device, false);
}

int64_t SessionStore::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(sessions_.size());
}

SessionCounts SessionStore::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

}  // namespace intrawarp::server
