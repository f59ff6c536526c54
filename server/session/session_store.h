// SPDX-License-Identifier: Apache-2.0
// SessionStore: the sessions that are open, by id; at most ServerLimits.max_sessions.
//
// Thread safety: safe for concurrent use. It calls no session with its lock held.
#ifndef INTRAWARP_SERVER_SESSION_SESSION_STORE_H_
#define INTRAWARP_SERVER_SESSION_SESSION_STORE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "intrawarp/v1/registration.pb.h"
#include "server/identity/identity.h"

namespace intrawarp::server {

class NavigateSession;
class SharedMemory;
struct DeviceContext;
struct ServerContext;
struct SessionSetup;

// FAILED_PRECONDITION (SESSION_NOT_RESUMABLE).
absl::Status SessionNotResumable(absl::string_view why);

// How many sessions there ever were, and how they ended that did not end with their stream.
struct SessionCounts {
  int64_t opened = 0;
  int64_t resumed = 0;
  int64_t idle = 0;
  int64_t unresumed = 0;
};

class SessionStore {
 public:
  using Pointer = std::shared_ptr<NavigateSession>;

  // `any_open` is told, with the store's lock held, when the first session of a device opens and when the last one
  // goes.
  explicit SessionStore(std::function<void(int device, bool)> any_open) : any_open_(std::move(any_open)) {}

  // The session that a config asks for: a new one, OPENING, on the device that suits it, or with config.resume the one
  // that is there. INVALID_FIELD and the other errors of ResolveNavigateConfig name paths of the stream's message;
  // RESOURCE_EXISTS, TOO_MANY_SESSIONS, SESSION_NOT_RESUMABLE; UNAVAILABLE (DEVICE_LOST, DEVICE_HUNG) when the device
  // of the session, or of its volume, has failed.
  absl::StatusOr<Pointer> Open(ServerContext& context, const v1::NavigateConfig& config,
                               const Identity& caller = Nobody());
  // The session that the caller means by the id, as ResidentStore::Find.
  absl::StatusOr<Pointer> Find(const std::string& id, const Identity& caller = Nobody()) const;
  // As ResidentStore::List.
  std::vector<Pointer> List(const std::string& after, int limit, const Identity& caller = Anybody()) const;
  // A new session with a setup, OPENING, on the device that suits it. The errors of Open but for those of a config.
  absl::StatusOr<Pointer> OpenWith(ServerContext& context, const std::string& id, SessionSetup setup);
  // Closes the sessions that are idle for too long, and those that nobody has resumed; writes what has changed in the
  // durable ones.
  void Expire(std::chrono::steady_clock::time_point now);
  // Closes all, with the error for their streams.
  void CloseAll(const absl::Status& why);
  // The same when the server stops: a restart brings the durable ones back. All write what has changed at once, and
  // have the same five seconds.
  void SuspendAll(const absl::Status& why);

  int64_t size() const;
  SessionCounts counts() const;

  // Whether sessions may have taps, for which they take buffers. Set before the first call.
  void set_has_taps(bool has) { has_taps_ = has; }
  bool has_taps() const { return has_taps_; }

  // The memory that streams may share with their clients; null: none. Set before the first call.
  void set_shared_memory(SharedMemory* memory) { shared_memory_ = memory; }
  SharedMemory* shared_memory() const { return shared_memory_; }

 private:
  friend class NavigateSession;
  // A session takes itself out when it closes, and tells of the streams that resume it.
  void Erase(const NavigateSession& session);
  void CountResumption();
  absl::StatusOr<Pointer> OpenNew(ServerContext& context, const v1::NavigateConfig& config, const Identity& caller);
  absl::StatusOr<Pointer> FindToResume(const v1::NavigateConfig& config, const Identity& caller);
  absl::StatusOr<DeviceContext*> Place(ServerContext& context, SessionSetup& setup) const;
  absl::StatusOr<Pointer> Insert(DeviceContext& device, const std::string& id, SessionSetup setup);

  const std::function<void(int, bool)> any_open_;
  SharedMemory* shared_memory_ = nullptr;
  bool has_taps_ = false;
  // Held while a session is placed and becomes visible to the next one's placement.
  std::mutex placing_;
  mutable std::mutex mutex_;
  std::map<int, int> open_;                  // sessions of a device
  std::map<std::string, Pointer> sessions_;  // by OwnedKey
  SessionCounts counts_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_SESSION_SESSION_STORE_H_
