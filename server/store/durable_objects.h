// SPDX-License-Identifier: Apache-2.0
// DurableObjects: the way by which objects enter a store and leave it on a server that keeps them (--state_dir). An
// object is in its store once it is durable, and leaves it once it is no longer durable. Without a state directory
// every function goes straight to the store.
//
// Functions that are marked "waits" wait for the disk; they are called by work that Run runs.
//
// Thread safety: safe for concurrent use after Open.
#ifndef INTRAWARP_SERVER_STORE_DURABLE_OBJECTS_H_
#define INTRAWARP_SERVER_STORE_DURABLE_OBJECTS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/base/seams.h"
#include "server/base/worker_pool.h"
#include "server/identity/identity.h"
#include "server/state/state_store.h"
#include "server/store/resident_store.h"

namespace intrawarp::server {

struct DeviceContext;
struct StoredVolume;

// How an object can be made again: its upload header and payload, and the answer of what computed it.
struct ObjectOrigin {
  std::string header;
  std::string description;
  // Null without a state directory.
  std::shared_ptr<const state::DurablePayload> payload;
};

int64_t NanosecondsOf(std::chrono::system_clock::time_point time);

class DurableObjects {
 public:
  DurableObjects() = default;
  // Does what Shutdown does.
  ~DurableObjects() { Shutdown(); }

  // Opens the state directory. Once, before the first call. `files` outlives it. The errors of StateStore::Open.
  absl::Status Open(state::FileLayer& files, const std::string& directory, const Seams& seams);
  // Makes the voxels of a durable volume again on a device; the making of objects is above the stores. Once, before the
  // first call that could load a volume.
  using ReloadFn = std::function<absl::StatusOr<std::shared_ptr<const StoredVolume>>(DeviceContext& to,
                                                                                     const StoredVolume& spooled)>;
  void set_reload(ReloadFn reload) { reload_ = std::move(reload); }
  absl::StatusOr<std::shared_ptr<const StoredVolume>> reload(DeviceContext& to, const StoredVolume& spooled) const {
    return reload_(to, spooled);
  }
  bool enabled() const { return state_ != nullptr; }
  // Only when enabled.
  state::StateStore& state() { return *state_; }

  // Runs `work` on a thread that may wait for the disk; at once on this thread without a state directory and after
  // Shutdown. Whoever calls it has at most one task waiting.
  void Run(std::function<void()> work);
  // The same on a thread of its own, for work that also waits for the device, one after the other.
  void RunLoad(std::function<void()> work);
  // Runs what waits, then ends the threads and writes the time. Idempotent. Not from a task.
  void Shutdown();

  // The end of an object as its row has it (StateStore::start_time), and the other way round. Only when enabled.
  int64_t DurableTime(const Expiry& expiry) const;
  Expiry ExpiryAt(int64_t durable_time) const;
  // Writes how late it is when that was last done some minutes ago; from time to time. Waits. Without effect without a
  // state directory.
  void WriteTime(std::chrono::steady_clock::time_point now);

  // Writes a payload, whose SHA-256 is `digest`; null without a state directory. Waits. Errors: STATE_FULL,
  // STATE_UNAVAILABLE.
  absl::StatusOr<std::shared_ptr<const state::DurablePayload>> Keep(const std::string& digest,
                                                                    absl::Span<const char> bytes);

  // Brings a payload to `to`, which has its size, and verifies it. Waits. DATA_LOSS names the file; STATE_UNAVAILABLE.
  absl::Status Read(const std::string& digest, absl::Span<char> to) const;

  // The row of an open session, whose payload may be null for none (StateStore::CommitSession and the like). Wait.
  // STATE_FULL, STATE_UNAVAILABLE. Removing a session that is not there is OK.
  absl::Status CommitSession(state::SessionRow row, const state::DurablePayload* payload);
  absl::Status UpdateSession(state::SessionRow row, const state::DurablePayload* payload);
  absl::Status RemoveSession(const state::SessionRow& row);

  // The row of an operation, in place of an earlier one with its id and owner. Wait. STATE_FULL, STATE_UNAVAILABLE.
  // Removing one that is not there is OK.
  absl::Status PutOperation(const state::OperationRow& row);
  absl::Status RemoveOperation(const std::string& id, const std::string& owner);

  // Keeps the object, then inserts it into its store. Waits. ALREADY_EXISTS; errors as of Keep.
  template <typename Store>
  absl::Status Insert(Store& store, typename Store::Pointer object, const ObjectOrigin& origin) {
    if (!enabled()) return store.Insert(std::move(object));
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string id = object->id, owner = object->owner;
    if (!absl::IsNotFound(store.FindOf(owner, id).status())) return AlreadyExists(StoredOf<Store>::Name(id));
    const absl::Status kept = state_->Commit(RowOf(*object, origin), *origin.payload);
    if (absl::IsAlreadyExists(kept)) return AlreadyExists(StoredOf<Store>::Name(id));
    if (!kept.ok()) return StateError(kept);
    const absl::Status inserted = store.Insert(std::move(object));
    // A session's result, which is not durable, may have taken the id.
    if (!inserted.ok()) (void)state_->Remove(StoredOf<Store>::kKind, id, owner);
    return inserted;
  }

  // Erases the object that the caller means by the id. Waits. The errors of ResidentStore::OwnerOf; STATE_FULL and
  // STATE_UNAVAILABLE, after which the object is still there.
  template <typename Store>
  absl::Status Erase(Store& store, const std::string& id, const Identity& caller) {
    if (!enabled()) return store.Erase(id, caller);
    std::lock_guard<std::mutex> lock(mutex_);
    INTRAWARP_ASSIGN_OR_RETURN(const std::string owner, store.OwnerOf(id, caller));
    INTRAWARP_RETURN_IF_ERROR(RemoveRow(StoredOf<Store>::kKind, id, owner));
    return store.Erase(id, Identity{owner, Roles()});
  }

  // Erases this very object, unless it went before. Waits. It stays when its row cannot be removed.
  template <typename Store>
  void Erase(Store& store, const typename Store::Pointer& object) {
    if (!enabled()) return store.Erase(object);
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = store.FindOf(object->owner, object->id);
    if (!found.ok() || *found != object) return;
    if (RemoveRow(StoredOf<Store>::kKind, object->id, object->owner).ok()) store.Erase(object);
  }

  // Erases the objects that end at `now` or before. Waits.
  template <typename Store>
  void Expire(Store& store, std::chrono::steady_clock::time_point now) {
    if (!enabled()) return store.Expire(now);
    for (const auto& object : store.Expired(now)) Erase(store, object);
  }

 private:
  template <typename Store>
  using StoredOf = typename Store::Pointer::element_type;

  template <typename Stored>
  state::ObjectRow RowOf(const Stored& object, const ObjectOrigin& origin) const {
    state::ObjectRow row;
    row.kind = Stored::kKind;
    row.id = object.id;
    row.owner = object.owner;
    row.id_was_chosen = object.id_was_chosen;
    row.header = origin.header;
    row.description = origin.description;
    row.identity = object.digest;
    row.create_time = NanosecondsOf(object.create_time);
    if (object.expiry) row.expire_time = DurableTime(*object.expiry);
    if constexpr (requires { object.request; }) {
      if (object.request) {
        row.request_id = object.request->id;
        row.request_fingerprint = object.request->fingerprint;
      }
    }
    return row;
  }

  int64_t DurableNow(std::chrono::steady_clock::time_point now) const;
  // STATE_FULL or STATE_UNAVAILABLE for an error of the state directory.
  absl::Status StateError(const absl::Status& status) const;
  // OK also when there is no such row.
  absl::Status RemoveRow(state::ObjectKind kind, const std::string& id, const std::string& owner);

  std::unique_ptr<state::StateStore> state_;
  Seams seams_;
  ReloadFn reload_;
  std::chrono::steady_clock::time_point opened_;  // at the start_time of state_
  std::atomic<std::chrono::steady_clock::time_point> time_written_;
  bool is_shut_down_ = false;
  std::mutex mutex_;  // held while a row and its store change together
  std::mutex running_mutex_;
  std::unique_ptr<WorkerPool> workers_;  // null: Run runs at once
  std::unique_ptr<WorkerPool> loader_;   // likewise
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_STORE_DURABLE_OBJECTS_H_
